#!/usr/bin/env python3
"""SIGKILL at random instants, over and over, and what the next start finds.

    kills.py [--count N] [--seed N]

Needs build/hipofs (make build). In turn, hipofs is killed while it

  indexes     many small files in every codec and layout: decoding, writing, renaming
  mounts      counts them, serves a reader of every column, and adds to the indexes what it has learned when it ends
  keeps       the same with a cache folder that has room for little more than the largest column: filling, sealing, evicting

The instant lies anywhere in what each phase of the work took when nobody disturbed it. What earlier kills left stays, but for some of the
indexes and finished columns, so that there is work. After each kill the chain is mounted at the same place, with the same
folders: every column must have its bytes, which oxihipo decoded and golden.tsv confirms; nothing temporary may be left.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

import numpy as np

from harness import PATIENCE, ROOT, Mount, daemons, data, digest, environment, golden, mounts, run, wait_ended, wait_mounted

COPIES = 2      # of each of the files
SUFFIX = ".hipofs-index"

#: A reader of every column of a mount, of some in the file that the mount names, which then cannot be evicted for a
#: while; what fails is the kill's doing.
READER = """
import os, random, sys
mount, seed, *names = sys.argv[1:]
random.Random(int(seed)).shuffle(names)
for name in names:
    try:
        path = mount + "/" + name
        if random.random() < 0.1:
            try:
                path = os.getxattr(path, "user.hipofs.realpath")
            except OSError:
                pass
        with open(path, "rb") as f:
            while f.read(1 << 20):
                pass
    except OSError:
        pass
"""


def sources(folder: Path) -> list[Path]:
    """Files that hold the same events in every codec and layout, some times."""
    out = []
    for copy in range(COPIES):
        for path in sorted(data("codecs/tag00_none_perchunk.hipo").parent.glob("tag*.hipo")):
            out.append(folder / f"{path.stem}.{copy}.hipo")
            shutil.copyfile(path, out[-1])
    return out


def expected(files: int) -> dict[str, np.ndarray]:
    """What each column of the chain holds, by its path below the mount, and the offsets of each bank."""
    import oxihipo
    name = "codecs/tag00_none_perchunk.hipo"
    chain, out = oxihipo.open([str(data(name))]), {}
    rows = {(r.bank, r.column): r for r in golden()[name]}
    for bank in chain.keys():
        (_, offsets, columns), = chain.read_columns([(bank, [])])
        for column, values, n in columns:
            want = rows[bank, column]
            assert digest(values) == want.content and digest(np.asarray(offsets, "<i8")) == want.offsets, (bank, column)
            out[f"{bank}/{column}.npy"] = np.concatenate([values.reshape(want.shape)] * files)
        one = np.diff(offsets)
        out[f"{bank}/offsets.npy"] = np.concatenate([[0], np.cumsum(np.tile(one, files))]).astype("<i8")
    return out


@dataclass
class Tally:
    """What was killed, and what was wrong afterwards."""
    kills: dict[str, int] = field(default_factory=dict)   # by what was going on
    evicted: int = 0   # columns, by the starts that looked
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ways = "; ".join(f"{n} {k}" for k, n in sorted(self.kills.items()))
        return f"{sum(self.kills.values())} kills ({ways}), {len(self.wrong)} wrong; the starts between evicted {self.evicted} columns"


class Target:
    """hipofs at work on a chain in folders that outlive it."""

    def __init__(self, binary: Path, folder: Path, seed: int):
        self.binary, self.rng, self.tally = binary, random.Random(seed), Tally()
        self.env = environment(folder)
        self.sources_folder, self.index, self.cache, self.point = (folder / n for n in ("data", "index", "columns", "mnt"))
        for d in (self.sources_folder, self.index, self.point):
            d.mkdir()
        self.sources = sources(self.sources_folder)
        self.expected = expected(len(self.sources))
        self.mount = Mount(binary, self.point, self.env)
        self.longest: dict[str, float] = {}    # seconds that each work took undisturbed
        self.options = [f"--index-dir={self.index}", "--memory=1M"]
        self.caching = "--cache-dir" in run(binary, "help", "mount", env=self.env).stdout
        size = max(a.nbytes for a in self.expected.values())
        self.cache_options = [f"--cache-dir={self.cache}", f"--cache-size={size + size // 4}"]

    def works(self) -> list[str]:
        return ["indexing", "mounted", *(["keeping columns"] if self.caching else [])]

    def options_of(self, work: str) -> list[str]:
        """The options of a mount for a work."""
        return self.options + (self.cache_options if work == "keeping columns" else [])

    def forget(self) -> None:
        """Take away some of what is finished, so that there is work again."""
        for path in sorted(self.index.glob("*" + SUFFIX)):
            if self.rng.random() < 0.7:
                path.unlink()
        if self.cache.exists() and self.rng.random() < 0.3:
            shutil.rmtree(self.cache)

    def strike(self, work: str, phase: str | None) -> bool:
        """Do one work; with a phase, kill it at an instant in that. Whether it had to be killed."""
        def instant(of: str) -> float | None:
            return self.rng.random() * self.longest[of] if of == phase else None

        began = time.monotonic()
        if work == "indexing":
            p = subprocess.Popen([self.binary, "index", "-q", f"--index-dir={self.index}", *self.sources], env=self.env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            killed = ended(p, instant(work))
            self.took(work, began)
            return killed
        p = subprocess.Popen([self.binary, "-f", "-q", *self.options_of(work), *self.sources, self.point], env=self.env,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if phase == f"{work}, starting":
            return ended(p, instant(phase))
        with contextlib.suppress(AssertionError, OSError):
            wait_mounted(self.point, p)
            began = self.took(f"{work}, starting", began)
            with killer(p, instant(f"{work}, serving")):
                subprocess.run([sys.executable, "-S", "-c", READER, self.point, str(self.rng.random())[2:], *self.expected],
                               stderr=subprocess.DEVNULL)
            began = self.took(f"{work}, serving", began)
        p.send_signal(signal.SIGTERM)
        killed = ended(p, instant(f"{work}, ending"))
        self.took(f"{work}, ending", began)
        return killed

    def took(self, phase: str, began: float) -> float:
        """Note how long a phase takes that nobody disturbs, and give the time."""
        now = time.monotonic()
        if not self.tally.kills:
            self.longest[phase] = max(self.longest.get(phase, 0), now - began)
        return now

    def look(self, work: str) -> None:
        """The next start: every byte, and nothing left behind."""
        wrong = []
        try:
            self.mount.start(self.sources, tuple(self.options_of(work)))
            for name, want in self.expected.items():
                for path in [self.point / name, *(real_path(self.point / name) if self.rng.random() < 0.1 else [])]:
                    got = np.load(path)
                    if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
                        wrong.append(f"{path}: other bytes")
            # That a cache folder has no room is no fault of a file, and serves no wrong byte.
            if errors := [e for e in self.mount.json("errors.json") if e["file"]]:
                wrong.append(f"errors.json: {errors[:2]}")
            self.tally.evicted += (self.mount.json("stats.json").get("tier") or {}).get("evicted", 0)
            self.mount.umount()
        except (AssertionError, OSError, ValueError) as e:
            wrong.append(f"{type(e).__name__}: {e}")
            self.mount.discard()
        left = [p.name for p in self.index.iterdir() if not p.name.endswith(SUFFIX)]
        if self.cache.exists():
            left += [str(p.relative_to(self.cache)) for p in self.cache.rglob("draft*")]
        if left:
            wrong.append(f"left behind: {left[:5]}")
        indexes = sum(1 for _ in self.index.glob("*" + SUFFIX))
        if indexes != len(self.sources):
            wrong.append(f"{indexes} indexes of {len(self.sources)} files")
        if len(list(self.sources_folder.iterdir())) != len(self.sources):
            wrong.append("something was written beside the data")
        self.tally.wrong += [f"after a kill while {work}: {w}" for w in wrong]

    def kill(self, count: int) -> Tally:
        """Kill it so many times."""
        try:
            for work in self.works() * 3:
                self.forget()
                assert not self.strike(work, None)
            phases = sorted(self.longest)
            tried = 0
            while sum(self.tally.kills.values()) < count and len(self.tally.wrong) < 20:
                phase = phases[tried % len(phases)]
                work = phase.split(",")[0]
                tried += 1
                assert tried < 20 * count + 100, f"what is to be killed always ends before: {self.tally}"
                self.forget()
                if self.strike(work, phase):
                    self.tally.kills[phase] = self.tally.kills.get(phase, 0) + 1
                    self.look(work)
        finally:
            self.mount.discard()
            for pid in daemons(self.point):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_ended(pid)
        return self.tally


#: Kills a process at an instant of the monotonic clock, unless it or standard input ends before; not a thread, which
#: would wait with its reader.
KILLER = """
import os, select, signal, sys, time
pid, at = int(sys.argv[1]), float(sys.argv[2])
try:
    fd = os.pidfd_open(pid)
    if not select.select([fd, 0], [], [], max(0, at - time.monotonic()))[0]:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


@contextlib.contextmanager
def killer(p: subprocess.Popen, after: float | None) -> Iterator[None]:
    """While something is done, kill a process after so many seconds."""
    if after is None:
        yield
        return
    other = subprocess.Popen([sys.executable, "-S", "-c", KILLER, str(p.pid), str(time.monotonic() + after)], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        other.communicate()


def ended(p: subprocess.Popen, after: float | None) -> bool:
    """Wait for a process to end, for so many seconds, and kill it then; whether it was killed, now or before."""
    try:
        p.wait(timeout=PATIENCE if after is None else after)
    except subprocess.TimeoutExpired:
        assert after is not None, "it hangs"
        p.kill()
        p.wait()
    return p.returncode == -signal.SIGKILL


def real_path(path: Path) -> list[Path]:
    """The file of a cache folder that holds a column, if there is one."""
    try:
        return [Path(os.fsdecode(os.getxattr(path, "user.hipofs.realpath")))]
    except OSError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        target = Target(ROOT / "build" / "hipofs", Path(folder), a.seed)
        tally = target.kill(a.count)
    print(f"seed {a.seed}", tally, *tally.wrong, sep="\n")
    sys.path.insert(0, str(ROOT / "scripts"))
    from record import record
    record("kills", "SIGKILL at random instants, then every byte compared", str(tally), len(tally.wrong))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
