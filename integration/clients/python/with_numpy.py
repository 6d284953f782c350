"""NumPy: every file of a bank, mapped."""
import numpy as np

from report import BANKS, MOUNT, report

for bank in BANKS:
    for path in sorted((MOUNT / bank).glob("*.npy")):
        report(bank, path.stem, np.load(path, mmap_mode="r"))
