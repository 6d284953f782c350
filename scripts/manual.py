#!/usr/bin/env python3
"""Puts the help texts of build/hipofs into docs/manual.md, and figures of integration/RESULTS.md into README.md.

    manual.py            writes both pages
    manual.py --print    prints the manual as it should be
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANUAL, README, RESULTS = ROOT / "docs/manual.md", ROOT / "README.md", ROOT / "integration/RESULTS.md"
MARK = "<!-- commands -->\n"
SPEED = re.compile(r"(<!-- speed: .* -->\n).*(<!-- end -->\n)", re.DOTALL)

# Lines of RESULTS.md, one that begins with … with the line that it belongs to; what README.md says; what is beside it.
LINES = [
    ("one column, beside oxihipo", "one column, first", "oxihipo"),
    ("one column, beside oxihipo … again in the same process", "again, in the same process", "oxihipo"),
    ("one column, beside hipopybind", "one column, first", "hipopybind"),
    ("28 columns and offsets", "a bank of 28 columns, first", "oxihipo"),
    ("28 columns and offsets … again in the same process", "again, in the same process", "oxihipo"),
    ("all REC banks", "all REC banks, first", "oxihipo"),
    ("all REC banks … again in the same process", "again, in the same process", "oxihipo"),
    ("mmap of a column that has been read, page cache, 250 MB", "a mapped column that has been read", "a plain file"),
    ("mmap of a column that has been read, page cache, 250 MB … by its real path, 250 MB", "the same from a cache folder", "a plain file"),
    ("mount and ls of 1000 indexed files of 194 banks; oxihipo opens 100", "1,000 indexed files, mounted and listed", "oxihipo opens 100"),
    ("index of a DST", "an index, beside its file", ""),
]


def told(*words: str) -> str:
    return subprocess.run([ROOT / "build" / "hipofs", "help", *words], check=True, capture_output=True, text=True).stdout


def manual() -> str:
    """The manual with the help texts as they are now."""
    listed = re.search(r"^Commands .*:\n((?:    .*\n)+)", told(), re.MULTILINE)[1]
    commands = [line.split()[0] for line in listed.splitlines()]
    texts = [f"\n### hipofs {c}\n\n```\n{told(c)}```\n" for c in commands if c != "help"]
    return MANUAL.read_text().split(MARK)[0] + MARK + "".join(texts)


def results() -> dict[str, tuple[str, str]]:
    """The lines of RESULTS.md: what hipofs took, and what is beside it."""
    rows, above = {}, ""
    for line in RESULTS.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| what", "| ---")):
            what, ours, beside = (cell.strip() for cell in line.split("|")[1:4])
            if what.startswith("… "):
                what = f"{above} {what}"
            else:
                above = what
            rows[what] = ours, beside
    return rows


def readme() -> str:
    """README.md with the figures of RESULTS.md; a line that is not there yet has a question mark."""
    rows = results()
    table = "| what is read | hipofs | beside it |\n| --- | --- | --- |\n"
    for what, says, beside in LINES:
        ours, theirs = rows.get(what, ("?", "?"))
        table += f"| {says} | {ours} | {theirs} {beside} |\n".replace("  ", " ")
    when, versions, run = (line.strip() for line in RESULTS.read_text().split("\n\n")[2].splitlines()[:3])
    return SPEED.sub(lambda m: f"{m[1]}\n{table}\n{run}. {when}.\n{versions}.\n{m[2]}", README.read_text())


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(manual(), end="")
    else:
        MANUAL.write_text(manual())
        README.write_text(readme())
