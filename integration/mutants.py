#!/usr/bin/env python3
"""Mutants of small files, each mounted beside a good file, and what is served then.

    mutants.py [--count N] [--seed N]

Needs build/hipofs (make build). A mutant is a file of hipo/testdata/sweep with one byte set to another value, or cut short;
verdicts.tsv has what a reference decoder says of each. Mounting the two as one chain may be refused, in one sentence and
with the status that is due. What is served of the mutant is what a strict decode of it gives, or of the undamaged file
where the damage does not reach. Whatever it is, the good file has its golden bytes, also where the mutant is to be left
out; the daemon lives until it is told to end, and stays in its memory.

The mutants that are decoded without a mount are those of hipo/sweep_test.go and materialize/sweep_test.go, the latter also
of indexes; with HIPOFS_SWEEP=1 all of them, and their counts go to docs/reliability.md.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness import ROOT, Mount, banks, data, digest, environment, golden, run

SWEEP = ROOT / "hipo" / "testdata" / "sweep"
GOOD = "codecs/tag10_lz4_percolumn.hipo"   # its banks have ids of their own
BUDGET, ALLOWANCE = 1 << 20, 64 << 20      # bytes of memory; what may be resident beyond
VALUES = 8
REFUSED = {3, 4}                           # statuses: a source is damaged, dictionaries are in conflict


def mutant(content: bytes, i: int) -> bytes:
    """Mutant i of a file, in the order of verdicts.tsv."""
    at, value = divmod(i, VALUES)
    if at >= len(content):
        return content[:i - VALUES * len(content)]
    old = content[at]
    new = (0x00, 0xFF, old ^ 0x01, old ^ 0x80, (old + 1) & 0xFF, (old - 1) & 0xFF, 0x7F, old ^ 0x10)[value]
    return content[:at] + bytes([new]) + content[at + 1:]


def verdicts() -> dict[str, list[str]]:
    """What the reference decoder says of each mutant of each file."""
    out: dict[str, list[str]] = {}
    for line in (SWEEP / "verdicts.tsv").read_text().splitlines():
        first, second, *_ = line.split("\t")
        if first == "file":
            name = second
            out[name] = []
        else:
            out[name] += [second] * int(first)
    return out


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def printed(name: str) -> str:
    """A name of schema.json as the reference decoder prints it, also one that is not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def served(tree: Path) -> tuple[list[str], bool]:
    """A line for each column that can be opened, as the reference decoder prints them; and whether that is all."""
    rows, whole = [], True
    try:
        tags = np.load(tree / ".hipofs/event_tags.npy")
        rows.append(f"@event\ttag\tU\t1\t{len(tags)}\t{digest(tags)}\t{digest(np.arange(len(tags) + 1, dtype='<i8'))}")
    except OSError:
        whole = False
    folders = [(tree / b["folder"], b["name"]) for b in json.loads((tree / ".hipofs/dictionary.json").read_text())]
    try:
        nodes = {"@" + n.replace(".", "/"): tree / ".nodes" / n for n in os.listdir(tree / ".nodes")}
    except OSError:
        nodes, whole = {}, False
    for folder, name in folders + [(nodes[n], n) for n in sorted(nodes)]:
        try:
            schema = json.loads((folder / "schema.json").read_text())
            offsets = digest(np.load(folder / "offsets.npy"))
        except OSError:
            whole = False
            continue
        for c in schema["columns"]:
            try:
                array = np.load(folder / c["file"])
            except OSError:
                whole = False
                continue
            rows.append(f"{printed(name)}\t{printed(c['name'])}\t{c['type']}\t{c['length']}\t{len(array)}\t{digest(array)}\t{offsets}")
    return rows, whole


@dataclass
class Tally:
    served: int = 0
    partly: int = 0
    refused: int = 0
    slowest: float = 0
    peak: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (f"{self.served + self.partly + self.refused} mutants: {self.served} served, {self.partly} in part, {self.refused} "
                f"refused, {len(self.wrong)} wrong; resident at most {self.peak >> 20} MiB, the slowest took {self.slowest:.1f} s")


class Mounts:
    """A place where mutants are mounted, one after the other."""

    def __init__(self, binary: Path, folder: Path):
        self.env = environment(folder)
        self.mutant, self.point = folder / "mutant.hipo", folder / "mnt"
        self.point.mkdir()
        self.good = data(GOOD)
        self.mount = Mount(binary, self.point, self.env)
        self.golden = [r for r in golden()[GOOD] if not r.bank.startswith("@")]
        self.tally = Tally()
        self.original: dict[str, list[str]] = {}

    def undamaged(self, name: str) -> list[str]:
        """What is served of the file that a mutant was made of."""
        if name not in self.original:
            self.mutant.write_bytes((SWEEP / name).read_bytes())
            self.mount.start([self.good, self.mutant], (f"--memory={BUDGET}", "--no-index"))
            self.original[name], whole = served(self.point / ".files/mutant.hipo")
            assert whole, name
            self.mount.umount()
        return self.original[name]

    def good_is_right(self) -> None:
        tree = self.point / ".files" / self.good.name
        for r in self.golden:
            assert digest(np.load(tree / f"{r.bank}/{r.column}.npy")) == r.content, f"{r.bank}/{r.column} of the good file"
            assert digest(np.load(tree / f"{r.bank}/offsets.npy")) == r.offsets, f"offsets of {r.bank} of the good file"

    def leave(self) -> None:
        """End the mount, whose daemon must have lived."""
        self.tally.peak = max(self.tally.peak, peak := self.mount.peak())
        self.mount.umount()
        assert peak <= BUDGET + ALLOWANCE, f"{peak >> 20} MiB are resident"

    def attempt(self, name: str, i: int, verdict: str) -> None:
        original = self.undamaged(name)
        self.mutant.write_bytes(mutant((SWEEP / name).read_bytes(), i))
        began = time.monotonic()
        try:
            done = run(self.mount.binary, f"--memory={BUDGET}", "--no-index", "-q", self.good, self.mutant, self.point, ok=False, env=self.env)
            if done.returncode == 0:
                rows, whole = served(self.point / ".files/mutant.hipo")
                if whole and short("\n".join(rows) + "\n") == verdict:
                    self.tally.served += 1
                else:
                    self.tally.partly += 1
                    wrong = [r for r in rows if r not in original and short(r) not in verdict]
                    assert not wrong, f"the verdict is {verdict}, and this is served: {wrong[:2]}"
            else:
                said = done.stderr.splitlines()
                assert done.returncode in REFUSED and len(said) == 1 and said[0].startswith("hipofs: "), \
                    f"status {done.returncode}: {done.stderr!r}"
                assert "panic" not in done.stderr and "internal error" not in done.stderr, done.stderr
                self.tally.refused += 1
                if done.returncode == 4:  # no skipping of dictionaries
                    return
                run(self.mount.binary, f"--memory={BUDGET}", "--no-index", "-q", "--on-error=skip", self.good, self.mutant,
                    self.point, env=self.env)
            self.good_is_right()
            told = (self.point / ".hipofs/errors.json").read_text()
            assert "panic" not in told and "internal error" not in told, told
            self.leave()
        except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as e:
            self.tally.wrong.append(f"{name}, mutant {i} (byte {i // VALUES}): {type(e).__name__}: {e}")
            self.mount.discard()
        self.tally.slowest = max(self.tally.slowest, time.monotonic() - began)

    def attempt_many(self, count: int, seed: int) -> Tally:
        rng, of = random.Random(seed), verdicts()
        every = [(name, i) for name in sorted(of) for i in range(len(of[name]))]
        try:
            for name, i in rng.sample(every, count):
                self.attempt(name, i, of[name][i])
        finally:
            self.mount.discard()
        return self.tally


def sweep(package: str, test: str) -> tuple[str, int]:
    """Run the full sweep of a package; what it counted, and how many tests failed."""
    done = subprocess.run(["go", "test", "-count=1", "-timeout=2h", "-v", "-run", f"^{test}$", f"./{package}"], cwd=ROOT,
                          env=os.environ | {"HIPOFS_SWEEP": "1"}, capture_output=True, text=True)
    counts = [int(n) for n in re.findall(r": (\d+) mutants", done.stdout)]
    wrong = len(re.findall(r"_test\.go:\d+: (?!\d+ mutants)", done.stdout)) + (done.returncode != 0)
    if wrong:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
    return f"{sum(counts):,} mutants of {len(counts)} files", wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    a = parser.parse_args()
    sys.path.insert(0, str(ROOT / "scripts"))
    from record import record
    failed = 0
    for what, package, test in (
            ("every byte of a file set to 8 values, and every length: decoded", "hipo", "TestDamageGivesAnErrorOrWhatAStrictDecodeGives"),
            ("every byte of a file set to 8 values, and every length: served", "materialize", "TestNoMutantServesWrongColumns"),
            ("every byte of an index set to 8 values, and every length, as it is and with the right checksum", "materialize",
             "TestNoMutantOfAnIndexServesWrongColumns")):
        counted, wrong = sweep(package, test)
        print(f"{what}: {counted}, {wrong} wrong", flush=True)
        record("mutants", what, counted, wrong)
        failed += wrong
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        tally = Mounts(ROOT / "build" / "hipofs", Path(folder)).attempt_many(a.count, a.seed)
    print(f"seed {a.seed}", tally, *tally.wrong, sep="\n")
    record("mutants", "mutants mounted beside a good file", str(tally), len(tally.wrong))
    return 1 if failed or tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
