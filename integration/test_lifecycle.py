"""How a mount begins and ends: signals while it is idle or in use, kills, stops, two starts at once, closed descriptors."""
from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import (CASES, PATIENCE, Mount, daemons, data, errno_of, golden, load, mounted, mounts, run, wait_ended,
                     wait_mounted, wait_unmounted)

NAME = "clas12_recon_proton_80MeV.hipo"
COLUMN = "MC::True/trackE.npy"
CYCLES = 20


@pytest.fixture
def foreground(hipofs, env, tmp_path):
    """foreground(sources, *options) is a mount whose process is a child of the test, and that process."""
    with contextlib.ExitStack() as stack:
        def start(sources, *options):
            m = Mount(hipofs, tmp_path / "mnt", env)
            m.point.mkdir(exist_ok=True)
            p = subprocess.Popen([hipofs, "-f", *options, *map(str, sources), m.point], env=env, stderr=subprocess.PIPE, text=True)
            stack.callback(m.discard)
            stack.callback(p.wait, PATIENCE)
            stack.callback(p.kill)
            wait_mounted(m.point, p)
            return m, p
        yield start


def end(p: subprocess.Popen) -> str:
    """What a process that ends says; its status must be 0."""
    _, said = p.communicate(timeout=PATIENCE)
    assert p.returncode == 0, said
    return said


def sums(dst) -> dict[str, str]:
    return {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in dst.content().items()}


# ---------------------------------------------------------------- signals

def test_signals_while_idle_leave_nothing_behind(foreground, env, tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "runtime").mkdir()
    env |= {"TMPDIR": str(tmp_path / "tmp"), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    for number in [signal.SIGTERM, signal.SIGINT] * (CYCLES // 2):
        m, p = foreground([data(NAME)])
        assert m.json("stats.json")["files"] == 1
        p.send_signal(number)
        end(p)
        assert not mounts(m.point) and not daemons(m.point)
        assert not list(m.point.iterdir()) and not list((tmp_path / "tmp").iterdir()) and not list((tmp_path / "runtime").iterdir())


READER = """
import hashlib, mmap, os, sys
folder, name, content = sys.argv[1], sys.argv[2], int(sys.argv[3])
where = os.open(folder, os.O_PATH)
with open(os.path.join(folder, name), "rb") as f:
    mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
try:
    os.open(name, os.O_RDONLY, dir_fd=where)
    print("opened")
except OSError as e:
    print(e.errno)
print(hashlib.sha256(mapped[len(mapped) - content:]).hexdigest())
"""


class Mapper:
    """A process that has mapped a column and read none of it. Afterwards it opens it again, and reads the mapping."""

    def __init__(self, m: Mount, name: str, content: int):
        self.p = subprocess.Popen([sys.executable, "-S", "-c", READER, str(m), name, str(content)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.p.stdout.readline() == "mapped\n", self.p.communicate()

    def read(self) -> list[str]:
        """The errno of the second open, and the digest of the content."""
        out, err = self.p.communicate(timeout=PATIENCE)
        assert self.p.returncode == 0, f"the reader has ended with {self.p.returncode}: {err}"
        return out.split()


def test_who_has_a_column_mapped_reads_on_after_the_signal(foreground, dst):
    content, want = dst.content(), sums(dst)
    rng = random.Random(5)
    for cycle in range(CYCLES):
        m, p = foreground(dst.sources, *([] if cycle % 2 else ["--no-index"]))
        names = rng.sample(sorted(content), 8)
        readers = [Mapper(m, name, content[name].nbytes) for name in names]
        p.send_signal(signal.SIGTERM)
        wait_unmounted(m.point)
        assert p.poll() is None, "the process has ended while readers have columns mapped"
        for name, reader in zip(names, readers):
            assert reader.read() == [str(errno.ENOTCONN), want[name]], name
        end(p)
        assert not mounts(m.point) and not daemons(m.point)


@pytest.mark.parametrize("how", [["--grace=1ms"], ["--grace", "0s"], ["-o", "grace=1ms"], []])
def test_the_grace_ends(how, foreground, env):
    if not how:
        env["HIPOFS_GRACE"] = "1ms"
    m, p = foreground([data(NAME)], *how)
    with open(m / COLUMN, "rb"):
        p.send_signal(signal.SIGTERM)
        end(p)
        assert not mounts(m.point)


def test_a_second_signal_ends_the_grace(foreground):
    m, p = foreground([data(NAME)], "--grace=1h")
    with open(m / COLUMN, "rb") as f:
        p.send_signal(signal.SIGTERM)
        wait_unmounted(m.point)
        assert f.read(6) == b"\x93NUMPY" and p.poll() is None
        p.send_signal(signal.SIGTERM)
        end(p)


# ---------------------------------------------------------------- kills and stops

WALKER = """
import os, random, sys
rng, names = random.Random(int(sys.argv[2])), sys.argv[3:]
while True:
    fd = os.open(os.path.join(sys.argv[1], rng.choice(names)), os.O_RDONLY)
    size = os.fstat(fd).st_size
    os.pread(fd, 1 << 16, rng.randrange(size))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    os.write(1, b".")
"""


def test_what_was_killed_while_it_was_read_is_repaired_by_the_next_start(mount, dst):
    content, want = dst.content(), sums(dst)
    rng = random.Random(11)
    m = mount(dst.sources)
    for kill in range(CYCLES):
        walker = subprocess.Popen([sys.executable, "-S", "-c", WALKER, str(m), str(kill), *sorted(content)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(rng.randrange(60)):  # the instant
            assert walker.stdout.read(1) == b"."
        pid = m.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_ended(pid)
        walker.communicate(timeout=PATIENCE)
        assert errno_of(os.listdir, m.point) == errno.ENOTCONN
        m.start(dst.sources, () if kill % 2 else ("--no-index",))
        assert not m.said and len(mounts(m.point)) == 1 and len(daemons(m.point)) == 1
        for name in rng.sample(sorted(content), 5):
            assert hashlib.sha256(load(m / name).tobytes()).hexdigest() == want[name], name
    for name in content:
        assert hashlib.sha256(load(m / name).tobytes()).hexdigest() == want[name], name
    assert m.json("stats.json")["errors"] == 0


def asleep_in_fuse(pid: int) -> bool:
    return "request_wait_answer" in Path(f"/proc/{pid}/wchan").read_text()


def test_readers_wait_for_a_process_that_stands_still(mount, dst):
    content, want = dst.content(), sums(dst)
    m = mount(dst.sources)
    pid = m.pid
    names = random.Random(3).sample(sorted(content), CYCLES)
    for name in names:
        os.kill(pid, signal.SIGSTOP)
        reader = subprocess.Popen(["tail", "-c", str(content[name].nbytes), m / name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            while not asleep_in_fuse(reader.pid):
                assert reader.poll() is None, "the reader did not need the process that stands still"
                os.sched_yield()
        finally:
            os.kill(pid, signal.SIGCONT)
        out, err = reader.communicate(timeout=PATIENCE)
        assert (reader.returncode, err) == (0, b"") and hashlib.sha256(out).hexdigest() == want[name], name


@pytest.mark.parametrize("dead", [False, True])
def test_of_starts_at_once_one_mounts(dead, hipofs, env, tmp_path):
    m = Mount(hipofs, tmp_path / "mnt", env)
    m.point.mkdir()
    row = next(r for r in golden()[NAME] if f"{r.bank}/{r.column}.npy" == COLUMN)
    try:
        if dead:
            m.start([data(NAME)], ())
        for round in range(CYCLES // 2):
            if dead:
                pid = m.pid
                os.kill(pid, signal.SIGKILL)
                assert wait_ended(pid)
            # -o nonempty: that the first mount is not empty must not be what stops the second.
            starts = [subprocess.Popen([hipofs, "-o", "nonempty", data(NAME), m.point], env=env, stderr=subprocess.PIPE, text=True)
                      for _ in range(4)]
            said = [p.communicate(timeout=PATIENCE)[1] for p in starts]
            assert sorted(p.returncode for p in starts) == [0, 7, 7, 7], said
            assert sum("hipofs is mounted here already" in s for s in said) == 3, said
            assert len(mounts(m.point)) == 1 and len(daemons(m.point)) == 1
            assert load(m / COLUMN).shape == row.shape
            if not dead:
                m.umount()
    finally:
        m.discard()


# ---------------------------------------------------------------- umount

def holder(*argv) -> subprocess.Popen:
    """A process that holds something of a mount until its input ends. It says so."""
    p = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline()
    return p


def let_go(p: subprocess.Popen) -> None:
    p.communicate(timeout=PATIENCE)


HOLD = {
    "descriptor": "import os, sys; os.open(sys.argv[1], os.O_RDONLY)",
    "path": "import os, sys; os.open(sys.argv[1], os.O_PATH)",
    "mapping": "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()",
    "folder": "import os, sys; os.chdir(os.path.dirname(sys.argv[1]))",
}


@pytest.mark.parametrize("what", [*HOLD, "two"])
def test_umount_names_who_is_busy(what, mount, command):
    m = mount(data(NAME))
    pid = m.pid
    holders = [holder(sys.executable, "-S", "-c", f"{HOLD[w]}; print(1, flush=True); sys.stdin.read()", m / COLUMN)
               for w in (["mapping", "folder"] if what == "two" else [what])]
    done = command("umount", m)
    line, = done.stderr.splitlines()
    assert done.returncode == 7 and all(f"{p.pid} (python" in line for p in holders) and "-z" in line, line
    assert len(mounts(m.point)) == 1 and load(m / COLUMN).size > 0, "a refused umount changes nothing"
    if what in ("mapping", "two"):
        assert command("umount", "-z", m).returncode == 0
        assert not mounts(m.point) and errno_of(os.stat, m / COLUMN) == errno.ENOENT
        assert not wait_ended(pid, 0), "who has it mapped still needs the process"
    for p in holders:
        let_go(p)
    if mounts(m.point):
        m.umount()
    assert wait_ended(pid)


# ---------------------------------------------------------------- going to the background

CLOSED = [c for n in range(4) for c in itertools.combinations((0, 1, 2), n)]


@pytest.mark.parametrize("closed", CLOSED, ids=lambda c: "".join(map(str, c)) or "none")
@pytest.mark.parametrize("case", ["mounts", "source", "folder", "conflict"])
def test_the_parent_tells_what_became_of_the_child(case, closed, hipofs, env, tmp_path):
    """Whatever of its three descriptors are closed: status, message, and an end to its output when it returns."""
    m = Mount(hipofs, tmp_path / "mnt", env)
    m.point.mkdir()
    (tmp_path / "bad.hipo").write_bytes(data(NAME).read_bytes()[:5000])
    sources, status, says = {
        "mounts": ([data(NAME)], 0, ""),
        "source": ([tmp_path / "bad.hipo"], 3, "bad.hipo"),  # found by the child
        "folder": ([data(NAME)], 7, "not empty"),            # found by the parent
        "conflict": ([data("cpp_golden_lz4.hipo"), CASES / "chain_a.hipo"], 4, "chain_a.hipo"),
    }[case]
    if case == "folder":
        (m.point / "x").touch()
    close = " ".join(f"{fd}<&-" for fd in closed)
    try:
        done = run("sh", "-c", f'exec "$@" {close}', "sh", hipofs, *sources, m.point, ok=False, env=env, stdin=None)
        assert done.returncode == status, done.stderr
        assert done.stdout == ""
        if 2 not in closed and says:
            line, = done.stderr.splitlines()
            assert line.startswith("hipofs: ") and says in line
        else:
            assert done.stderr == ""
        assert len(mounts(m.point)) == (status == 0)
        if status == 0:
            assert load(m / COLUMN).size > 0
            fds = {fd: os.readlink(f"/proc/{m.pid}/fd/{fd}") for fd in (0, 1, 2)}
            assert set(fds.values()) == {"/dev/null"}, fds
            m.umount()
    finally:
        m.discard()


def test_a_child_that_is_killed_before_it_answers_is_told(mount, hipofs, env, tmp_path):
    slow = mount(data("codecs/small.hipo"))  # a source that does not answer: a file of a mount that stands still
    load(slow / "SM::part/pid.npy")
    pid, point = slow.pid, tmp_path / "mnt"
    point.mkdir()
    os.kill(pid, signal.SIGSTOP)
    try:
        parent = subprocess.Popen([hipofs, slow / "SM::part/pid.npy", point], env=env, stderr=subprocess.PIPE, text=True)
        while parent.poll() is None:  # Go starts a child of its own, too, to see what the kernel can do
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{parent.pid}/task").iterdir():
                    for child in (task / "children").read_text().split():
                        os.kill(int(child), signal.SIGKILL)
            os.sched_yield()
    finally:
        os.kill(pid, signal.SIGCONT)
    _, said = parent.communicate(timeout=PATIENCE)
    line, = said.splitlines()
    assert parent.returncode == 1 and "ended before its mount answered" in line and "killed" in line, line
    assert not mounts(point) and not daemons(point)
