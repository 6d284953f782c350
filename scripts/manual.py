#!/usr/bin/env python3
"""Puts the help texts of build/hipofs into docs/manual.md, below the mark: manual.py [--print]"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANUAL = ROOT / "docs" / "manual.md"
MARK = "<!-- commands -->\n"


def told(*words: str) -> str:
    return subprocess.run([ROOT / "build" / "hipofs", "help", *words], check=True, capture_output=True, text=True).stdout


def manual() -> str:
    """The page with the help texts as they are now."""
    listed = re.search(r"^Commands .*:\n((?:    .*\n)+)", told(), re.MULTILINE)[1]
    commands = [line.split()[0] for line in listed.splitlines()]
    texts = [f"\n### hipofs {c}\n\n```\n{told(c)}```\n" for c in commands if c != "help"]
    return MANUAL.read_text().split(MARK)[0] + MARK + "".join(texts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(manual(), end="")
    else:
        MANUAL.write_text(manual())
