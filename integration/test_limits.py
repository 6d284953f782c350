"""Under limits that a batch system or an administrator sets, a mount serves the right bytes; scanners are kept out."""
from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from harness import PATIENCE, ROOT, load, run
from test_concurrency import race
from writer import event, structure, write

MIB = 1 << 20


@contextlib.contextmanager
def memory_group(limit: int):
    """A control group of that memory: its folder, in either version of control groups."""
    v1 = Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
    parent = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup")
    try:
        group = Path(tempfile.mkdtemp(prefix="hipofs-", dir=parent))
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))
    except OSError as e:
        pytest.skip(f"this user cannot make a control group: {e}")
    try:
        yield group
    finally:
        group.rmdir()


def killed(group: Path) -> int:
    """How often the kernel has killed for memory in the group."""
    events = group / "memory.events"
    lines = (events if events.exists() else group / "memory.oom_control").read_text().split("\n")
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def test_records_of_32_mb_in_a_control_group_of_128(hipofs, env, tmp_path, mount):
    """Eight readers at once; HIPOFS_LARGE_RECORDS is how many records there are."""
    rng = np.random.default_rng(1)
    rows, columns, batches = 40_000, "abcdefgh", []
    want = {c: [] for c in columns}
    for _ in range(int(os.environ.get("HIPOFS_LARGE_RECORDS", 4))):
        events = []
        for _ in range(25):
            values = [rng.integers(0, 1 << 16, rows).astype("<i4") for _ in columns]
            for c, v in zip(columns, values):
                want[c].append(v)
            events.append(event(structure(1, 1, 11, b"".join(v.tobytes() for v in values))))
        batches.append(events)
    path = tmp_path / "large.hipo"
    write(path, ["{A::a/1/1}{" + ",".join(f"{c}/I" for c in columns) + "}"], batches, lz4=True)
    oracle = tmp_path / "oracle/A::a"
    oracle.mkdir(parents=True)
    for c in columns:
        np.concatenate(want[c]).tofile(oracle / f"{c}.npy")
    with memory_group(128 * MIB) as group:
        m = mount(path, preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        assert str(m.pid) in (group / "cgroup.procs").read_text().split()
        race([[str(oracle.parent), str(m), f"--whole=A::a/{c}.npy"] for c in columns])
        assert killed(group) == 0
        assert m.peak() < 128 * MIB, f"{m.peak() // MIB} MiB"
        m.umount()


def test_a_thousand_files_with_64_descriptors(mount, tmp_path):
    values = np.arange(5, dtype="<i4")
    write(tmp_path / "0.hipo", ["{A::a/1/1}{x/I}"], [[event(structure(1, 1, 11, values.tobytes()))]])
    for i in range(1, 1000):
        shutil.copyfile(tmp_path / "0.hipo", tmp_path / f"{i}.hipo")
    for threads in (2, 64):
        m = mount(tmp_path, f"--threads={threads}", "--memory=1K", "--no-index",
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        np.testing.assert_array_equal(load(m / "A::a/x.npy"), np.tile(values, 1000))
        assert m.json("errors.json") == []
        assert resource.prlimit(m.pid, resource.RLIMIT_NOFILE) == (64, 64)
        m.umount()


@pytest.mark.parametrize("limits", [{"GOMAXPROCS": "1"}, {"GOMAXPROCS": "1", "threads": "1"}, {"processes": "40"}],
                         ids=lambda limits: ",".join(f"{k}={v}" for k, v in limits.items()))
def test_one_processor_and_few_processes(limits, user):
    env = user.env | ({"GOMAXPROCS": limits["GOMAXPROCS"]} if "GOMAXPROCS" in limits else {})
    options = ["--threads=" + limits["threads"]] if "threads" in limits else []
    within = ["prlimit", f"--nproc={limits['processes']}"] if "processes" in limits else []
    done = user.run(*within, user.binary, *options, user.source, user.point, env=env)
    assert done.returncode == 0, done.stderr
    done = user.run("sh", "-c", f"cat {user.point}/*/*.npy | wc -c", env=env)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr
    assert user.run(user.binary, "umount", user.point).returncode == 0


# ---------------------------------------------------------------- scanners

SCANNERS = {
    "tar": "tar -C {mount} --exclude-caches-all -cf - . | cat",
    "rg": "rg --no-messages something {mount}",
    "restic": "restic -q init && restic -q backup --exclude-caches {mount}",
    "updatedb": "updatedb --require-visibility no -U {mount} -o {home}/db",
    "find": "find {mount} -name core",
    "ls": "ls -lR {mount}",
}


@pytest.mark.parametrize("scanner", SCANNERS)
def test_scanners_open_no_column(scanner, dst, mount, tmp_path):
    if not shutil.which(scanner):
        pytest.skip(f"{scanner} is not installed")
    m = mount(dst.sources, "--no-index")
    os.stat(m / next(iter(dst.content())))  # waits for the pass that counts
    before = m.json("stats.json")
    env = os.environ | {"RESTIC_REPOSITORY": str(tmp_path / "repository"), "RESTIC_PASSWORD": "x", "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run(SCANNERS[scanner].format(mount=m, home=tmp_path), shell=True, check=False, timeout=PATIENCE,
                   env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    after = m.json("stats.json")
    assert (after["bytes_served"], after["records_decoded"]) == (before["bytes_served"], before["records_decoded"])
