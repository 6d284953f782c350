#!/usr/bin/env python3
"""Time and memory of hipofs beside oxihipo, on one machine, in one run, with equal checksums.

    bench.py [--events N] [--runs N]

Needs build/hipofs (make build) and ../shared/bench/mkdst.py, whose file is kept in build/. Each figure is the
median of the runs, which alternate between the two readers; the source is in the kernel's page cache for both.
A pair whose checksums differ is not printed, and the status is then 1.

  column   from the start of the hipofs command to the array of REC::Particle/px and its offsets in NumPy;
           beside a process that imports oxihipo and reads the same column
  bank     the same for the 28 columns of REC::Calorimeter
  second   the second read of that column inside the same process
  memory   the peak of the serving hipofs plus that of the reader, after the first read; beside oxihipo's process
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HIPOFS = ROOT / "build" / "hipofs"
WRITER = Path(os.environ.get("HIPOFS_SHARED", ROOT.parent / "shared")) / "bench" / "mkdst.py"
TASKS = {"column": ("REC::Particle", ["px"]), "bank": ("REC::Calorimeter", [])}


# ---------------------------------------------------------------- one reader, a process of its own

def read_hipofs(mount: str, bank: str, columns: list[str]) -> dict:
    import numpy as np
    folder = f"{mount}/{bank}"
    if not columns:
        with open(f"{folder}/schema.json") as f:
            columns = [c["name"] for c in json.load(f)["columns"]]
    return {c: np.load(f"{folder}/{c}.npy") for c in [*columns, "offsets"]}


def read_oxihipo(source: str, bank: str, columns: list[str]) -> dict:
    import oxihipo
    (_, offsets, values), = oxihipo.open(source).read_columns([(bank, columns)])
    return {name: array for name, array, _ in values} | {"offsets": offsets}


def child(reader: str, where: str, task: str) -> None:
    """Read twice; print when the first read was done, how long the second took, and what was read."""
    import hashlib
    bank, columns = TASKS[task]
    read = {"hipofs": read_hipofs, "oxihipo": read_oxihipo}[reader]
    got = read(where, bank, columns)
    done = time.monotonic()
    peak = peak_of(os.getpid())
    sums = {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in sorted(got.items())}
    del got
    again = time.perf_counter()
    second = read(where, bank, columns)
    again = time.perf_counter() - again
    same = all(hashlib.sha256(a.tobytes()).hexdigest() == sums[name] for name, a in second.items())
    print(json.dumps({"done": done, "peak": peak, "second": again, "sums": sums, "same": same}))


def read_in_child(reader: str, where: str, task: str) -> dict:
    done = subprocess.run([sys.executable, __file__, "--child", reader, where, task], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


# ---------------------------------------------------------------- one run of each

def peak_of(pid: int) -> int:
    """Peak resident memory of a process, bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def run_hipofs(source: str, task: str, env: dict[str, str]) -> dict:
    from harness import daemons
    with tempfile.TemporaryDirectory(prefix="hipofs-bench-") as point:
        began = time.monotonic()
        subprocess.run([HIPOFS, "--no-index", source, point], check=True, env=env)
        try:
            got = read_in_child("hipofs", point, task)
            got["memory"] = got["peak"] + peak_of(daemons(point)[0])
        finally:
            subprocess.run([HIPOFS, "umount", point], check=True, env=env)
    return got | {"first": got["done"] - began}


def run_oxihipo(source: str, task: str) -> dict:
    began = time.monotonic()
    got = read_in_child("oxihipo", source, task)
    return got | {"first": got["done"] - began, "memory": got["peak"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    a = parser.parse_args()

    source = ROOT / "build" / f"bench-{a.events}.hipo"
    if not source.exists():
        if not WRITER.exists():
            print(f"bench: {WRITER} is missing; it writes the file to read", file=sys.stderr)
            return 1
        part = source.with_suffix(".part")
        subprocess.run([sys.executable, WRITER, part, "--events", str(a.events)], check=True)
        part.rename(source)
    subprocess.run(["cat", source], stdout=subprocess.DEVNULL, check=True)  # into the page cache, for both

    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    print(f"{datetime.date.today()}  {os.cpu_count()} x {model}, Linux {platform.release()}")
    hipofs_version = subprocess.run([HIPOFS, "version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    print(f"{hipofs_version}; oxihipo {version('oxihipo')}, numpy {version('numpy')}, Python {platform.python_version()}")
    print(f"{a.events} events, {source.stat().st_size / 1e6:.0f} MB, medians of {a.runs}\n")
    print(f"{'':24}{'hipofs':>12}{'oxihipo':>12}{'ratio':>8}")

    def row(label: str, ours: float, theirs: float, unit: str) -> None:
        print(f"{label:24}{ours:12.4g}{theirs:12.4g}{ours / theirs:8.3g}  {unit}")

    wrong = 0
    with tempfile.TemporaryDirectory(prefix="hipofs-bench-") as home:
        env = {k: v for k, v in os.environ.items() if not k.startswith("HIPOFS_")} | {"XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home}
        for task, (bank, columns) in TASKS.items():
            ours, theirs = [], []
            for _ in range(a.runs):
                ours.append(run_hipofs(str(source), task, env))
                theirs.append(run_oxihipo(str(source), task))
            if any(r["sums"] != ours[0]["sums"] or not r["same"] for r in ours + theirs):
                print(f"{task}: the checksums differ; no figure is given", file=sys.stderr)
                wrong = 1
                continue
            what = f"{bank}/{columns[0]}" if columns else bank
            median = lambda runs, key: statistics.median(r[key] for r in runs)
            print(f"{what}: {len(ours[0]['sums']) - 1} columns and offsets, checksums equal")
            row("  first read", median(ours, "first"), median(theirs, "first"), "s")
            row("  second read", median(ours, "second"), median(theirs, "second"), "s")
            row("  peak memory", median(ours, "memory") / 1e6, median(theirs, "memory") / 1e6, "MB")
    return wrong


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
