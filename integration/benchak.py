"""One awkward reader of the benchmark, a process of its own. Prints JSON.

    benchak.py hipofs_ak|oxihipo bank|again|everything|iterate WHERE [BANK COLUMN]

bank: the seconds from opening until every value of a bank was added up, of the same bank once more in the same process,
up to the sum of one column, and the sums. again: the seconds from opening to the sum of one column. everything: those that
arrays() of all banks takes once the file is open. iterate: this process's peak memory while every value of every bank was added up, step
by step, and the sums. Imports are in no figure. hipofs_ak takes a mount, too.
"""
from __future__ import annotations

import importlib
import json
import sys
import time

import awkward as ak
import numpy as np


def total(array: ak.Array) -> float:
    """The sum of all values of a column, nan counted as nothing."""
    return float(np.nansum(ak.to_numpy(ak.flatten(array, axis=None)), dtype="f8"))


def totals(array: ak.Array) -> dict[str, float]:
    return {name: total(array[name]) for name in ak.fields(array)}


def peak() -> int:
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024


def main(library: str, what: str, where: str, bank: str = "", column: str = "") -> None:
    hf = importlib.import_module(library)
    began = time.perf_counter()
    f = hf.open(where)
    if what == "bank":
        sums = totals(f.arrays(bank))
        first, began = time.perf_counter() - began, time.perf_counter()
        one = total(f.arrays(bank)[column])
        got = {"first": first, "again": time.perf_counter() - began, "sums": sums | {"again": one}}
    elif what == "again":
        one = total(f.arrays(bank)[column])
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
                for name, value in totals(chunk[b]).items():
                    sums[f"{b}/{name}"] = sums.get(f"{b}/{name}", 0.0) + value
        got = {"peak": peak(), "sums": {name: f"{value:.6g}" for name, value in sorted(sums.items())}}
    print(json.dumps(got))


if __name__ == "__main__":
    main(*sys.argv[1:])
