#!/usr/bin/env python3
"""Runs each fuzz target in turn, each for the same time, and keeps what came of it.

    fuzz.py TIME [TARGET...]      TIME as go test has it: 30s, 3m

A finding ends its target at once. Go keeps the input below testdata/fuzz of the package, where every later go test
tries it again; make an ordinary test of it when it is mended. The status is then 1. Without TARGETs all of them run,
and docs/reliability.md gets its line.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys

from record import ROOT, record


def targets() -> list[tuple[str, str]]:
    """Package and name of every fuzz target."""
    out = []
    packages = subprocess.run(["go", "list", "./..."], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for package in packages:
        listed = subprocess.run(["go", "test", "-list", "^Fuzz", package], cwd=ROOT, check=True, capture_output=True, text=True)
        out += [(package, name) for name in listed.stdout.split() if name.startswith("Fuzz")]
    return out


def main(duration: str, only: list[str]) -> int:
    total, findings, ran = 0, [], 0
    for package, name in targets():
        if only and name not in only:
            continue
        done = subprocess.run(["go", "test", "-run", "^$", "-fuzz", f"^{name}$", "-fuzztime", duration,
                               "-fuzzminimizetime", "100x", "-parallel",
                               os.environ.get("PARALLEL", "1"), package], cwd=ROOT, capture_output=True, text=True)
        execs = max(map(int, re.findall(r"execs: (\d+)", done.stdout)), default=0)
        print(f"{package.rpartition('/')[2]:12} {name:20} {execs:12,} {'' if done.returncode == 0 else 'a finding'}", flush=True)
        total, ran = total + execs, ran + 1
        if done.returncode:
            findings.append(name)
            print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", flush=True)
    if not ran:
        sys.exit("fuzz: there is no such target")
    if not only:
        record("fuzz", "fuzz targets", f"{ran} targets, {duration} each: {total:,} runs", len(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
