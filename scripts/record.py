#!/usr/bin/env python3
"""Keeps what was tried, and what came of it, in docs/reliability.md.

    record.py TARGET WHAT COUNTED WRONG

TARGET is the one of make that repeats the line. A line with the same TARGET and WHAT is replaced. The version and the
machine are looked up here.
"""
from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "reliability.md"
BEGIN = "<!-- from here on written by scripts/record.py -->\n"
HEAD = 2  # lines of the table above its rows


def git(*argv: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *argv], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def version() -> str:
    """The commit that is checked out, with a + where the sources are not what it has."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!integration/RESULTS.md")
    return (git("rev-parse", "--short", "HEAD") or "no commit") + ("+" if changed else "")


def machine() -> str:
    """Processors and kernel, for the table here and for integration/RESULTS.md."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}, Linux {os.uname().release.split('-')[0]}"


def record(target: str, what: str, counted: str, wrong: int) -> None:
    """Put a line into the table, in the place of the one about the same thing."""
    cells = [f"`make {target}`", what, counted, str(wrong), datetime.date.today().isoformat(), version(), machine()]
    row = "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
    above, _, below = TABLE.read_text().partition(BEGIN)
    lines = below.splitlines()
    rows = [r for r in lines[HEAD:] if r.split(" | ")[:2] != row.split(" | ")[:2]] + [row]
    part = TABLE.with_suffix(".part")
    part.write_text(above + BEGIN + "\n".join(lines[:HEAD] + sorted(rows)) + "\n")
    part.rename(TABLE)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    record(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
