"""One reader of the benchmark, a process of its own: reads columns to NumPy, says when that was done and what they are.

    benchreader.py [--use|--once] hipofs|mapped|oxihipo|hipopybind WHERE BANK [COLUMN...]

WHERE is a mount or a file. BANK may be a prefix and `*`; no columns means all. Prints JSON: the clock when everything
was read, this process's peak memory then, the seconds that reading again took, and a checksum of each array. `mapped`
is hipofs with mmap_mode="r": nothing is read of an array until it is used. With --use, each byte of each array has been
used when the clock is read, whoever reads. With --once, nothing is read again.
"""
from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

Arrays = dict[str, np.ndarray]  # by bank and column; "offsets" is a column


def read_hipofs(mount: str, bank: str, columns: list[str], mmap_mode: str | None = None) -> Arrays:
    banks = [b for b in os.listdir(mount) if b.startswith(bank[:-1]) and "." not in b] if bank.endswith("*") else [bank]
    got = {}
    for b in banks:
        names = columns
        if not names:
            with open(f"{mount}/{b}/schema.json") as f:
                names = [c["name"] for c in json.load(f)["columns"]]
        for c in [*names, "offsets"]:
            got[f"{b}/{c}"] = np.load(f"{mount}/{b}/{c}.npy", mmap_mode=mmap_mode)
    return got


def read_mapped(mount: str, bank: str, columns: list[str]) -> Arrays:
    return read_hipofs(mount, bank, columns, "r")


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


def use(got: Arrays) -> Arrays:
    """The arrays, each byte of which has been read: the exclusive or of all values, taken for whole numbers."""
    for a in got.values():
        np.bitwise_xor.reduce(a.reshape(-1).view(f"u{a.itemsize}"))
    return got


def main(*argv: str) -> None:
    used, once = argv[0] == "--use", argv[0] == "--once"
    reader, where, bank, *columns = argv[used or once:]
    by = {"hipofs": read_hipofs, "mapped": read_mapped, "oxihipo": read_oxihipo, "hipopybind": read_hipopybind}[reader]

    def read() -> Arrays:
        got = by(where, bank, columns)
        return use(got) if used else got

    got = read()
    done = time.monotonic()
    with open("/proc/self/status") as f:
        peak = int(f.read().split("VmHWM:")[1].split()[0]) * 1024
    import xxhash  # not before: it is no part of what is measured
    sums = {name: xxhash.xxh3_128_hexdigest(np.ascontiguousarray(a).reshape(-1).view("u1")) for name, a in sorted(got.items())}
    size = sum(a.nbytes for a in got.values())
    del got
    began = time.perf_counter()
    if not once:
        read()
    print(json.dumps({"done": done, "peak": peak, "again": time.perf_counter() - began, "sums": sums, "bytes": size}))


if __name__ == "__main__":
    main(*sys.argv[1:])
