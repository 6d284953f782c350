"""One reader among many: waits for the start, reads random slices of columns, compares every byte.

    reader.py ORACLE MOUNT --seed N --slices N     random slices of random columns, read() and mmap
    reader.py ORACLE MOUNT --whole COLUMN          one column from end to end
    reader.py ORACLE MOUNT --seed N --rounds N --columns N
                                                   columns, each by 4 KiB reads at random, 1 MiB reads and mmap

ORACLE is a folder with the content of each column, without a header, in the shape of the mount. The
start is the end of standard input. A difference ends with status 1 and a line that says where.
"""
from __future__ import annotations

import argparse
import mmap
import os
import random
import sys
from pathlib import Path


def differs(path: Path, at: int, got: bytes, want: bytes) -> None:
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        sys.exit(f"{path}: {len(got)} bytes at {at}, {len(want)} expected; they differ from byte {at + first} on")


def small(fd: int, size: int, rng: random.Random):
    """(offset, bytes) of 4 KiB reads at random."""
    for _ in range(10):
        at = rng.randrange(size)
        yield at, os.pread(fd, 4096, at)


def large(fd: int, size: int, _: random.Random):
    """(offset, bytes) of 1 MiB reads from end to end."""
    at = 0
    while piece := os.pread(fd, 1 << 20, at):
        yield at, piece
        at += len(piece)


def mapped(fd: int, size: int, _: random.Random):
    """(offset, bytes) of the file mapped into memory."""
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as whole:
        yield 0, whole[:]


def check_column(path: Path, want: bytes, rng: random.Random, mode) -> None:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    header = size - len(want)
    if header <= 0 or header % 64:
        sys.exit(f"{path}: {size} bytes, {len(want)} of content expected")
    reached = 0
    for at, got in mode(fd, size, rng):
        reached = max(reached, at + len(got))
        skip = max(0, header - at)
        differs(path, at, got[skip:], want[max(0, at - header):max(0, at + len(got) - header)])
        if len(got) < min(4096, size - at):
            sys.exit(f"{path}: {len(got)} bytes at {at} of {size}")
    if mode is not small and reached != size:
        sys.exit(f"{path}: {reached} bytes, not {size}")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("oracle", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slices", type=int, default=0)
    parser.add_argument("--whole")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--columns", type=int, default=0)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    names = [a.whole] if a.whole else sorted(str(p.relative_to(a.oracle)) for p in a.oracle.rglob("*.npy"))
    sys.stdin.buffer.read()

    for _ in range(a.rounds):
        for name in rng.sample(names, min(a.columns, len(names))):
            for mode in rng.sample((small, large, mapped), 3):
                check_column(a.mount / name, (a.oracle / name).read_bytes(), rng, mode)

    for _ in range(1 if a.whole else a.slices):
        name = rng.choice(names)
        want, path = (a.oracle / name).read_bytes(), a.mount / name
        fd = os.open(path, os.O_RDONLY)
        size = os.fstat(fd).st_size
        header = size - len(want)
        if header <= 0 or header % 64:
            sys.exit(f"{path}: {size} bytes, {len(want)} of content expected")
        lo = 0 if a.whole else rng.randrange(len(want))
        hi = len(want) if a.whole else min(len(want), lo + rng.choice((1, 333, 4096, 65537, 1 << 20)))
        if a.whole or rng.random() < 0.7:
            got = b""
            while len(got) < hi - lo:
                piece = os.pread(fd, hi - lo - len(got), header + lo + len(got))
                if not piece:
                    break
                got += piece
            differs(path, lo, got, want[lo:hi])
        else:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as whole_file:
                differs(path, lo, whole_file[header + lo:header + hi], want[lo:hi])
        if not a.whole:  # so that the next reader of this file asks hipofs again, not the kernel
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


main()
