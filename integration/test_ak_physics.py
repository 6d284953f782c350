"""Masses, names, vectors and joins over pindex, beside oxihipo's over the same arrays."""
from __future__ import annotations

import math
from importlib.machinery import ModuleSpec
from pathlib import Path

import awkward as ak
import hipofs_ak as hf
import hypothesis
import numpy as np
import oxihipo
import particle
import pytest
from hypothesis import strategies

from harness import DATA
from hipofs_ak import _need, _physics

FILES = sorted({p.name: p for d in DATA for p in [*d.glob("*.hipo"), *(d / "codecs").glob("*.hipo")]}.values())


@pytest.fixture(scope="module")
def read(dst) -> ak.Array:
    """Every bank of the generated chain, with particles of many kinds."""
    return oxihipo.open([str(s) for s in dst.sources]).arrays(entry_stop=3000)


def same(ours: ak.Array, theirs: ak.Array) -> None:
    assert ours.type == theirs.type
    assert ak.array_equal(ours, theirs, equal_nan=True)


def test_tables_are_those_of_oxihipo():
    assert _physics.PDG_NAME == oxihipo.PDG_NAME
    assert _physics.PDG_MASS_GEV.keys() == oxihipo.PDG_MASS_GEV.keys()
    for code, mass in oxihipo.PDG_MASS_GEV.items():
        assert math.isclose(_physics.PDG_MASS_GEV[code], mass, rel_tol=1e-15)


def test_tables_are_those_of_the_particle_data_group():
    for code, mass in _physics.PDG_MASS_GEV.items():
        if abs(code) in (12, 14, 16) or code in (45, 46, 47, 49):
            continue
        listed = particle.Particle.from_pdgid(code)
        electrons = listed.pdgid.Z * 0.51099895069 if code >= 1_000_000_000 else 0
        assert math.isclose(mass * 1000, listed.mass - electrons, rel_tol=1e-9, abs_tol=1e-12), listed


@pytest.mark.parametrize("pid", [11, 0, -999, [2212, 0, 45], np.array([[11, 22], [0, 47]], "i2"), np.array([], "i4")])
def test_masses_and_names_of_numbers_and_arrays(pid):
    for unit in ("GeV", "MeV"):
        ours, theirs = _physics.pdg_mass(pid, unit=unit), oxihipo.pdg_mass(pid, unit=unit)
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)
    assert _physics.pdg_mass(0, unknown=0.0) == 0
    assert np.isnan(_physics.pdg_mass([np.nan, np.inf])).all() and _physics.pdg_mass(22.0) == 0
    assert _physics.pdg_name(pid) == oxihipo.pdg_name(pid)


def test_masses_and_names_of_a_column(read):
    pid = read["REC::Particle"].pid
    same(_physics.pdg_mass(pid), oxihipo.pdg_mass(pid))
    assert _physics.pdg_name(pid[7]) == oxihipo.pdg_name(pid[7])
    assert ak.array_equal(ak.num(ak.Array(_physics.pdg_name(pid))), ak.num(pid))
    assert _physics.pdg_name(pid[:1])[0] == oxihipo.pdg_name(pid[0])


def test_codes_that_only_the_package_particle_knows():
    assert _physics.pdg_name(9010221) == particle.Particle.from_pdgid(9010221).name
    assert math.isclose(_physics.pdg_mass(-3222, unit="MeV"), particle.Particle.from_pdgid(-3222).mass)
    carbon = _physics.pdg_mass(1000060120)  # 12 atomic mass units by definition, without six electrons
    assert math.isclose(carbon, 12 * 0.93149410242 - 6 * 0.00051099895, rel_tol=1e-7)


def test_an_entry_of_the_users_counts_at_once(monkeypatch):
    monkeypatch.setitem(_physics.PDG_MASS_GEV, 9999, 1.5)
    assert _physics.pdg_mass(9999) == 1.5 and math.isnan(_physics.pdg_mass(9998))


def test_vectors_of_particles(read):
    p = read["REC::Particle"]
    for mass in (None, "pdg", 0.139):
        ours, theirs = _physics.to_vector(p, mass=mass), oxihipo.to_vector(p, mass=mass)
        assert set(ours.fields) == set(theirs.fields)
        assert all(ak.array_equal(ours[c], theirs[c], equal_nan=True) for c in theirs.fields)
        assert ak.parameters(ours) == ak.parameters(theirs)
        assert ak.array_equal(ours.pt, theirs.pt) and ak.array_equal(ours.eta, theirs.eta, equal_nan=True)
    two, both = ours[ak.num(ours) > 1], theirs[ak.num(theirs) > 1]
    assert ak.array_equal((two[:, 0] + two[:, 1]).mass, (both[:, 0] + both[:, 1]).mass)
    energy = ak.with_field(p, p.px, "E")
    assert ak.array_equal(_physics.to_vector(energy).energy, oxihipo.to_vector(energy).energy)


@pytest.mark.parametrize(("columns", "how"), [
    (["px", "py"], {}), (["px", "py", "pz"], {"mass": "pdg"}), (["px", "py", "pz"], {"mass": "proton"}),
    (["px", "py", "pz"], {"momentum": "Momentum4D"}), (["px", "py", "pz"], {"momentum": "Vector2D"}),
    (["px", "py", "pz", "E"], {"mass": 1.0}),
])
def test_vectors_that_cannot_be(columns, how):
    p = ak.Array([[dict.fromkeys(columns, 1.0)]])
    for library in (_physics, oxihipo):
        with pytest.raises(ValueError):
            library.to_vector(p, **how)


def test_links_of_every_bank(read):
    for directions in ("both", "to_particle", "to_detector"):
        same(_physics.link(read, directions=directions), oxihipo.link(read, directions=directions))
    shuffled = read[np.random.default_rng(5).permutation(len(read))]
    same(_physics.link(shuffled), oxihipo.link(shuffled))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_links_in_files_of_other_writers(path: Path):
    try:
        read = oxihipo.open(str(path)).arrays()
    except (oxihipo.OxihipoError, OSError, ValueError):
        return  # damaged, or not for oxihipo
    if "REC::Particle" in ak.fields(read):
        ours, theirs = _physics.link(read), oxihipo.link(read)
        if ak.any(ak.num(read["REC::Particle"])):
            same(ours, theirs)
        else:  # oxihipo then forgets what a particle is made of
            assert ours.to_list() == theirs.to_list()


# Entries of any sizes, with indexes of any value: most name no particle.
BANKS = strategies.lists(strategies.tuples(
    strategies.integers(0, 4), strategies.lists(strategies.integers(-(2**15), 2**15 - 1) | strategies.integers(0, 4))))


@hypothesis.given(BANKS)
@hypothesis.settings(derandomize=True, deadline=None, max_examples=60)
def test_rows_go_to_the_particle_that_they_name(entries):
    if not any(rows for _, rows in entries):
        return  # without any row, awkward does not know of columns
    counts = [n for n, _ in entries]
    bank = ak.Array([[{"pindex": p, "row": i} for i, p in enumerate(rows)] for _, rows in entries])
    bank = ak.with_field(bank, ak.values_astype(bank.pindex, "i2"), "pindex")
    want = [[[i for i, p in enumerate(rows) if p == k] for k in range(n)] for n, rows in entries]
    assert _physics.group_by_index(bank, counts).row.to_list() == want

    part = ak.zip({"n": ak.Array([list(range(n)) for n in counts])}) if any(counts) else None
    if part is not None:
        linked = _physics.link(ak.zip({"REC::Particle": part, "D": bank}, depth_limit=1), directions="to_particle")
        assert linked.D.particle.n.to_list() == [[p if 0 <= p < n else None for p in rows] for n, rows in entries]


def test_joins_that_cannot_be(read):
    cal = read["REC::Calorimeter"]
    for wrong in (
        lambda lib: lib.group_by_index(cal[["energy"]], ak.num(read["REC::Particle"])),
        lambda lib: lib.group_by_index(cal, ak.num(read["REC::Particle"])[:-1]),
        lambda lib: lib.link(read, directions="sideways"),
        lambda lib: lib.link(read, particles="REC::Particles"),
    ):
        for library in (_physics, oxihipo):
            with pytest.raises(ValueError):
                wrong(library)


def test_what_is_not_installed_is_said_in_one_way(monkeypatch):
    def missing(name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] in ("vector", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "ROOT":
            raise ModuleNotFoundError("No module named 'cppyy'", name="cppyy")
        return None

    monkeypatch.setattr(_need, "import_module", missing)
    for module, extra in (("vector", "vector"), ("pyarrow.parquet", "arrow")):
        with pytest.raises(ImportError, match=rf"^{module.partition('.')[0]} is not installed: pip install 'hipofs\[{extra}\]'$"):
            _need.need(module)
    with pytest.raises(ModuleNotFoundError, match="cppyy"):  # ROOT is there, and broken
        _need.need("ROOT")


def test_a_file_links_its_banks_by_the_rows_that_the_mount_has_ready(program, dst):
    names = ["REC::Event", "REC::Particle", "REC::Calorimeter", "REC::Track"]
    with hf.open([str(s) for s in dst.sources]) as f:
        views = (f.view(".entries/50:800"), {}), (f.view(".entries/:900"), {"entry_start": 100, "entry_stop": -7}), \
            (f.view(".entries/:900").filtered(require=["REC::Track"]), {"entry_start": 3})
        for view, some in views:
            for directions in ("both", "to_particle", "to_detector"):
                same(view.link(names, directions=directions, **some), oxihipo.link(view.arrays(names, **some), directions=directions))
        with pytest.raises(ValueError, match="REC::Particle"):
            f.link(["REC::Calorimeter"])
        with pytest.raises(KeyError):
            f.link(["REC::Particle", "REC::Calorimeters"])
