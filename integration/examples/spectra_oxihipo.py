"""The same two histograms from the HIPO files themselves, with oxihipo and awkward arrays: spectra_oxihipo.py FILE..."""
import sys

import awkward as ak
import numpy as np
import oxihipo

BEAM, PROTON, PION = 10.6, 0.938272, 0.139570
EDGES = np.arange(101) * 0.05  # GeV

rows = oxihipo.open(sys.argv[1:]).arrays("REC::Particle", ["pid", "px", "py", "pz", "status"])


def energy(p, mass):
    return np.sqrt(p.px * p.px + p.py * p.py + p.pz * p.pz + mass * mass)


rows = ak.zip({name: ak.values_astype(rows[name], "f8" if name in ("px", "py", "pz") else "i4") for name in rows.fields})
electrons = rows[(rows.pid == 11) & (rows.status < 0)]
rows, electrons = rows[ak.num(electrons) > 0], electrons[ak.num(electrons) > 0][:, 0]

scattered = energy(electrons, 0)
w2 = PROTON * PROTON + 2 * PROTON * (BEAM - scattered) - 2 * BEAM * (scattered - electrons.pz)

pions = rows[rows.pid == 211]
x = BEAM + PROTON - scattered - energy(pions, PION)
kx, ky, kz = -electrons.px - pions.px, -electrons.py - pions.py, BEAM - electrons.pz - pions.pz
mx2 = ak.flatten(x * x - kx * kx - ky * ky - kz * kz)

histograms = [np.histogram(np.sqrt(ak.to_numpy(square[square > 0])), EDGES)[0] for square in (w2, mx2)]
for edge, *counts in zip(EDGES, *histograms):
    print(f"{edge:.2f} {counts[0]} {counts[1]}")
