"""One reader of a finished file, a process of its own.

    benchserve.py map|read FILE

Prints JSON: the file's bytes, the sum of its 64-bit words, and the least seconds of five times that it took to map the
file anew and add them up, or of one time to read it in pieces of 1 MiB into the same memory.
"""
from __future__ import annotations

import json
import mmap
import os
import sys
import time

import numpy as np

PIECE = 1 << 20


def total(b: bytes | mmap.mmap) -> int:
    return int(np.frombuffer(b, "<u8", len(b) // 8).sum(dtype="u8"))


def mapped(path: str) -> tuple[float, int]:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            added = total(m)
        took.append(time.perf_counter() - began)
    return min(took), added


def read(path: str) -> tuple[float, int]:
    piece, took, added = bytearray(PIECE), 0.0, 0
    view = memoryview(piece)
    view[:] = bytes(PIECE)  # the memory is there
    with open(path, "rb", buffering=0) as f:
        while True:
            began = time.perf_counter()
            n = f.readinto(piece)
            took += time.perf_counter() - began
            if n == 0:
                return took, added & (1 << 64) - 1
            assert n % 8 == 0 or n < PIECE, "a word is cut"
            added += total(bytes(view[:n]))


if __name__ == "__main__":
    how, path = sys.argv[1:]
    seconds, added = {"map": mapped, "read": read}[how](path)
    print(json.dumps({"bytes": os.path.getsize(path), "sum": added, "seconds": seconds}))
