"""One of the many readers of a soak: reads columns in every way a program does and compares every byte, until told to end.

    soakreader.py ORACLE MOUNT SEED

ORACLE is a folder with the content of each column, without a header, in the shape of the mount. It ends when
standard input does, and prints one line of JSON: reads, bytes, and what was wrong, the first ten of it in words.
"""
from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import sys
from pathlib import Path

import numpy as np

WHOLE = 8 << 20  # bytes of a column that is read from end to end; of a larger one, pieces


def pieces(rng: random.Random, size: int) -> list[tuple[int, int]]:
    """Some places of a column: position and length, the very end among them."""
    out = []
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(size)
        out.append((at, min(size - at, rng.choice((1, 333, 4096, 65537, 1 << 20)))))
    return [*out, (max(0, size - 100), min(size, 100))]


def by_load(path: Path, rng: random.Random, size: int):
    """np.load, the whole array; of a large column its mapped pieces."""
    if size > WHOLE:
        yield from by_map(path, rng, size)
        return
    array = np.load(path)
    yield 0, size, array.tobytes()


def by_map(path: Path, rng: random.Random, size: int):
    """np.load with mmap_mode, pieces of it."""
    array = np.load(path, mmap_mode="r")
    content = array.reshape(-1).view("u1")
    for at, n in pieces(rng, size):
        yield at, n, content[at:at + n].tobytes()


def by_pread(path: Path, rng: random.Random, size: int):
    """pread at random places, by a program that knows where the content begins."""
    fd = os.open(path, os.O_RDONLY)
    try:
        header = os.fstat(fd).st_size - size
        for at, n in pieces(rng, size):
            got = b""
            while len(got) < n:
                piece = os.pread(fd, n - len(got), header + at + len(got))
                if not piece:
                    break
                got += piece
            yield at, n, got
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # so that the next reader asks hipofs, not the kernel
    finally:
        os.close(fd)


def places(mount: Path, name: str, rng: random.Random) -> Path:
    """Where a program may read a column: in the mount or, with a cache folder, in the file that it names."""
    path = mount / name
    way = rng.randrange(4)
    if way == 0:
        with contextlib.suppress(OSError):
            return Path(os.fsdecode(os.getxattr(path, "user.hipofs.realpath")))
    if way == 1 and os.path.isdir(mount / ".hipofs/links"):
        return mount / ".hipofs/links" / name
    return path


def main() -> None:
    oracle, mount, rng = Path(sys.argv[1]), Path(sys.argv[2]), random.Random(int(sys.argv[3]))
    names = sorted((str(p.relative_to(oracle)), p.stat().st_size) for p in oracle.rglob("*.npy"))
    reads, total, wrong = {}, 0, []
    while not select.select([sys.stdin], [], [], 0)[0]:
        name, size = rng.choice(names)
        way = rng.choice((by_load, by_map, by_pread, by_pread))
        path = mount / name
        try:
            path = places(mount, name, rng)
            expected = os.open(oracle / name, os.O_RDONLY)
            try:
                for at, n, got in way(path, rng, size):
                    if got != os.pread(expected, n, at):
                        wrong.append(f"{path}: {way.__name__} of {n} bytes at {at} gives {len(got)} bytes, not the right ones")
                    total += n
            finally:
                os.close(expected)
        except (OSError, ValueError) as e:
            if ".hipofs" in path.parts and isinstance(e, OSError) and e.errno == errno.ENOSPC:
                # All that fills the cache folder is in use, as every file is for a minute after it was asked for.
                reads["refused links"] = reads.get("refused links", 0) + 1
                continue
            wrong.append(f"{path}: {way.__name__}: {e}")
        kind = way.__name__ + ("" if path == mount / name else ", links" if ".hipofs" in path.parts else ", real path")
        reads[kind] = reads.get(kind, 0) + 1
    print(json.dumps({"reads": reads, "bytes": total, "wrong": len(wrong), "first": wrong[:10]}))


main()
