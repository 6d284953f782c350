"""The inclusive W spectrum, and the missing mass of e p -> e' pi+ X: spectra.py MOUNT [PLOT.png]

Prints the two histograms: lower edge of a bin in GeV, events in W, pions in missing mass.
"""
import sys
from pathlib import Path

import numpy as np

BEAM, PROTON, PION = 10.6, 0.938272, 0.139570
EDGES = np.arange(101) * 0.05  # GeV

bank = Path(sys.argv[1]) / "REC::Particle"
pid, status, entry = (np.load(bank / f"{name}.npy", mmap_mode="r") for name in ("pid", "status", "@entry"))
px, py, pz = (np.load(bank / f"{name}.npy").astype("f8") for name in ("px", "py", "pz"))


def energy(rows, mass):
    return np.sqrt(px[rows] * px[rows] + py[rows] * py[rows] + pz[rows] * pz[rows] + mass * mass)


# The scattered electron is the first row of an event with pid 11 that has triggered: its status is negative.
electrons = np.flatnonzero((pid == 11) & (status < 0))
events, first = np.unique(entry[electrons], return_index=True)
electrons = electrons[first]

scattered = energy(electrons, 0)
q2 = 2 * BEAM * (scattered - pz[electrons])
w2 = PROTON * PROTON + 2 * PROTON * (BEAM - scattered) - q2
w = np.sqrt(w2[w2 > 0])

# Every positive pion of these events, with the electron of its event.
pions = np.flatnonzero((pid == 211) & np.isin(entry, events))
e = electrons[np.searchsorted(events, entry[pions])]
x = BEAM + PROTON - energy(e, 0) - energy(pions, PION)
kx, ky, kz = -px[e] - px[pions], -py[e] - py[pions], BEAM - pz[e] - pz[pions]
mx2 = x * x - kx * kx - ky * ky - kz * kz
mx = np.sqrt(mx2[mx2 > 0])

histograms = [np.histogram(values, EDGES)[0] for values in (w, mx)]
for edge, events_in_w, pions_in_mx in zip(EDGES, *histograms):
    print(f"{edge:.2f} {events_in_w} {pions_in_mx}")

if len(sys.argv) > 2:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, counts, label, what in zip(axes, histograms, ("W (GeV)", "missing mass (GeV)"), ("events", "pions")):
        axis.stairs(counts, EDGES, fill=True, alpha=0.3)
        axis.stairs(counts, EDGES, color="C0")
        axis.set(xlabel=label, ylabel=f"{what} in 50 MeV", xlim=(0.5, 4))
    axes[0].set_title("e p → e' X")
    axes[1].set_title("e p → e' π⁺ X")
    axes[1].axvline(0.939565, color="C3", linewidth=1, label="neutron")
    axes[1].legend(frameon=False)
    figure.savefig(sys.argv[2], dpi=100)
