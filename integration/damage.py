#!/usr/bin/env python3
"""Files of every codec with one byte changed at a random place, and what hipofs check says of each.

    damage.py [--count N] [--seed N]

Needs build/hipofs (make build). With an index that was made before, every change must be found. Without one, the format
itself must show it: the share of each codec is told, and kept in docs/reliability.md.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from harness import ROOT, data, environment, run

INDEX = ".hipofs-index"
BATCH = 200  # mutants on disk at once


def subjects() -> list[Path]:
    """The files that are mutated: one of each compression tag and version, and the real ones."""
    codecs = data("codecs/tag00_none_perchunk.hipo").parent
    return [*sorted(codecs.glob("tag[01]*.hipo")),
            *(data(n) for n in ("codecs/java_none.hipo", "codecs/java_gzip.hipo", "codecs/big_endian.hipo",
                                "clas12_recon_proton_80MeV.hipo", "cpp_golden_lz4.hipo", "hipopy_hrec.hipo", "java_ntuple.hipo"))]


class Found(NamedTuple):
    file: str
    mutants: int
    with_index: int
    without: int
    noted: int          # of those that are not found without an index: passed with a note
    missed: list[str]   # with an index


def checked(binary: Path, env: dict[str, str], files: list[Path], *options: str) -> list[dict]:
    """What hipofs check says of each file."""
    done = run(binary, "check", "--json", "-q", *options, *files, ok=False, env=env, timeout=600)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [s["file"] for s in said] == [str(f) for f in files], done.stderr
    assert done.returncode == (0 if all(s["good"] for s in said) else 3), done.stderr
    assert not any("internal error" in f["message"] for s in said for f in s["faults"]), said
    return said


def mutate(binary: Path, env: dict[str, str], source: Path, count: int, rng: random.Random, folder: Path) -> Found:
    """Change one byte of a file in count ways."""
    good = folder / "good.hipo"
    shutil.copyfile(source, good)
    run(binary, "index", "-q", "--beside", good, env=env)
    index, content = Path(f"{good}{INDEX}").read_bytes(), good.read_bytes()
    assert all(s["good"] and s["index"] for s in checked(binary, env, [good])), f"{source}: the file itself does not pass"
    assert all(s["good"] and not s["index"] for s in checked(binary, env, [good], "--no-index"))
    with_index = without = noted = done = 0
    missed: list[str] = []
    while done < count:
        batch, places = [], []
        for i in range(min(BATCH, count - done)):
            at, by = rng.randrange(len(content)), rng.randrange(1, 256)
            mutant = folder / f"{i}.hipo"
            mutant.write_bytes(content[:at] + bytes([content[at] ^ by]) + content[at + 1:])
            Path(f"{mutant}{INDEX}").write_bytes(index)
            batch.append(mutant)
            places.append(f"{source.name}: byte {at} ^ {by}")
        for place, one in zip(places, checked(binary, env, batch)):
            with_index += not one["good"]
            missed += [place] if one["good"] else []
        for one in checked(binary, env, batch, "--no-index"):
            without += not one["good"]
            noted += one["good"] and bool(one["notes"])
        done += len(batch)
    return Found(source.name.removesuffix(".hipo"), count, with_index, without, noted, missed)


def sweep(binary: Path, count: int, seed: int) -> list[Found]:
    """Count mutants in all, the same number of each file."""
    rng = random.Random(seed)
    files = subjects()
    found = []
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        env = environment(Path(folder))
        for i, source in enumerate(files):
            share = count * (i + 1) // len(files) - count * i // len(files)
            place = Path(folder, str(i))
            place.mkdir()
            found.append(mutate(binary, env, source, share, rng, place))
            shutil.rmtree(place)
    return found


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--count", type=int, default=10000)
    args.add_argument("--seed", type=int, default=1)
    o = args.parse_args()
    found = sweep(ROOT / "build" / "hipofs", o.count, o.seed)
    for f in found:
        print(f"{f.file:32} {f.mutants:6} mutants: {f.with_index:6} found by the index, {f.without:6} without "
              f"({100 * f.without / f.mutants:.0f} %), {f.noted} more noted")
    missed = [m for f in found for m in f.missed]
    total = sum(f.mutants for f in found)
    shares = ", ".join(f"{f.file} {100 * f.without / f.mutants:.0f} %" for f in found)
    print("\n".join(missed))
    subprocess.run([sys.executable, ROOT / "scripts" / "record.py", "damage", "one byte changed, hipofs check",
                    f"{total} mutants of {len(found)} files: {total - len(missed)} found by the index; without one {shares}",
                    str(len(missed))], check=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
