"""What each client of this folder does with a column: a line about it, and its values as the library holds them."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

MOUNT, OUT, BANKS = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]


def report(bank: str, name: str, values: np.ndarray) -> None:
    """One line: file, type, shape, and the sum of its values in order, in double precision."""
    total = np.cumsum(values.ravel(), dtype="f8")[-1] if values.size else 0.0
    print(f"{bank}/{name}.npy", values.dtype.str, "x".join(map(str, values.shape)), repr(float(total)))
    (OUT / bank).mkdir(exist_ok=True)
    (OUT / bank / name).write_bytes(values.tobytes())


def columns(bank: str) -> dict[str, np.ndarray]:
    """The columns of a bank, mapped."""
    return {f.stem: np.load(f, mmap_mode="r") for f in sorted((MOUNT / bank).glob("[!@]*.npy")) if f.stem != "offsets"}


def flat(bank: str) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """The columns of a bank as a table wants them, one number a cell, and the names of the parts of each column."""
    table, parts = {}, {}
    for name, values in columns(bank).items():
        parts[name] = [name] if values.ndim == 1 else [f"{name}.{i}" for i in range(values.shape[1])]
        table |= {p: np.ascontiguousarray(v) for p, v in zip(parts[name], values[:, None].T if values.ndim == 1 else values.T)}
    return table, parts


def together(table: dict[str, np.ndarray], names: list[str]) -> np.ndarray:
    """A column from its parts."""
    return table[names[0]] if len(names) == 1 and "." not in names[0] else np.stack([table[n] for n in names], axis=1)
