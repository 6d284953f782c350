#!/usr/bin/env python3
"""Many processes read a chain that is much larger than the memory hipofs may use, and compare every byte.

    soak.py [--seconds N] [--readers N] [--memory SIZE] [--cache SIZE] [--light N]

Needs build/hipofs (make build) and ../shared/bench/mkdst.py, whose files are kept in build/, as are the expected bytes,
which oxihipo decodes. The mount answers one round of readers to warm up and one that counts. What must hold: no byte is
wrong and nothing fails; resident memory stays under the budget and 64 MiB; when all readers have gone, there are as
many descriptors and goroutines as after the first round, but for some that are kept for the next reader (pipes to
splice through, threads). After it the mount is left with little to do: a slice a second, for N seconds; then no more than
its cache and 64 MiB is resident. The lines in docs/reliability.md are written whatever came out.
"""
from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import benchfiles
from harness import ROOT, Mount, environment, mounted

ALLOWANCE = 64 << 20  # resident memory beyond the budget
SPARE = 16            # descriptors and goroutines that may have been added to what is kept; a leak is thousands
WARM_UP = 6           # the first round has this part of the time
PATIENCE = 300        # seconds for readers that were told to end, on a busy machine


def expect(sources: list[Path], folder: Path) -> None:
    """The content of every column with rows, and the offsets of its bank, in files that readers compare with."""
    import oxihipo
    chain = oxihipo.open([str(s) for s in sources])
    for bank in chain.keys():
        (_, offsets, columns), = chain.read_columns([(bank, [])])
        if not len(offsets) or not offsets[-1]:
            continue
        (folder / bank).mkdir(parents=True)
        np.asarray(offsets, "<i8").tofile(folder / bank / "offsets.npy")
        np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)).astype("<i8").tofile(folder / bank / "@entry.npy")
        for name, values, _ in columns:
            values.tofile(folder / bank / f"{name}.npy")


def expected(sources: list[Path]) -> Path:
    """The folder that expect makes, kept in build/ for the next run."""
    what = hashlib.sha256("".join(f"{s.name} {s.stat().st_size}\n" for s in sources).encode()).hexdigest()[:12]
    folder = ROOT / "build" / f"expected-{what}"
    if not folder.exists():
        part = Path(tempfile.mkdtemp(dir=ROOT / "build"))
        expect(sources, part)
        part.rename(folder)
    return folder


@dataclass
class Watch:
    """What a process needs, sampled while it works."""
    pid: int
    mount: Mount
    rss: int = 0          # the most resident memory that was seen, bytes
    samples: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def memory(self) -> int:
        with open(f"/proc/{self.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def goroutines(self) -> int:
        """Of the process; where it does not tell, its threads."""
        return self.mount.json("stats.json").get("goroutines") or len(os.listdir(f"/proc/{self.pid}/task"))

    def sample(self) -> None:
        while not self.ended.wait(0.1):
            with contextlib.suppress(OSError):  # it died, which its readers tell
                self.rss = max(self.rss, self.memory())
                self.samples += 1

    def settled(self) -> tuple[int, int]:
        """Descriptors and goroutines when nothing is left to do: no fewer for a second, or after a minute."""
        quiet, now, same = threading.Event(), (1 << 30, 1 << 30), 0
        for _ in range(600):
            last, now = now, (self.descriptors(), self.goroutines())
            same = same + 1 if now >= last else 0
            if same == 10:
                break
            quiet.wait(0.1)
        return now


@dataclass
class Count:
    """What the readers of a round have done."""
    reads: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    wrong: int = 0
    first: list[str] = field(default_factory=list)


def round_of(readers: int, oracle: Path, mount: Mount, seconds: float, seed: int) -> Count:
    """Let that many processes read for that long."""
    end, go = os.pipe()
    processes = [subprocess.Popen([sys.executable, ROOT / "integration/soakreader.py", oracle, mount, str(seed + i)],
                                  stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}) for i in range(readers)]
    os.close(end)
    threading.Event().wait(seconds)
    os.close(go)
    c = Count()
    for p in processes:
        try:
            out, err = p.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = "", "it hangs"
            p.communicate()
        if p.returncode or err or not out:
            c.wrong += 1
            c.first.append(f"a reader ended with {p.returncode}: {err.strip()}")
            continue
        told = json.loads(out)
        for way, n in told["reads"].items():
            c.reads[way] = c.reads.get(way, 0) + n
        c.bytes += told["bytes"]
        c.wrong += told["wrong"]
        c.first += told["first"]
    return c


@dataclass
class Soaked:
    """What came of a soak."""
    count: Count
    budget: int
    rss: int
    descriptors: tuple[int, int]  # after the first round, at the end
    goroutines: tuple[int, int]
    mistakes: list[str]

    def __str__(self) -> str:
        c = self.count
        ways = ", ".join(f"{n:,} {way}" for way, n in sorted(c.reads.items()))
        return (f"{sum(c.reads.values()):,} reads ({ways}), {c.bytes / 1e9:.1f} GB compared, {c.wrong} wrong reads; "
                f"resident at most {self.rss >> 20} MiB with a budget of {self.budget >> 20} MiB; "
                f"descriptors {self.descriptors[0]} and {self.descriptors[1]}, goroutines {self.goroutines[0]} and {self.goroutines[1]}")


def soak(mount: Mount, oracle: Path, readers: int, seconds: float, budget: int) -> Soaked:
    """Read a mounted chain for a while."""
    watch = Watch(mount.pid, mount)
    sampler = threading.Thread(target=watch.sample)
    sampler.start()
    try:
        first = round_of(readers, oracle, mount, seconds / WARM_UP, seed=0)
        before = watch.settled()
        count = round_of(readers, oracle, mount, seconds - seconds / WARM_UP, seed=readers)
        after = watch.settled()
    finally:
        watch.ended.set()
        sampler.join()
    for way, n in first.reads.items():
        count.reads[way] = count.reads.get(way, 0) + n
    count.bytes, count.wrong, count.first = count.bytes + first.bytes, count.wrong + first.wrong, first.first + count.first
    mistakes = count.first[:20]
    if watch.rss > budget + ALLOWANCE:
        mistakes.append(f"resident memory is {watch.rss >> 20} MiB, over the budget of {budget >> 20} MiB and {ALLOWANCE >> 20} MiB")
    if not watch.samples:
        mistakes.append("memory was never sampled")
    for what, was, now in zip(("descriptors", "goroutines"), before, after):
        if now > was + SPARE:
            mistakes.append(f"{now} {what} are left, after the first round there were {was}")
    # What a cache folder that is in use refuses is counted by the readers.
    errors = [e for e in mount.json("errors.json") if os.strerror(errno.ENOSPC).lower() not in e["message"]]
    if errors:
        mistakes.append(f"errors.json: {errors[:3]}")
    return Soaked(count, budget, watch.rss, (before[0], after[0]), (before[1], after[1]), mistakes)


def light(mount: Mount, oracle: Path, seconds: float) -> tuple[str, list[str]]:
    """Read a slice a second; what is resident in the end, beside what is cached, and what was wrong."""
    rng, names, mistakes, reads = random.Random(0), sorted(p.relative_to(oracle) for p in oracle.rglob("*.npy")), [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = rng.choice(names)
        got = np.load(mount / name, mmap_mode="r").reshape(-1).view("u1")
        expected = np.memmap(oracle / name, "u1", "r")
        at = rng.randrange(len(expected))
        if not np.array_equal(got[at:at + 4096], expected[at:at + 4096]):
            mistakes.append(f"{name}: 4096 bytes at {at} are not the right ones")
        reads += 1
        time.sleep(1)
    resident, cached = Watch(mount.pid, mount).memory(), mount.json("stats.json")["cache_bytes"]
    if resident > cached + ALLOWANCE:
        mistakes.append(f"resident memory is {resident >> 20} MiB, over the {cached >> 20} MiB of the cache and {ALLOWANCE >> 20} MiB")
    return f"{reads:,} slices; {resident >> 20} MiB resident, {cached >> 20} MiB of it the cache", mistakes


def chain(scale: int = 1) -> list[Path]:
    """A chain of 1 GB in three layouts, each file with its own events; or a part of it."""
    return [benchfiles.dst(100_000 // scale, codec, seed)
            for seed, codec in ((1, "lz4"), (2, "lz4"), (3, "lz4+perbank"), (4, "lz4+percolumn"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--memory", type=int, default=64, help="budget, MiB")
    parser.add_argument("--cache", help="size of a cache folder; none is used otherwise")
    parser.add_argument("--light", type=float, default=900, help="seconds of light use afterwards; 0: none")
    a = parser.parse_args()
    sources = chain()
    oracle = expected(sources)
    print(f"{sum(s.stat().st_size for s in sources) / 1e6:.0f} MB in {len(sources)} files; "
          f"{sum(1 for _ in oracle.rglob('*.npy'))} columns to compare", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--memory={a.memory}M"]
        if a.cache:
            options += [f"--cache-dir={folder}/columns", f"--cache-size={a.cache}"]
        with mounted(ROOT / "build" / "hipofs", environment(Path(folder)), sources, *options) as m:
            s = soak(m, oracle, a.readers, a.seconds, a.memory << 20)
            print(s, *s.mistakes, sep="\n", flush=True)
            lightly = light(m, oracle, a.light) if a.light else None
    sys.path.insert(0, str(ROOT / "scripts"))
    from record import record

    def told(counted: str, mistakes: list[str]) -> str:
        """What was counted and what was wrong, in words that mean the same elsewhere."""
        return "; ".join([counted, *mistakes]).replace(str(m.point), "mnt").replace(folder, "tmp").replace(f"{ROOT}/", "")

    record("soak", f"soak: {a.readers} readers of a 1 GB chain, budget {a.memory} MiB, "
           + (f"cache folder of {a.cache}, " if a.cache else "") + f"{a.seconds:.0f} s", told(str(s), s.mistakes),
           s.count.wrong + len(s.mistakes) - len(s.count.first[:20]))
    if lightly:
        counted, mistakes = lightly
        print(counted, *mistakes, sep="\n")
        record("soak", f"light use after a soak, {a.light:.0f} s", told(counted, mistakes), len(mistakes))
    return 1 if s.mistakes or lightly and mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
