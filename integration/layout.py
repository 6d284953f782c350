"""Where the parts of a record lie in its file, and what a column is there, by format.md alone (sections 3 to 5).

Shares nothing with hipofs and inflates no event: lengths come from headers and directories.
"""
from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import NamedTuple

import lz4.block
import numpy as np
import zstandard

from harness import records

CODECS = {5: "zstd", 6: "lz4", 7: "lz4", 8: "zstd", 9: "lz4", 10: "lz4", 11: "gzip", 12: "gzip", 13: "none", 14: "none"}
BY_BANK = (5, 6, 9, 11, 13)


class Stream(NamedTuple):
    """One stored stream of a split record; off and length in the file."""
    key: tuple[int, int]   # group and item of its bank
    column: int            # -1: the whole bank
    off: int
    length: int
    inflated: int
    width: int             # of the values whose bytes are stored in planes; 1: as they are


class Split(NamedTuple):
    """A split record: where its head (headers and directory) ends, and its streams."""
    off: int
    head: int
    codec: str
    streams: list[Stream]
    sizes: dict[tuple[int, int], np.ndarray]   # bytes of each bank in each event


def splits(path: Path) -> list[Split]:
    """Every record of an undamaged file whose records are all split."""
    out = []
    with open(path, "rb") as f:
        for r in records(path):
            f.seek(r.at)
            head = f.read(76)
            dir_in, = struct.unpack_from("<I", head, 68)
            out.append(_split(head + f.read(dir_in), r.at, r.tag))
    return out


def _split(b: bytes, at: int, tag: int) -> Split:
    version, banks, events, dir_in, dir_out = struct.unpack_from("<B3xIIII", b, 56)
    directory = lz4.block.decompress(b[76:76 + dir_in], uncompressed_size=dir_out)
    pos = 0

    def take(dtype: str, n: int) -> np.ndarray:
        nonlocal pos
        a = np.frombuffer(directory, dtype, n, pos)
        pos += a.nbytes
        return a

    keys = [(int(g), int(i)) for g, i, _ in take("<u2,u1,u1", banks)]
    if tag in BY_BANK:
        columns = np.zeros(banks, int)
        stored, inflated = take("<u4", banks), take("<u4", banks)
    else:
        columns = take("<u2", banks).astype(int)
    pos += 4 * events + events * ((banks + 7) // 8)
    sizes = take("<u4", banks * events).reshape(banks, events)
    total = int(np.maximum(columns, 1).sum())
    if tag not in BY_BANK:
        stored, inflated = take("<u4", 2 * total).reshape(total, 2).T
    encoding = np.zeros(total, "u1")
    if tag not in BY_BANK and version == 3:
        pos += banks
        encoding = take("u1", total)
    off, n, streams = at + 76 + dir_in, 0, []
    for key, c in zip(keys, columns):
        for k in range(max(1, c)):
            width = int(encoding[n] >> 4) if encoding[n] & 15 else 1
            streams.append(Stream(key, k if c else -1, off, int(stored[n]), int(inflated[n]), width))
            off += int(stored[n])
            n += 1
    return Split(at, 76 + dir_in, CODECS[tag], streams, dict(zip(keys, sizes)))


def inflate(split: Split, stream: Stream, stored: bytes) -> bytes:
    """The values of a stream, from its stored bytes."""
    if stream.inflated == 0:
        return b""
    out = {
        "none": lambda: stored,
        "lz4": lambda: lz4.block.decompress(stored, uncompressed_size=stream.inflated),
        "gzip": lambda: gzip.decompress(stored),
        "zstd": lambda: zstandard.ZstdDecompressor().decompress(stored, max_output_size=stream.inflated),
    }[split.codec]()
    if stream.width > 1:  # all first bytes, all second bytes, …
        n = len(out) // stream.width
        out = np.frombuffer(out, "u1", n * stream.width).reshape(stream.width, n).T.tobytes() + out[n * stream.width:]
    return out
