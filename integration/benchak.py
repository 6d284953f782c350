"""One awkward reader of the benchmark, a process of its own. Prints JSON.

    benchak.py hipofs_ak|oxihipo bank|again|everything|iterate WHERE [BANK COLUMN]

bank: the seconds from opening until every byte of a bank has gone into a checksum, of the same bank once more in the same
process, up to the checksum of one column, and the checksums. again: the seconds from opening to the checksum of one column.
everything: those that arrays() of all banks takes once the file is open. iterate: this process's peak memory while every byte
of every bank went into a checksum, step by step, and the checksums. Imports are in no figure. hipofs_ak takes a mount, too.
"""
from __future__ import annotations

import importlib
import json
import sys
import time

import awkward as ak
import numpy as np


def checksum(array: ak.Array) -> int:
    """The exclusive or of all values of a column, taken for whole numbers: it reads each byte once, and does little else."""
    values = ak.to_numpy(ak.flatten(array, axis=None))
    return int(np.bitwise_xor.reduce(values.view(f"u{values.itemsize}")))


def checksums(array: ak.Array) -> dict[str, int]:
    return {name: checksum(array[name]) for name in ak.fields(array)}


def peak() -> int:
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024


def main(library: str, what: str, where: str, bank: str = "", column: str = "") -> None:
    hf = importlib.import_module(library)
    began = time.perf_counter()
    f = hf.open(where)
    if what == "bank":
        sums = checksums(f.arrays(bank))
        first, began = time.perf_counter() - began, time.perf_counter()
        one = checksum(f.arrays(bank)[column])
        got = {"first": first, "again": time.perf_counter() - began, "sums": sums | {"again": one}}
    elif what == "again":
        one = checksum(f.arrays(bank)[column])
        got = {"seconds": time.perf_counter() - began, "sums": {"again": one}}
    elif what == "everything":
        banks, began = len(f.keys()), time.perf_counter()
        everything = f.arrays()
        got = {"seconds": time.perf_counter() - began, "sums": {"banks": len(everything.fields)}}
        assert len(everything.fields) == banks
    else:
        sums = {}
        for chunk in f.iterate(step_size="50 MB"):
            for b in chunk.fields:
                for name, value in checksums(chunk[b]).items():
                    sums[f"{b}/{name}"] = sums.get(f"{b}/{name}", 0) ^ value
        got = {"peak": peak(), "sums": dict(sorted(sums.items()))}
    print(json.dumps(got))


if __name__ == "__main__":
    main(*sys.argv[1:])
