"""One reader of the benchmark, a process of its own: reads columns to NumPy, says when that was done and what they are.

    benchreader.py hipofs|oxihipo|hipopybind WHERE BANK [COLUMN...]

WHERE is a mount or a file. BANK may be a prefix and `*`; no columns means all. Prints JSON: the clock when everything
was read, this process's peak memory then, the seconds that reading again took, and a checksum of each array.
"""
from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

Arrays = dict[str, np.ndarray]  # by bank and column; "offsets" is a column


def read_hipofs(mount: str, bank: str, columns: list[str]) -> Arrays:
    banks = [b for b in os.listdir(mount) if b.startswith(bank[:-1]) and "." not in b] if bank.endswith("*") else [bank]
    got = {}
    for b in banks:
        names = columns
        if not names:
            with open(f"{mount}/{b}/schema.json") as f:
                names = [c["name"] for c in json.load(f)["columns"]]
        for c in [*names, "offsets"]:
            got[f"{b}/{c}"] = np.load(f"{mount}/{b}/{c}.npy")
    return got


def read_oxihipo(source: str, bank: str, columns: list[str]) -> Arrays:
    import oxihipo
    chain = oxihipo.open(source)
    banks = [b for b in chain.keys() if b.startswith(bank[:-1])] if bank.endswith("*") else [bank]
    got = {}
    for b, offsets, values in chain.read_columns([(b, columns) for b in banks]):
        got |= {f"{b}/{name}": array for name, array, _ in values} | {f"{b}/offsets": offsets}
    return got


def read_hipopybind(source: str, bank: str, columns: list[str]) -> Arrays:
    """Event by event, as its users do. Its batches (HipoFileIterator) take longer and leave the last events out."""
    import hipopybind
    column, = columns
    reader, dictionary, event = hipopybind.Reader(), hipopybind.Dictionary(), hipopybind.Event()
    reader.open(source)
    reader.readDictionary(dictionary)
    b = hipopybind.Bank(dictionary.getSchema(bank))
    values, counts = [], [0]
    while reader.next():
        reader.read(event)
        event.getStructure(b)
        n = b.getRows()
        counts.append(n)
        if n:
            values += hipopybind.getFloats(b, column)
    return {f"{bank}/{column}": np.array(values, "f4"), f"{bank}/offsets": np.cumsum(counts, dtype="i8")}


def main(reader: str, where: str, bank: str, *columns: str) -> None:
    read = {"hipofs": read_hipofs, "oxihipo": read_oxihipo, "hipopybind": read_hipopybind}[reader]
    got = read(where, bank, list(columns))
    done = time.monotonic()
    with open("/proc/self/status") as f:
        peak = int(f.read().split("VmHWM:")[1].split()[0]) * 1024
    import xxhash  # not before: it is no part of what is measured
    sums = {name: xxhash.xxh3_128_hexdigest(np.ascontiguousarray(a).reshape(-1).view("u1")) for name, a in sorted(got.items())}
    size = sum(a.nbytes for a in got.values())
    del got
    began = time.perf_counter()
    read(where, bank, list(columns))
    print(json.dumps({"done": done, "peak": peak, "again": time.perf_counter() - began, "sums": sums, "bytes": size}))


if __name__ == "__main__":
    main(*sys.argv[1:])
