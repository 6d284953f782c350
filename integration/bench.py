#!/usr/bin/env python3
"""Time, memory and work of hipofs beside its peers: one machine, one run, the same bytes, equal checksums.

    bench.py [--runs N] [--events N] [--files N] [--chain N] [--only LINE,...] [--no-save]

Needs build/hipofs (make build) and ../shared/bench/mkdst.py, whose files are kept in build/. Each time is the median of
the runs, which take turns with the peer's; sources are in the kernel's page cache, indexes and settings in a folder that
is new for each run, and free memory has been touched before. A line whose checksums differ is not printed, and the status
is then 1. A line that misses its bar is printed like any other. The whole table goes to integration/RESULTS.md unless
--only or --no-save is given.

  pass     the pass that makes an index, beside a loop that reads, checksums and inflates; one processor, two
  column   from the start of the hipofs command to one column and its offsets in NumPy; beside a process that imports
  bank     oxihipo, or hipopybind, and reads the same. The same for a bank of 28 columns, all REC banks, and the same
  rec      column of files in other codecs. No index is there, and none is written but where the line says so. oxihipo is
           told at once what is wanted; hipofs finds out as files are opened, or is told with --prefetch. Mapped is
           mmap_mode="r"; both then take a checksum of all they have read
  codecs
  files    the start of the command until ls of the mount answers, for many files of 194 banks that have indexes
  size     the index beside its file
  slices   records that slices decode; counted, not timed
  bytes    bytes read for one column of a per-column file; counted
  chain    a chain of files that exist as indexes alone, made up of those of two DSTs
  serve    a column of 256 MB that has been read: mapping it beside the same bytes as a plain file, through the page
           cache, the link and the kernel's passthrough; reading another that is decoded for the first time
  herd     records decoded for eight processes that read one bank at once; counted
  ak       hipofs_ak beside oxihipo, both to awkward arrays of which every byte goes into a checksum, without the time that imports
           take: a bank; one column of it again, in the same process and in another; all banks at once, with an index;
           the memory of the reading process, steps of 50 MB through all banks
  export   everything as .npy files, beside a process that imports oxihipo and reads all columns; as Parquet files,
           beside one that imports it and writes each bank with to_parquet; into the kernel's page cache
  skim     a copy as it is, beside cp; compressed anew with LZ4, beside oxihipo's skim
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Callable, Iterator, NamedTuple

import benchfiles
from harness import ROOT, daemons, environment, mounted, run
from layout import splits

HIPOFS = ROOT / "build" / "hipofs"
RESULTS = ROOT / "integration" / "RESULTS.md"


class Row(NamedTuple):
    """A line of the table. The figure is what the bar is about."""
    what: str
    ours: str
    beside: str = ""
    figure: float | None = None
    bar: float | None = None
    least: bool = False   # the bar is a least, not a most
    unit: str = ""        # of figure and bar; "": a ratio

    @property
    def verdict(self) -> str:
        if self.bar is None or self.figure is None:
            return ""
        return "" if (self.figure >= self.bar if self.least else self.figure <= self.bar) else "missed"

    def cells(self) -> list[str]:
        def shown(v: float | None) -> str:
            return "" if v is None else f"{v:.3g}" + (f" {self.unit}" if self.unit else "")
        bar = "" if self.bar is None else ("at least " if self.least else "at most ") + shown(self.bar)
        return [self.what, self.ours, self.beside, shown(self.figure), bar, self.verdict]


class Differ(Exception):
    """Two readers do not agree."""


class Bench(NamedTuple):
    runs: int
    events: int
    files: int
    chain: int
    home: Path   # a folder for everything that ends with the run

    def fresh(self, name: str) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))

    def env(self) -> dict[str, str]:
        """An environment whose caches and settings are empty."""
        return environment(self.fresh("home"))


def status(pid: int, key: str) -> int:
    """VmRSS or VmHWM of a process, bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{key}:")[1].split()[0]) * 1024


def s(seconds: float) -> str:
    return f"{seconds:.3f} s"


def mb(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


# ---------------------------------------------------------------- one read by one reader

def reader(*argv: str | Path, env: dict[str, str] | None = None) -> dict:
    began = time.monotonic()
    done = subprocess.run([sys.executable, ROOT / "integration/benchreader.py", *argv], stdout=subprocess.PIPE, check=True, env=env)
    got = json.loads(done.stdout)
    return got | {"first": got["done"] - began}


def by_hipofs(b: Bench, source: Path, task: list[str], *options: str, mapped: bool = False) -> dict:
    env, point = b.env(), b.fresh("mnt")
    benchfiles.supply()
    began = time.monotonic()
    run(HIPOFS, *options, source, point, env=env)
    try:
        got = reader("--use", "mapped", point, *task) if mapped else reader("hipofs", point, *task)
        return got | {"first": got["done"] - began, "daemon": status(daemons(point)[0], "VmHWM")}
    finally:
        run(HIPOFS, "umount", point, env=env)


def by_oxihipo(source: Path, task: list[str], *options: str) -> dict:
    benchfiles.supply()
    return reader(*options, "oxihipo", source, *task)


def by_hipopybind(source: Path, task: list[str]) -> dict:
    benchfiles.supply()
    return reader("hipopybind", source, *task)


def agree(what: str, *runs: dict) -> None:
    for r in runs:
        if r["sums"] != runs[0]["sums"]:
            raise Differ(f"{what}: the checksums differ")


def of(runs: list[dict], key) -> float:
    """The median of the runs."""
    return median(r[key] for r in runs)


# ---------------------------------------------------------------- the lines

def passes(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    benchfiles.warm(source)
    binary = b.home / "materialize.test"
    subprocess.run(["go", "test", "-c", "-o", binary, "./materialize"], cwd=ROOT, check=True)

    def seconds(which: str, processors: int) -> float:
        out = subprocess.run([binary, "-test.run=^$", f"-test.bench=^BenchmarkPass$/^{which}$", "-test.benchtime=3x"],
                             cwd=ROOT / "materialize", check=True, capture_output=True, text=True,
                             env=os.environ | {"HIPOFS_DST": str(source), "GOMAXPROCS": str(processors)}).stdout
        return float(re.search(r"([\d.]+) ns/op", out)[1]) / 1e9

    kinds = [(which, processors) for processors in (1, 2) for which in ("index", "bare")]
    runs = [{k: seconds(*k) for k in kinds} for _ in range(b.runs)]
    took = {k: of(runs, k) for k in kinds}
    for processors in (1, 2):
        ours, bare = took["index", processors], took["bare", processors]
        yield Row(f"index pass beside a bare loop, {processors} processor{'s'[:processors - 1]}", s(ours), s(bare), ours / bare, 1.15)
    ours = {processors: took["index", processors] for processors in (1, 2)}
    yield Row("index pass, two processors beside one", s(ours[2]), s(ours[1]), ours[1] / ours[2], 1.8, least=True)


def in_turn(b: Bench, what: str, source: Path, task: list[str], *options: str, mapped: bool = False) -> tuple[list[dict], list[dict]]:
    """Runs of hipofs and oxihipo, in turn, which read the same. Mapped: with arrays that are mapped, and both use each byte."""
    benchfiles.warm(source)
    ours, theirs = [], []
    for _ in range(b.runs):
        ours.append(by_hipofs(b, source, task, *options, mapped=mapped))
        theirs.append(by_oxihipo(source, task, *["--use"] * mapped))
    agree(what, *ours, *theirs)
    return ours, theirs


def ratio(what: str, ours: list[dict], theirs: list[dict], key: str, bar: float | None = None) -> Row:
    return Row(what, s(of(ours, key)), s(of(theirs, key)), of(ours, key) / of(theirs, key), bar)


def comparison(b: Bench, what: str, source: Path, task: list[str], bar: float | None, *options: str) -> Iterator[Row]:
    ours, theirs = in_turn(b, what, source, task, *options)
    yield ratio(what, ours, theirs, "first", bar)
    yield ratio("   again in the same process", ours, theirs, "again")
    daemon, peak = of(ours, "daemon"), of(theirs, "peak")
    yield Row("   peak memory: hipofs; oxihipo's process", mb(daemon), mb(peak), daemon / peak, 1 / 3 if task == REC else None)
    yield Row("   peak memory: hipofs and its reader", mb(daemon + of(ours, "peak")), mb(peak), (daemon + of(ours, "peak")) / peak)


def first(b: Bench, what: str, source: Path, task: list[str], bar: float | None, *options: str, mapped: bool = False) -> Row:
    return ratio(what, *in_turn(b, what, source, task, *options, mapped=mapped), "first", bar)


COLUMN, BANK, REC = ["REC::Particle", "px"], ["REC::Calorimeter"], ["REC::*"]


def column(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    yield from comparison(b, "one column, beside oxihipo", source, COLUMN, 0.95, "--no-index")
    kept = [by_hipofs(b, source, COLUMN) for _ in range(b.runs)]
    yield Row("   the same, and the index is made and kept", s(of(kept, "first")))
    theirs = [by_hipopybind(source, COLUMN) for _ in range(b.runs)]
    agree("hipopybind", *kept, *theirs)
    yield ratio("one column, beside hipopybind", kept, theirs, "first")


def bank(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    yield from comparison(b, "28 columns and offsets", source, BANK, 0.7, "--no-index")
    yield first(b, "   mapped, and each byte used", source, BANK, 0.7, "--no-index", mapped=True)


def rec(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    yield from comparison(b, "all REC banks", source, REC, 0.75, "--no-index")
    told = f"--prefetch={','.join(REC)}"
    yield first(b, "   told with --prefetch", source, REC, 0.75, "--no-index", told)
    yield first(b, "   told, mapped, and each byte used", source, REC, 0.75, "--no-index", told, mapped=True)


def codecs(b: Bench) -> Iterator[Row]:
    for codec in ("lz4+perbank", "lz4+percolumn"):
        yield first(b, f"one column, {codec}", benchfiles.dst(b.events // 2, codec), COLUMN, None, "--no-index")


def files(b: Bench) -> Iterator[Row]:
    paths = benchfiles.copies(b.fresh("files") / "data", b.files)
    folder, index = paths[0].parent, b.fresh("index")
    run(HIPOFS, "index", "-q", f"--index-dir={index}", folder, env=b.env(), timeout=600)
    times, resident = [], {}
    for n, sources in [(1, [paths[0]])] + [(b.files, [folder])] * b.runs:
        env, point = b.env(), b.fresh("mnt")
        began = time.monotonic()
        run(HIPOFS, f"--index-dir={index}", *sources, point, env=env)
        try:
            names = os.listdir(point)
            times.append(time.monotonic() - began)
            resident.setdefault(n, []).append(status(daemons(point)[0], "VmRSS"))
            stats = json.loads((point / ".hipofs/stats.json").read_text())
            entries = [f["entries"] for f in json.loads((point / ".hipofs/files.json").read_text())]
            if len(names) < 194 or entries != [101] * n or stats["bytes_read"]:
                raise Differ(f"files: {len(names)} names, {sum(entries)} entries, {stats['bytes_read']} bytes read")
        finally:
            run(HIPOFS, "umount", point, env=env)
    some = paths[:max(1, b.files // 10)]
    script = ("import sys, oxihipo; c = oxihipo.open(sys.argv[1:]); assert c.num_entries == 101 * len(sys.argv[1:]); "
              "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])")
    began = time.monotonic()
    peak = int(run(sys.executable, "-c", script, *some).stdout) * 1024
    took = time.monotonic() - began
    yield Row(f"mount and ls of {b.files} indexed files of 194 banks; oxihipo opens {len(some)}", s(median(times[1:])), s(took),
              median(times[1:]), 0.3, unit="s")
    each = (median(resident[b.files]) - resident[1][0]) / max(1, b.files - 1)
    yield Row("   memory for each file; oxihipo's peak for each", f"{each / 1e3:.1f} KB", f"{peak / len(some) / 1e3:.0f} KB",
              each / 1e3, 50, unit="KB")


def size(b: Bench) -> Iterator[Row]:
    for what, source, bar in [
        ("index of a DST", benchfiles.dst(b.events), 0.15),
        ("index of a DST, lz4+perbank", benchfiles.dst(b.events // 2, "lz4+perbank"), 0.15),
        ("index of a DST, lz4+percolumn", benchfiles.dst(b.events // 2, "lz4+percolumn"), 0.15),
        ("index of hits, over 10 KB an event", benchfiles.hits(b.events // 40), 0.05),
    ]:
        index = b.fresh("index")
        run(HIPOFS, "index", "-q", f"--index-dir={index}", source, env=b.env(), timeout=600)
        kept, = index.iterdir()
        a, z = kept.stat().st_size, source.stat().st_size
        yield Row(what, f"{a / 1e3:.0f} KB", mb(z), 100 * a / z, bar, unit="%")


def slices(b: Bench) -> Iterator[Row]:
    import numpy as np
    import oxihipo
    source, env = benchfiles.dst(b.events), b.env()
    run(HIPOFS, "index", "-q", source, env=env, timeout=600)
    rng = random.Random(5042)
    wide = {"REC::Particle": ["px", "pid"], "REC::Calorimeter": ["energy", "time"], "REC::Traj": ["x"]}
    narrow = {"REC::Calorimeter": ["status", "sector"], "REC::Cherenkov": ["pindex", "sector"], "REC::Track": ["q"]}
    for what, banks in (("of 4 bytes a value", wide), ("of 1 or 2 bytes a value", narrow)):
        truth = {(bk, c): a for bk, _, cols in oxihipo.open(str(source)).read_columns(list(banks.items())) for c, a, _ in cols}
        decoded = []
        with mounted(HIPOFS, env, source, "--memory=256M") as m:
            for _ in range(100):
                bk, c = rng.choice(sorted(truth))
                a = rng.randrange(len(truth[bk, c]) - 1000)
                before = m.decoded()
                got = np.array(np.load(m / f"{bk}/{c}.npy", mmap_mode="r")[a:a + 1000])
                decoded.append(m.decoded() - before)
                if got.tobytes() != truth[bk, c][a:a + 1000].tobytes():
                    raise Differ(f"{bk}/{c}[{a}:{a + 1000}] differs")
        yield Row(f"records decoded for 1,000 rows {what}: most, mean of 100", str(max(decoded)),
                  f"{sum(decoded) / len(decoded):.2f}", max(decoded), 2, unit="records")


def bytes_read(b: Bench) -> Iterator[Row]:
    import numpy as np
    import oxihipo
    source, env = benchfiles.dst(b.events // 2, "lz4+percolumn"), b.env()
    run(HIPOFS, "index", "-q", source, env=env, timeout=600)
    layout, chain, worst = splits(source), oxihipo.open(str(source)), None
    for bk, c in [("REC::Particle", "px"), ("REC::Calorimeter", "energy"), ("REC::Traj", "x"), ("REC::Particle", "pid")]:
        with mounted(HIPOFS, env, source) as m:
            got = np.load(m / f"{bk}/{c}.npy")
            read = m.json("stats.json")["bytes_read"]
            schema = json.loads((m / f"{bk}/schema.json").read_text())
        (_, _, ((_, values, _),)), = chain.read_columns([(bk, [c])])
        if got.tobytes() != values.tobytes():
            raise Differ(f"{bk}/{c} differs")
        at = (schema["group"], schema["item"]), [x["name"] for x in schema["columns"]].index(c)
        need = sum(r.head + sum(t.length for t in r.streams if (t.key, t.column) == at) for r in layout)
        worst = max(worst or (0,), (read / need, read, need, f"{bk}/{c}"))
    ratio, read, need, name = worst
    yield Row(f"bytes read for {name}, the worst of 4; stored bytes and directories", f"{read / 1e6:.3f} MB", f"{need / 1e6:.3f} MB", ratio, 1.05)


def chain(b: Bench) -> Iterator[Row]:
    import numpy as np
    import oxihipo
    if not b.chain:
        return
    templates = [benchfiles.dst(100_000, seed=seed) for seed in (1, 2)]
    folder, point, env = b.fresh("chain"), b.fresh("mnt"), b.env()
    benchfiles.made_up(folder, b.chain, templates)
    known = [oxihipo.open(str(t)).read_columns([("REC::Traj", ["layer"])])[0][1] for t in templates]
    began = time.monotonic()
    run(HIPOFS, f"--index-dir={folder}/index", folder / "data", point, env=env)
    try:
        os.listdir(point)
        took, pid = time.monotonic() - began, daemons(point)[0]
        offsets, rng = np.load(point / "REC::Traj/offsets.npy", mmap_mode="r"), random.Random(5042)
        entries = np.cumsum([0] + [len(known[i % 2]) - 1 for i in range(b.chain)])
        rows = np.cumsum([0] + [int(known[i % 2][-1]) for i in range(b.chain)])
        checked = 0
        for i in [*rng.sample(range(b.chain), min(b.chain, 500)), b.chain - 1]:
            a = rng.randrange(100_000 - 1000)
            for first, last in ((0, 10), (a, a + 1000), (99_990, 100_001)):
                got = np.array(offsets[entries[i] + first:entries[i] + last])
                if not np.array_equal(got, known[i % 2][first:last] + rows[i]):
                    raise Differ(f"offsets of file {i} from {first} on differ")
                checked += len(got)
        if offsets.dtype != np.int64 or len(offsets) != entries[-1] + 1 or offsets[-1] != rows[-1]:
            raise Differ("offsets end wrong")
        peak = status(pid, "VmHWM")
        del offsets
    finally:
        run(HIPOFS, "umount", point, env=env)
    yield Row(f"a chain of {b.chain} files, {entries[-1]:.3g} events, mounted and listed", s(took), "", took, 10, unit="s")
    yield Row(f"   peak memory, {checked} offsets up to {rows[-1]:.3g} compared", mb(peak), "", peak / (1 << 20), 500, unit="MiB")


def finished(how: str, path: Path | str) -> dict:
    benchfiles.supply()
    return json.loads(run(sys.executable, ROOT / "integration/benchserve.py", how, path).stdout)


def serve(b: Bench) -> Iterator[Row]:
    """The chain is one file several times over, so that a column of it is large."""
    source = benchfiles.dst(b.events)
    large = "REC::Traj/x.npy"
    times = max(1, round(6 * 400_000 / b.events))
    plain = b.fresh("plain") / "x.npy"

    def gb(r: dict) -> float:
        return r["bytes"] / 1e9 / r["seconds"]

    def beside(what: str, path: Path | str, bar: float) -> Row:
        both = [(finished("map", path), finished("map", plain)) for _ in range(b.runs)]
        if len({(r["bytes"], r["sum"]) for pair in both for r in pair}) != 1:
            raise Differ(f"{what}: the sums differ")
        ours, theirs = median(gb(a) for a, _ in both), median(gb(p) for _, p in both)
        return Row(f"{what}, {both[0][0]['bytes'] / 1e6:.0f} MB", f"{ours:.1f} GB/s", f"{theirs:.1f} GB/s", ours / theirs,
                   min(bar, 1.5 / theirs) if bar < 0.5 else bar, least=True)  # through the page cache, 1.5 GB/s will do

    env = b.env()
    run(HIPOFS, "index", "-q", source, env=env, timeout=600)
    with mounted(HIPOFS, env, [source] * times, "--memory=4G") as m:
        run("cp", m / large, plain)
        yield beside("mmap of a column that has been read, page cache", m / large, 1 / 3)
        size = (m / large).stat().st_size
        others = [p for p in sorted((m / "REC::Traj").glob("[a-z]*.npy")) if p.stat().st_size == size and p != m / large]
        first = [finished("read", p) for p in others[:b.runs]]  # each was decoded with the first
    cache = b.fresh("tier")
    with mounted(HIPOFS, env, [source] * times, "--memory=4G", f"--cache-dir={cache}") as m:
        real = os.getxattr(m / large, "user.hipofs.realpath").decode()
        yield beside("   by its real path", real, 0.9)
        way = "by the kernel's passthrough" if m.json("stats.json")["passthrough"]["on"] else "by a file of the cache folder"
        yield beside(f"   {way}", m / large, 0.9)
    yield Row(f"first read of a decoded column, {size / 1e6:.0f} MB", f"{median(map(gb, first)):.1f} GB/s", "",
              median(map(gb, first)), 1, least=True, unit="GB/s")


def herd(b: Bench) -> Iterator[Row]:
    source, env = benchfiles.dst(b.events), b.env()
    run(HIPOFS, "index", "-q", source, env=env, timeout=600)
    with mounted(HIPOFS, env, source) as m:
        argv = [sys.executable, ROOT / "integration/benchreader.py", "--once", "hipofs", m.point, *BANK]
        readers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(8)]
        got = [json.loads(r.communicate()[0]) for r in readers]
        agree("eight processes", *got, by_oxihipo(source, BANK))
        stats = m.json("stats.json")
        records = len(m.json("records.json"))
        size = sum(p.stat().st_size for p in (m / BANK[0]).glob("[a-z]*.npy"))
    yield Row("records decoded for eight processes that read one bank; records", str(stats["records_decoded"]), str(records),
              stats["records_decoded"] / records, 1)
    # Pages that the kernel gave up are asked for again, and may have to be decoded again.
    yield Row("   bytes that the kernel asked for; bytes of the bank", mb(stats["bytes_served"]), mb(size), stats["bytes_served"] / size)


def by_awkward(env: dict[str, str], library: str, what: str, where: Path, *task: str) -> dict:
    own = {"HIPOFS": str(HIPOFS), "PYTHONPATH": str(ROOT / "python")}
    argv = [sys.executable, ROOT / "integration/benchak.py", library, what, where, *task]
    return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, env=env | own).stdout)


def awkward(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)

    def both(what: str, *task: str, ours: Path = source, env: dict[str, str] | None = None) -> tuple[list[dict], list[dict]]:
        pairs = [(by_awkward(env or b.env(), "hipofs_ak", what, ours, *task), by_awkward(b.env(), "oxihipo", what, source, *task))
                 for _ in range(b.runs)]
        agree(f"awkward, {what}", *(r for pair in pairs for r in pair))
        return [a for a, _ in pairs], [a for _, a in pairs]

    column = ("REC::Particle", "px")
    got, want = both("bank", *column)
    yield ratio("awkward arrays of one bank, beside oxihipo", got, want, "first", 1)
    yield ratio("   one column of it again", got, want, "again", 1 / 50)
    env = b.env()
    run(HIPOFS, "index", "-q", source, env=env, timeout=600)
    with mounted(HIPOFS, env, source) as m:
        by_awkward(env, "hipofs_ak", "bank", m.point, *column)
        yield ratio("   the same in another process", *both("again", *column, ours=m.point, env=env), "seconds", 1 / 50)
    got = [by_awkward(env, "hipofs_ak", "everything", source) for _ in range(b.runs)]
    yield Row("   all banks, none of them read; ms", f"{of(got, 'seconds') * 1000:.1f}", "", of(got, "seconds") * 1000, 50, unit="ms")
    got, want = both("iterate", env=env)
    yield Row("   memory for steps through all banks", mb(of(got, "peak")), mb(of(want, "peak")), of(got, "peak") / 1e6, 300, unit="MB")


def timed(*argv: str | Path, env: dict[str, str] | None = None) -> dict:
    """A process from its start to its end: seconds, and its peak memory. A small process starts it: the kernel counts what
    its parent has for its own."""
    start = ("import json, resource, subprocess, sys, time\nbegan = time.monotonic()\nsubprocess.run(sys.argv[1:], check=True)\n"
             "took, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)\n"
             "print(json.dumps({'first': took, 'peak': used.ru_maxrss * 1024}))")
    return json.loads(run(sys.executable, "-c", start, *argv, env=env, timeout=600).stdout)


def beside(what: str, ours: list[dict], theirs: list[dict], bar: float, memory: float | None) -> Iterator[Row]:
    yield ratio(what, ours, theirs, "first", bar)
    yield Row("   peak memory", mb(of(ours, "peak")), mb(of(theirs, "peak")), of(ours, "peak") / of(theirs, "peak"), memory)


def export(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    benchfiles.warm(source)
    ours, theirs = [], []
    for _ in range(b.runs):
        out = b.fresh("export")
        ours.append(timed(HIPOFS, "export", "-q", "--no-index", source, out, env=b.env()))
        theirs.append(by_oxihipo(source, ["*"]))
        agree("export", reader("hipofs", out, "*"), theirs[-1])
        shutil.rmtree(out)
    yield from beside("export of everything, beside oxihipo reading all columns", ours, theirs, 0.7, 1 / 3)

    script = ("import sys, oxihipo\nc = oxihipo.open(sys.argv[1])\n"
              "for b in c.keys(): c.to_parquet(f'{sys.argv[2]}/{b}.parquet', b, compression='zstd')")
    ours, theirs = [], []
    for _ in range(b.runs):
        out, other = b.fresh("parquet"), b.fresh("parquet")
        ours.append(timed(HIPOFS, "export", "-q", "--no-index", "--format=parquet", source, out, env=b.env()))
        theirs.append(timed(sys.executable, "-c", script, source, other))
        same_tables(out, other)
        shutil.rmtree(out)
        shutil.rmtree(other)
    yield from beside("export as Parquet, beside oxihipo's to_parquet", ours, theirs, 1, 1 / 3)


def same_tables(a: Path, b: Path) -> None:
    """The Parquet files of two folders have the same lists."""
    from pyarrow import parquet
    names = sorted(p.name for p in a.glob("*.parquet"))
    if names != sorted(p.name for p in b.glob("*.parquet")):
        raise Differ("parquet: other banks")
    for name in names:
        for column in parquet.read_schema(a / name).names:
            x, y = (parquet.read_table(f / name, columns=[column])[column].combine_chunks() for f in (a, b))
            if (x.offsets.to_numpy() != y.offsets.to_numpy()).any() or \
                    x.flatten().to_numpy().tobytes() != y.flatten().to_numpy().tobytes():
                raise Differ(f"parquet: {name}: {column} differs")


def skim(b: Bench) -> Iterator[Row]:
    source = benchfiles.dst(b.events)
    benchfiles.warm(source)
    script = "import sys, oxihipo; oxihipo.open(sys.argv[1]).skim(sys.argv[2], compression='lz4')"
    for what, bar, ours, theirs in [
        ("skim, a copy as it is, beside cp", 1.25, [HIPOFS, "skim", "-q", "--no-index", source, "-o"], ["cp", source]),
        ("skim, compressed anew with LZ4, beside oxihipo", 1,
         [HIPOFS, "skim", "-q", "--no-index", "--codec=lz4", "--record-size=8M", source, "-o"], [sys.executable, "-c", script, source]),
    ]:
        mine, other = [], []
        for _ in range(b.runs):
            folder = b.fresh("skim")
            mine.append(timed(*ours, folder / "ours.hipo", env=b.env()))
            other.append(timed(*theirs, folder / "theirs.hipo"))
            agree(what, by_oxihipo(folder / "ours.hipo", REC), by_oxihipo(folder / "theirs.hipo", REC))
            shutil.rmtree(folder)
        yield from beside(what, mine, other, bar, None)


LINES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "pass": passes, "column": column, "bank": bank, "rec": rec, "codecs": codecs, "files": files, "size": size,
    "slices": slices, "bytes": bytes_read, "chain": chain, "serve": serve, "herd": herd, "ak": awkward, "export": export,
    "skim": skim}


# ---------------------------------------------------------------- the table

def conditions(b: Bench) -> list[str]:
    sys.path.insert(0, str(ROOT / "scripts"))
    from record import machine
    ours = subprocess.run([HIPOFS, "version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return [f"{datetime.date.today()}, {machine()}",
            f"{ours}{' ' + commit if commit else ''}; oxihipo {version('oxihipo')}, hipopybind {version('hipopybind')}, "
            f"numpy {version('numpy')}, Python {platform.python_version()}",
            f"{b.events} events of a DST, {mb(benchfiles.dst(b.events).stat().st_size)}; medians of {b.runs}"]


HEAD = ["what", "hipofs", "beside it", "ratio", "bar", ""]

ABOUT = """# What hipofs costs, beside its peers

Written by `make bench`, losses included. `integration/bench.py` says what each line includes. Equal checksums are a
condition for a line to be here; a bar that is missed is marked.
"""


def save(about: list[str], rows: list[Row]) -> None:
    """The table of this run, and a line for each run before it."""
    past = [line for line in RESULTS.read_text().splitlines() if line.startswith("- ")] if RESULTS.exists() else []
    figures = "; ".join(f"{r.what.strip()} {r.figure:.3g}" for r in rows if r.figure is not None and r.bar is not None and not r.unit)
    table = "\n".join("| " + " | ".join(c.replace("   ", "… ", 1) for c in cells) + " |"
                      for cells in [HEAD, ["---"] * len(HEAD), *(r.cells() for r in rows)])
    RESULTS.write_text(ABOUT + "\n" + "  \n".join(about) + "\n\n" + table + "\n\n## Each run\n\n" +
                       "\n".join([*past, f"- {about[0]}, {about[1].split(';')[0]}: {figures}"]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--events", type=int, default=400_000, help="of the DST; others are parts of it")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--chain", type=int, default=10_000, help="files of the made-up chain, 290 KB each; 0 leaves it out")
    parser.add_argument("--only", default=",".join(LINES), help="lines: " + ", ".join(LINES))
    parser.add_argument("--no-save", action="store_true")
    a = parser.parse_args()
    lines = a.only.split(",")
    if unknown := set(lines) - set(LINES):
        parser.error(f"no such line: {', '.join(sorted(unknown))}")

    wrong, rows = 0, []
    with tempfile.TemporaryDirectory(prefix="hipofs-bench-") as home:
        b = Bench(a.runs, a.events, a.files, a.chain, Path(home))
        about = conditions(b)
        print("\n".join(about), "\n")
        form = "{:66}{:>11}{:>11}  {:<13}{:<18}{}"
        print(form.format(*HEAD), flush=True)
        for line in lines:
            try:
                for row in LINES[line](b):
                    rows.append(row)
                    print(form.format(*row.cells()).rstrip(), flush=True)
            except Differ as e:
                print(f"{line}: {e}; no figure is given", file=sys.stderr)
                wrong = 1
    if set(lines) == set(LINES) and not wrong and not a.no_save:
        save(about, rows)
        print(f"\nkept in {RESULTS.relative_to(ROOT)}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
