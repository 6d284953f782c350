"""A small HIPO writer for the tests: uncompressed or LZ4 records, a trailer (format.md, sections 15.1 and 16).

It shares nothing with hipofs, so that what hipofs reads was not written by itself.
"""
from __future__ import annotations

import json
import struct
from pathlib import Path

from lz4 import block

MAGIC = 0xC0DA0100


def structure(group: int, item: int, kind: int, data: bytes) -> bytes:
    return struct.pack("<HBBI", group, item, kind, len(data)) + data


def event(*structures: bytes, tag: int = 0) -> bytes:
    body = b"".join(structures)
    return b"EVNT" + struct.pack("<III", 16 + len(body), tag, 0) + body


def record(events: list[bytes], number: int = 1, word1: int = 0, lz4: bool = False) -> bytes:
    index = struct.pack(f"<{len(events)}I", *map(len, events))
    data = b"".join(events)
    body = index + data
    if lz4:
        body = block.compress(body, store_size=False)
    pad = -len(body) % 4
    body += bytes(pad)
    return struct.pack("<IIIIIIIIIIQQ", (56 + len(body)) // 4, number, 14, len(events), len(index),
                       6 | pad << 24 | 4 << 28, 0, MAGIC, len(data), len(body) // 4 | lz4 << 28, word1, 0) + body


def json_schema(name: str, group: int, item: int, columns: list[str]) -> dict:
    """A schema for write() that carries what a text cannot: any name that is UTF-8. Columns are of type I."""
    return {"name": name, "group": group, "item": item, "entries": [{"name": c, "type": "I"} for c in columns]}


def write(path: Path, schemas: list[str | dict], batches: list[list[bytes]], lz4: bool = False) -> None:
    """A file with a dictionary of schemas, as texts or JSON, and a record of events for each batch."""
    dictionary = record([event(structure(120, 1, 6, json.dumps(s).encode()) if isinstance(s, dict) else
                               structure(120, 2, 6, s.encode("utf-8", "surrogateescape"))) for s in schemas], 0)
    data = [record(b, i + 1, lz4=lz4) for i, b in enumerate(batches)]
    at = [56 + len(dictionary)]
    for r in data:
        at.append(at[-1] + len(r))
    n = len(data)
    index = struct.pack(f"<{n}q{n}i{n}i{2 * n}q", *at[:-1], *map(len, data), *map(len, batches), *[0] * (2 * n))
    trailer = record([event(structure(32111, 1, 11, index))], 0)
    header = b"HIPO" + struct.pack("<IIIIIIIQQii", 1, 14, 0, 0, 0x50000006, len(dictionary), MAGIC, 0, at[-1], 0, 0)
    path.write_bytes(header + dictionary + b"".join(data) + trailer)
