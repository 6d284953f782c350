"""What the tests share: where the files are, what is expected, and a mount that always ends.

Expected values come from golden.tsv, oxihipo, NumPy, or bytes written out in a test; never from hipofs.
"""
from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("HIPOFS_SHARED", ROOT.parent / "shared"))
OWN = ROOT / "integration" / "testdata"
DATA = [d for d in (SHARED / "data", ROOT / "hipo" / "testdata", OWN) if d.is_dir()]
CASES = SHARED / "cases" if (SHARED / "cases").is_dir() else OWN / "cases"
GOLDEN = SHARED / "check" / "golden.tsv" if (SHARED / "check").is_dir() else OWN / "golden.tsv"

NOBODY = 65534  # the user that root becomes where a test is about ordinary ones
GOLDEN_LZ4 = "cpp_golden_lz4.hipo"
PATIENCE = 120  # seconds; what takes longer hangs
DTYPES = {"B": "|i1", "S": "<i2", "I": "<i4", "F": "<f4", "D": "<f8", "L": "<i8"}


def data(name: str) -> Path:
    """The file of that name, below ../shared/data or in the repository."""
    for folder in DATA:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, DATA))}")


# ---------------------------------------------------------------- what is expected

class Row(NamedTuple):
    """One line of golden.tsv."""
    bank: str
    column: str
    letter: str
    n: int
    rows: int
    content: str
    offsets: str

    @property
    def dtype(self) -> str:
        return DTYPES[self.letter]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.n == 1 else (self.rows, self.n)


def golden() -> dict[str, list[Row]]:
    """golden.tsv: the rows of each file, by its name below data/."""
    files: dict[str, list[Row]] = {}
    with open(GOLDEN, newline="") as lines:
        for r in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            files.setdefault(r["file"], []).append(Row(
                r["bank"], r["column"], r["dtype"], int(r["N"]), int(r["rows"]),
                r["sha256_content"], r["sha256_offsets"]))
    return files


def digest(array: np.ndarray) -> str:
    """SHA-256 of an array's values in C order."""
    return hashlib.sha256(array.tobytes()).hexdigest()


class Record(NamedTuple):
    """What the header of a data record says; lengths in bytes."""
    at: int
    length: int
    events: int
    data_length: int
    tag: int
    word1: int


def records(path: Path) -> list[Record]:
    """The data records of an undamaged little-endian file with a trailer, from their headers."""
    b = path.read_bytes()
    header, user = struct.unpack_from("<I", b, 8)[0] * 4, struct.unpack_from("<I", b, 24)[0]
    at, trailer, out = header + user, struct.unpack_from("<Q", b, 40)[0], []
    while at < trailer:
        words, = struct.unpack_from("<I", b, at)
        events, = struct.unpack_from("<I", b, at + 12)
        size, how, word1 = struct.unpack_from("<IIQ", b, at + 32)
        out.append(Record(at, words * 4, events, size, how >> 28, word1))
        at += words * 4
    return out


# ---------------------------------------------------------------- the command

def environment(home: Path) -> dict[str, str]:
    """This process's environment without the user's own settings of hipofs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HIPOFS_")}
    return env | {"XDG_CACHE_HOME": str(home / "cache"), "XDG_CONFIG_HOME": str(home / "config"), "HOME": str(home)}


def run(*argv: str | Path, ok: bool = True, **kw) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with its output as text; by default it must succeed."""
    kw = {"stdin": subprocess.DEVNULL, "text": True, "timeout": PATIENCE} | kw
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if ok:
        assert done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stderr}"
    return done


def mounts(point: Path | str) -> list[tuple[str, str]]:
    """(type, options) of every mount at that point, from the kernel's table."""
    want = str(point).replace("\\", "\\134").replace(" ", "\\040")
    with open("/proc/self/mounts") as table:
        return [(f[2], f[3]) for f in map(str.split, table) if f[1] == want]


def wait_mounted(point: Path, process: subprocess.Popen) -> None:
    """Wait until a file system that answers is mounted at point; the kernel tells of each new mount."""
    ended = os.pidfd_open(process.pid)
    try:
        with open("/proc/self/mountinfo") as table:
            poll = select.poll()
            poll.register(table, select.POLLPRI | select.POLLERR)
            poll.register(ended, select.POLLIN)
            while not mounts(point):
                assert poll.poll(PATIENCE * 1000), f"nothing was mounted at {point}"
                assert process.poll() is None, f"hipofs ended with {process.returncode} instead of mounting"
                table.seek(0)
                table.read()
        os.statvfs(point)
    finally:
        os.close(ended)


def wait_unmounted(point: Path) -> None:
    """Wait until nothing is mounted at point."""
    with open("/proc/self/mountinfo") as table:
        poll = select.poll()
        poll.register(table, select.POLLPRI | select.POLLERR)
        while mounts(point):
            assert poll.poll(PATIENCE * 1000), f"something stays mounted at {point}"
            table.seek(0)
            table.read()


def daemons(point: Path | str) -> list[int]:
    """Process ids of the hipofs processes that serve a mount point."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and "hipofs" in os.path.basename(os.readlink(f"/proc/{entry}/exe")):
                if os.fsencode(point) in Path("/proc", entry, "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def wait_ended(pid: int, seconds: float = PATIENCE) -> bool:
    """Wait for any process, a child or not, to end; False when it does not."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


class Mount:
    """A mounted chain. str() and / give paths below it."""

    def __init__(self, binary: Path, point: Path, env: dict[str, str]):
        self.binary, self.point, self.env = binary, point, env
        self.said = ""  # standard error of the command that mounted

    def start(self, sources: list[Path | str], options: tuple[str, ...], **kw) -> None:
        done = run(self.binary, *options, *sources, self.point, ok=False, env=self.env, **kw)
        self.said = done.stderr
        assert done.returncode == 0, f"mount: status {done.returncode}\n{done.stderr}"
        assert len(mounts(self.point)) == 1, "the command returned, and there is not one mount"

    def __truediv__(self, name: str) -> Path:
        return self.point / name

    def __fspath__(self) -> str:
        return str(self.point)

    __str__ = __fspath__

    def json(self, name: str):
        """A file of .hipofs, parsed."""
        return json.loads((self.point / ".hipofs" / name).read_text())

    def decoded(self) -> int:
        """How many records were inflated, or split directories read, so far."""
        return self.json("stats.json")["records_decoded"]

    @property
    def pid(self) -> int:
        """The process that serves the mount."""
        pids = daemons(self.point)
        assert len(pids) == 1, f"{len(pids)} hipofs processes serve {self.point}"
        return pids[0]

    def peak(self) -> int:
        """Peak resident memory of the serving process, bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def umount(self) -> None:
        """End the mount as a user does, and wait for its process to end."""
        pids = daemons(self.point)
        run(self.binary, "umount", self.point, env=self.env)
        assert not mounts(self.point), "umount succeeded, and the mount is still there"
        for pid in pids:
            assert wait_ended(pid), f"hipofs (process {pid}) outlives its mount"

    def discard(self) -> None:
        """Whatever state the mount is in: no mount and no process is left."""
        pids = daemons(self.point)
        while mounts(self.point):
            if run("fusermount3", "-u", "-z", self.point, ok=False).returncode:
                run("umount", "-l", self.point)
        for pid in pids:
            if not wait_ended(pid, 10):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_ended(pid)


@contextlib.contextmanager
def mounted(binary: Path, env: dict[str, str], sources, *options: str, **kw) -> Iterator[Mount]:
    """Mount sources in a folder of its own, and unmount whatever happens."""
    if isinstance(sources, (str, Path)):
        sources = [sources]
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        m = Mount(binary, Path(folder, "mnt"), env)
        m.point.mkdir()
        try:
            m.start(list(sources), options, **kw)
            yield m
            if mounts(m.point):
                m.umount()
        finally:
            m.discard()


class User:
    """Runs commands as an ordinary user, or as who runs the tests, in a folder that this user may use."""

    def __init__(self, folder: Path, hipofs: Path, ordinary: bool = True):
        self.folder, self.binary = folder, folder / "hipofs"
        self.point, self.source = folder / "mnt", folder / "run.hipo"
        shutil.copy(hipofs, self.binary)
        shutil.copyfile(data(GOLDEN_LZ4), self.source)
        self.source.chmod(0o644)
        self.point.mkdir()
        (folder / "home").mkdir()
        self.env = environment(folder / "home")
        self.prefix: list[str] = []
        if ordinary and os.geteuid() == 0:
            self.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            for path in (folder, self.point, folder / "home"):
                os.chown(path, NOBODY, NOBODY)

    def run(self, *argv, **kw):
        return run(*self.prefix, *argv, ok=False, **({"env": self.env, "cwd": self.folder} | kw))


# ---------------------------------------------------------------- looking at a tree

def banks(tree: Path) -> set[str]:
    """The bank folders that a tree lists."""
    return {n for n in os.listdir(tree) if not n.startswith(".") and n != "CACHEDIR.TAG" and not n.endswith(".arrow")}


def columns(bank: Path) -> set[str]:
    """The columns that a bank folder lists, without .npy and what is computed."""
    return {n[:-4] for n in os.listdir(bank)
            if n.endswith(".npy") and n != "offsets.npy" and not n.startswith("@")}


def walk(tree: Path) -> Iterator[Path]:
    """Every regular file below tree, in order."""
    for folder, _, names in os.walk(tree, onerror=_raise):
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_symlink():
                yield path


def _raise(error: OSError) -> None:
    raise error


def load(path: Path) -> np.ndarray:
    """np.load, plain and mapped, which must agree; the size must be what stat said, before and after."""
    size = os.stat(path).st_size
    plain, mapped = np.load(path), np.load(path, mmap_mode="r")
    assert (plain.dtype.str, plain.shape) == (mapped.dtype.str, mapped.shape)
    assert plain.tobytes() == mapped.tobytes(), f"{path}: read and mmap differ"
    assert plain.flags.c_contiguous and (size - plain.nbytes) % 64 == 0 and size > plain.nbytes
    assert os.stat(path).st_size == size
    return plain


def errno_of(call, *args) -> int:
    """The errno that call(*args) fails with; 0 when it does not fail."""
    try:
        result = call(*args)
    except OSError as e:
        return e.errno
    if call is os.open:
        os.close(result)
    return 0


def python(script: str, *args: str | Path, **kw) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder, or code given with -c, in a process of its own."""
    return run(sys.executable, ROOT / "integration" / script, *args, **kw)
