"""A made-up run for the examples, as a folder that hipofs pack makes a HIPO file of: simulate.py DIR [EVENTS]

10.6 GeV electrons on protons. W has the elastic peak, three resonances and a continuum; an inelastic event may have a
positive pion, and what it recoils from is a neutron, or more. Momenta are smeared by half a percent, so that peaks have
widths. No cross section is right; it is the kinematics that the examples need.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

BEAM, PROTON, NEUTRON, PION = 10.6, 0.938272, 0.939565, 0.139570
COLUMNS = {"pid": "I", "px": "F", "py": "F", "pz": "F", "charge": "B", "status": "S"}


def electrons(rng, w: np.ndarray) -> np.ndarray:
    """Scattered electrons with this W, and Q² from 1.5 to 5 GeV²."""
    q2 = 1 / rng.uniform(1 / 5, 1 / 1.5, len(w))
    energy = BEAM - (w**2 - PROTON**2 + q2) / (2 * PROTON)
    cos, phi = 1 - q2 / (2 * BEAM * energy), rng.uniform(-np.pi, np.pi, len(w))
    sin = np.sqrt(1 - cos**2)
    return energy * np.stack([sin * np.cos(phi), sin * np.sin(phi), cos])


def pions(rng, w: np.ndarray, electron: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Pions that leave the virtual photon and the proton in any direction, beside something of mass x."""
    cos, phi = rng.uniform(-1, 1, len(w)), rng.uniform(-np.pi, np.pi, len(w))
    p = np.sqrt(((w**2 - (x + PION)**2) * (w**2 - (x - PION)**2)).clip(0)) / (2 * w)
    at_rest = p * np.stack([np.sqrt(1 - cos**2) * np.cos(phi), np.sqrt(1 - cos**2) * np.sin(phi), cos])
    total = -electron
    total[2] += BEAM
    energy = np.sqrt((total**2).sum(0) + w**2)
    along = (at_rest * total).sum(0) / w / (energy + w) + np.sqrt(p**2 + PION**2) / w
    return at_rest + along * total


def main() -> None:
    folder, n = Path(sys.argv[1]) / "REC::Particle", int((sys.argv[2:] or ["100000"])[0])
    rng = np.random.default_rng(5042)
    kind = rng.choice(5, n, p=[.08, .22, .15, .12, .43])
    w = np.select([kind == k for k in range(4)],
                  [np.full(n, PROTON), *(mass + width / 2 * np.tan(rng.uniform(-1.2, 1.2, n))
                                         for mass, width in ((1.232, .117), (1.52, .115), (1.68, .13)))],
                  rng.triangular(1.2, 3.2, 3.4, n))
    w = np.where(kind > 0, w.clip(NEUTRON + PION + .001, 3.4), w)
    more = rng.uniform(NEUTRON + PION, np.maximum(w - PION, NEUTRON + PION + 1e-9))
    x = np.where(rng.random(n) < np.where(w > 1.4, .4, 1.), NEUTRON, more)
    electron = electrons(rng, w)
    pion = pions(rng, w, electron, x)
    has_pion = (kind > 0) & (rng.random(n) < .7)
    counts = np.where(has_pion, 3, 2)  # and a photon, which is in nobody's way
    first, photon = np.cumsum(counts) - counts, np.cumsum(counts) - 1
    p = rng.normal(0, .3, (3, counts.sum()))
    p[:, first], p[:, first[has_pion] + 1] = electron, pion[:, has_pion]
    p *= rng.normal(1, .005, p.shape[1])
    pid = np.full(counts.sum(), 211)
    pid[first], pid[photon] = 11, 22
    columns = {"pid": pid, "px": p[0], "py": p[1], "pz": p[2], "charge": np.select([pid == 11, pid == 211], [-1, 1]),
               "status": np.select([pid == 11, pid == 211], [-2110, 2110], 2000)}
    folder.mkdir(parents=True)
    for name, letter in COLUMNS.items():
        np.save(folder / f"{name}.npy", columns[name].astype({"I": "i4", "F": "f4", "B": "i1", "S": "i2"}[letter]))
    np.save(folder / "offsets.npy", np.concatenate(([0], np.cumsum(counts))))
    (folder / "schema.json").write_text(json.dumps({
        "name": "REC::Particle", "group": 300, "item": 31,
        "columns": [{"name": name, "type": letter, "length": 1, "file": f"{name}.npy"} for name, letter in COLUMNS.items()]}))


main()
