"""Particles and what belongs to them: masses, names, vectors, and the joins over pindex. Not here: files and mounts."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._need import need

if TYPE_CHECKING:
    import awkward as ak

ELECTRON = 0.51099895069  # MeV; an atom's mass is its nucleus's and this for each proton

# Masses in MeV as the Particle Data Group gives them, of what CLAS12 reconstructs and simulates.
_PARTICLES: dict[int, tuple[float, str]] = {
    11: (ELECTRON, "e-"), -11: (ELECTRON, "e+"),
    13: (105.6583755, "mu-"), -13: (105.6583755, "mu+"),
    15: (1776.93, "tau-"), -15: (1776.93, "tau+"),
    12: (0, "nu(e)"), -12: (0, "nu(e)~"),
    14: (0, "nu(mu)"), -14: (0, "nu(mu)~"),
    16: (0, "nu(tau)"), -16: (0, "nu(tau)~"),
    22: (0, "gamma"),
    211: (139.57039, "pi+"), -211: (139.57039, "pi-"), 111: (134.9768, "pi0"),
    321: (493.677, "K+"), -321: (493.677, "K-"), 130: (497.611, "K(L)0"), 310: (497.611, "K(S)0"),
    221: (547.862, "eta"), 223: (782.66, "omega(782)"), 331: (957.78, "eta'(958)"), 333: (1019.46, "phi(1020)"),
    2212: (938.27208943, "p"), -2212: (938.27208943, "p~"),
    2112: (939.5654219, "n"), -2112: (939.5654219, "n~"),
    3122: (1115.683, "Lambda"), -3122: (1115.683, "Lambda~"),
    3222: (1189.37, "Sigma+"), 3212: (1192.642, "Sigma0"), 3112: (1197.449, "Sigma-"),
    3322: (1314.86, "Xi0"), 3312: (1321.71, "Xi-"), 3334: (1672.45, "Omega-"),
}

# Nuclei without their electrons, which is what a detector sees. The second code is Geant3's, which CLAS12 writes.
_NUCLEI: dict[tuple[int, int], tuple[float, str]] = {
    (1000010020, 45): (1875.61293134931, "D2"),
    (1000010030, 46): (2808.92112314931, "T3"),
    (1000020040, 47): (3727.37933279862, "He4"),
    (1000020030, 49): (2808.39153219862, "He3"),
}

_KNOWN = _PARTICLES | {code: of for codes, of in _NUCLEI.items() for code in codes}

PDG_MASS_GEV: dict[int, float] = {code: mass / 1000 for code, (mass, _) in _KNOWN.items()}
"""Masses by particle code, in GeV. Each call of pdg_mass looks here first, so that an entry of yours counts at once."""

PDG_NAME: dict[int, str] = {code: name for code, (_, name) in _KNOWN.items()}
"""Short names by particle code, as pdg_name gives them."""


@functools.cache
def _listed() -> dict[int, tuple[float | None, str]]:
    """Masses in MeV and names in the package particle; nothing where it is not installed."""
    try:
        every = need("particle").Particle.all()
    except ImportError:
        return {}
    return {int(p.pdgid): (p.mass, p.name) for p in every}


def _mass(code: int) -> float | None:
    if code == 0 or code in PDG_MASS_GEV:
        return PDG_MASS_GEV.get(code)
    mass, _ = _listed().get(code, (None, ""))
    if mass is not None and abs(code) >= 1_000_000_000:  # 10LZZZAAAI: the package has atoms
        mass -= abs(code) // 10_000 % 1000 * ELECTRON
    return None if mass is None else mass / 1000


def _name(code: int) -> str | None:
    if code == 0 or code in PDG_NAME:
        return PDG_NAME.get(code)
    return _listed()[code][1] if code in _listed() else None


def _each(codes: NDArray[Any], look: Callable[[int], Any], unknown: Any, dtype: Any) -> NDArray[Any]:
    """look(code), or unknown, for each of many codes, of which few are different."""
    values, where = np.unique(codes.reshape(-1), return_inverse=True)
    found = [look(int(v)) if np.isfinite(v) else None for v in values]
    table = np.array([unknown if f is None else f for f in found], dtype=dtype)
    return table[where].reshape(codes.shape)


def pdg_mass(pid: Any, *, unit: str = "GeV", unknown: float = math.nan) -> Any:
    """The mass of each particle code, in the shape that the codes have.

    pid is a number, a NumPy array or an awkward array of integers; the result is float64 in the same shape. A code that
    is neither in PDG_MASS_GEV nor known to the package particle, if that is installed, has the mass `unknown`; so has
    0, which CLAS12 writes for a track that it could not identify. unit is "GeV" or "MeV"; another one is a ValueError.

    >>> import hipofs_ak as hf
    >>> round(hf.pdg_mass(211), 6)
    0.13957
    >>> hf.pdg_mass([2212, 0, 45], unit="MeV").round(3).tolist()
    [938.272, nan, 1875.613]
    """
    scales = {"gev": 1.0, "mev": 1000.0}
    if unit.lower() not in scales:
        raise ValueError(f"unit must be 'GeV' or 'MeV', not {unit!r}")
    scale = scales[unit.lower()]

    def masses(codes: NDArray[Any]) -> NDArray[np.float64]:
        return _each(codes, lambda code: None if (m := _mass(code)) is None else m * scale, unknown, np.float64)

    if hasattr(pid, "layout"):
        ak = need("awkward")

        def leaf(layout: Any, **_: Any) -> Any:
            return ak.contents.NumpyArray(masses(np.asarray(layout.data))) if layout.is_numpy else None

        return ak.transform(leaf, pid)
    codes = np.asarray(pid)
    return float(masses(codes)) if codes.ndim == 0 else masses(codes)


def pdg_name(pid: Any, *, unknown: str = "?") -> Any:
    """The short name of each particle code: a string for a number, a list for an array, of lists where it is jagged.

    A code that is neither in PDG_NAME nor known to the package particle, if that is installed, is called `unknown`.

    >>> import hipofs_ak as hf
    >>> hf.pdg_name(11), hf.pdg_name([45, 0])
    ('e-', ['D2', '?'])
    """
    if hasattr(pid, "layout"):
        ak = need("awkward")
        if pid.ndim > 1:
            flat = pdg_name(ak.flatten(pid, axis=None), unknown=unknown)
            names = iter(flat)

            def named(values: Any) -> Any:
                return [named(v) for v in values] if isinstance(values, list) else next(names)

            return named(ak.to_list(pid))
        pid = ak.to_numpy(pid)
    codes = np.asarray(pid)
    if codes.ndim == 0:
        return str(_each(codes.reshape(1), _name, unknown, object)[0])
    return list(_each(codes.reshape(-1), _name, unknown, object))


def to_vector(array: ak.Array, *, mass: Any = None, momentum: str = "auto") -> ak.Array:
    """The rows of a bank with px, py and pz as vectors of scikit-hep's package vector; other columns stay with them.

    mass makes four-vectors of them: "pdg" looks up each row's pid with pdg_mass (what is not identified has the mass and
    energy nan), a number is the mass of all, an array that of each. None, the default, leaves three-vectors, which have
    no energy. Where a column E or energy is there it is the energy, and mass must be None. momentum is "auto",
    "Momentum3D" or "Momentum4D". A missing column, or a mass that contradicts one, is a ValueError.

    >>> import hipofs_ak as hf
    >>> f = hf.open(source)
    >>> p = f.arrays("REC::Particle", ["pid", "px", "py", "pz"])
    >>> v = hf.to_vector(p, mass="pdg")
    >>> [name for name in ("E", "pt", "eta", "mass") if hasattr(v, name)]
    ['E', 'pt', 'eta', 'mass']
    """
    need("vector").register_awkward()
    ak = need("awkward")
    fields: list[str] = ak.fields(array)
    missing = [c for c in ("px", "py", "pz") if c not in fields]
    if missing:
        raise ValueError(f"to_vector needs the columns px, py and pz; {', '.join(missing)} not among {', '.join(fields) or 'none'}")
    columns = {c: array[c] for c in ("px", "py", "pz")}
    energy = next((c for c in ("E", "energy") if c in fields), None)
    if energy is not None:
        if mass is not None:
            raise ValueError(f"there is a column {energy}, so mass must not be given too")
        columns["E"] = array[energy]
    elif isinstance(mass, str):
        if mass != "pdg":
            raise ValueError(f"mass must be 'pdg', a number or an array, not {mass!r}")
        if "pid" not in fields:
            raise ValueError("mass='pdg' needs the column pid")
        columns["mass"] = pdg_mass(array["pid"])
    elif mass is not None:
        columns["mass"] = mass

    if momentum == "auto":
        momentum = "Momentum4D" if len(columns) == 4 else "Momentum3D"
    elif momentum not in ("Momentum3D", "Momentum4D"):
        raise ValueError(f"momentum must be 'auto', 'Momentum3D' or 'Momentum4D', not {momentum!r}")
    elif momentum == "Momentum4D" and len(columns) == 3:
        raise ValueError("momentum='Momentum4D' needs an energy or a mass")
    columns |= {c: array[c] for c in fields if c not in columns and c != energy}
    return ak.zip(columns, with_name=momentum)


def _offsets(counts: Any) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def pointed(detector: Any, offsets: NDArray[np.int64], index: str) -> NDArray[np.int64]:
    """For each row of a bank, which of all particles its index names; -1 where the entry has none of that number."""
    ak = need("awkward")
    if len(offsets) - 1 != len(detector):
        raise ValueError(f"counts are of {len(offsets) - 1} entries, the bank has {len(detector)}: they must be of one read")
    rows = ak.to_numpy(ak.num(detector, axis=1))
    first = np.repeat(offsets[:-1], rows)
    particle = first + ak.to_numpy(ak.flatten(detector[index], axis=1)).astype(np.int64, copy=False)
    return np.where((particle >= first) & (particle < np.repeat(offsets[1:], rows)), particle, -1)


def group_by_index(detector: ak.Array, counts: Any, *, index: str = "pindex") -> ak.Array:
    """The rows of a bank, particle by particle: a list for each particle of each entry, also for those without rows.

    detector is entries * var * {pindex, …}, counts the number of particles in each entry, as ak.num gives it; the result
    is entries * particles * var * {…}, so that reducing the last axis makes a column for the particles. Rows keep their
    order. A row whose index names no particle of its entry is left out. A bank without that index, or counts of another
    read, are a ValueError.

    >>> import awkward as ak, hipofs_ak as hf
    >>> cal = ak.Array([[{"pindex": 1, "energy": 0.5}, {"pindex": 0, "energy": 0.25}, {"pindex": 1, "energy": 1.0}], []])
    >>> ak.sum(hf.group_by_index(cal, [2, 1]).energy, axis=-1).tolist()
    [[0.25, 1.5], [0.0]]
    """
    ak = need("awkward")
    if index not in ak.fields(detector):
        raise ValueError(f"group_by_index needs the column {index}; there are {', '.join(ak.fields(detector)) or 'none'}")
    offsets = _offsets(np.asarray(counts, dtype=np.int64))
    return _grouped(detector, offsets, pointed(detector, offsets, index))


def _grouped(detector: Any, offsets: NDArray[np.int64], particle: NDArray[np.int64]) -> Any:
    """The rows of a bank in lists of those that belong to each of all particles."""
    ak = need("awkward")
    order = np.argsort(particle, kind="stable")[np.count_nonzero(particle < 0):]
    rows = np.bincount(particle[order], minlength=offsets[-1])
    grouped = ak.contents.ListOffsetArray(
        ak.index.Index64(_offsets(rows)), ak.flatten(detector, axis=1)[order].layout)
    return ak.Array(ak.contents.ListOffsetArray(ak.index.Index64(offsets), grouped), behavior=detector.behavior)


def link(banks: ak.Array, *, particles: str = "REC::Particle", index: str = "pindex", directions: str = "both") -> ak.Array:
    """Banks that were read together, joined over pindex.

    Of each bank that has the column `index`, a row gets its particle as the field `particle` (None where the index names
    none), and a particle the bank's rows as a field with the bank's name, as group_by_index makes it. directions is
    "to_particle" for the first alone, "to_detector" for the second alone, or "both". Other banks stay as they are. A read
    without the bank `particles` is a ValueError.

    >>> import hipofs_ak as hf
    >>> f = hf.open(source)
    >>> ev = hf.link(f.arrays(["REC::Particle", "REC::Calorimeter"]))
    >>> "particle" in ev["REC::Calorimeter"].fields, "REC::Calorimeter" in ev["REC::Particle"].fields
    (True, True)
    """
    ak = need("awkward")
    check_link(banks, particles, directions)
    offsets = _offsets(ak.to_numpy(ak.num(banks[particles], axis=1)))
    rows = {bank: pointed(banks[bank], offsets, index) for bank in ak.fields(banks)
            if bank != particles and index in ak.fields(banks[bank])}
    return joined(banks, particles, directions, offsets, rows)


def check_link(banks: Any, particles: str, directions: str) -> None:
    """Refuse what cannot be linked."""
    if directions not in ("both", "to_particle", "to_detector"):
        raise ValueError(f"directions must be 'both', 'to_particle' or 'to_detector', not {directions!r}")
    fields = need("awkward").fields(banks)
    if particles not in fields:
        raise ValueError(f"link needs the bank {particles}; there are {', '.join(fields) or 'none'}")


def joined(
    banks: Any, particles: str, directions: str, offsets: NDArray[np.int64], rows: Mapping[str, NDArray[np.int64]],
) -> Any:
    """Banks with the fields that link adds; rows has, of each bank, which of all particles a row belongs to, or -1."""
    ak = need("awkward")
    flat = ak.flatten(banks[particles], axis=1)
    out = {bank: banks[bank] for bank in ak.fields(banks)}
    for bank, particle in rows.items():
        of = banks[bank]
        if directions != "to_detector":
            of_row = ak.Array(ak.contents.IndexedOptionArray.simplified(
                ak.index.Index64(particle), flat.layout), behavior=banks.behavior)
            out[bank] = ak.with_field(of, ak.unflatten(of_row, ak.num(of, axis=1)), "particle")
        if directions != "to_particle":
            out[particles] = ak.with_field(out[particles], _grouped(of, offsets, particle), bank)
    return ak.zip(out, depth_limit=1)
