#!/usr/bin/env python3
"""What the reference decoder says about files and about their mutants, for the Go tests.

    oracle.py rows FILE...       FILE TAB bank TAB column TAB letter TAB N TAB rows TAB content TAB offsets,
                                 or FILE TAB error TAB message
    oracle.py mutants FILE...    one line a mutant of each file, in the order of `mutants`:
                                 what `verdict` says of it, with the first 8 hex digits of each SHA-256
    oracle.py table FILE...      the same, as mutants.tsv keeps it (see `table`)

The reference decoder is hipo_ref.py in the folder HIPO_REF, else in shared/check beside the repository. It needs the
packages of requirements.txt there. Nothing here is read by hipofs: tests compare its output with what hipo reads.
"""
import hashlib
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, os.environ.get("HIPO_REF", str(REPOSITORY.parent / "shared" / "check")))

import hipo_ref  # noqa: E402

# The sweep asks about files of a few hundred bytes: what declares more than this is never whole.
hipo_ref.MAX_OUT = 1 << 24

#: What each byte is set to, if it is not that already: `old` is the byte.
VALUES = (
    lambda old: 0x00,
    lambda old: 0xFF,
    lambda old: old ^ 0x01,
    lambda old: old ^ 0x80,
    lambda old: (old + 1) & 0xFF,
    lambda old: (old - 1) & 0xFF,
    lambda old: 0x7F,
    lambda old: old ^ 0x10,
)


def mutants(data: bytes):
    """Every byte set to eight values, byte by byte; then every truncation, longest last."""
    for at, old in enumerate(data):
        for value in VALUES:
            b = bytearray(data)
            b[at] = value(old)
            yield bytes(b)
    for n in range(len(data)):
        yield data[:n]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def verdict(data: bytes) -> str:
    """"error"; or a digest of every row of a strict decode; or, where single banks are damaged and all others are
    whole, "part:" and a digest of each row of those."""
    try:
        f = hipo_ref.HipoFile(data)
        hipo_ref.tables(f)                  # a damaged record ends it here
        f.salvage, before = True, len(f.problems)
        rows = ["\t".join(map(str, row)) for row in hipo_ref.sha_rows(f)]
        if len(f.problems) > before:
            return "part:" + ",".join(map(digest, rows))
    except hipo_ref.HipoError:
        return "error"
    except Exception as e:      # a crash of the reference decoder is an error, too, but worth a look
        print(f"reference decoder: {type(e).__name__}: {e}", file=sys.stderr)
        return "error"
    return digest("\n".join(rows) + "\n")


def table(name: str, data: bytes) -> str:
    """One file's verdicts: its name, its SHA-256, then runs "count verdict", each on a line."""
    lines, last, count = [f"file\t{name}\t{hashlib.sha256(data).hexdigest()}"], None, 0
    for v in map(verdict, mutants(data)):
        if v != last and count:
            lines.append(f"{count}\t{last}")
            count = 0
        last, count = v, count + 1
    lines.append(f"{count}\t{last}")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    command, names = argv[0], argv[1:]
    for name in names:
        data = Path(name).read_bytes()
        if command == "rows":
            try:
                for row in hipo_ref.sha_rows(hipo_ref.HipoFile(data)):
                    print(name, *row, sep="\t")
            except hipo_ref.HipoError as e:
                print(name, "error", str(e).replace("\n", " "), sep="\t")
        elif command == "mutants":
            for v in map(verdict, mutants(data)):
                print(v)
        else:
            print(table(Path(name).name, data))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
