"""hipofs for an ordinary user, through fusermount3. Root becomes one for these tests; anybody else is one."""
from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from harness import GOLDEN_LZ4, NOBODY, daemons, digest, errno_of, golden, mounts, run, wait_ended


def test_an_ordinary_user_mounts_reads_and_unmounts(user):
    done = user.run(user.binary, user.source, user.point)
    assert done.returncode == 0, done.stderr
    (kind, options), = mounts(user.point)
    assert kind == "fuse.hipofs" and {"ro", "nosuid", "nodev", "noexec"} <= set(options.split(","))
    assert f"user_id={NOBODY if os.geteuid() == 0 else os.geteuid()}" in options and "allow_other" not in options
    pid, = daemons(user.point)
    if os.geteuid() == 0:
        assert os.stat(f"/proc/{pid}").st_uid == NOBODY
        assert errno_of(os.listdir, user.point) == errno.EACCES, "another user, also root, is kept out"
    rows = [r for r in golden()[GOLDEN_LZ4] if r.bank == "REC::Particle"]
    assert len(rows) == 6
    for r in rows:
        whole = user.run("cat", user.point / f"REC::Particle/{r.column}.npy", text=False)
        assert whole.returncode == 0, whole.stderr
        size = int(user.run("stat", "-c", "%s", user.point / f"REC::Particle/{r.column}.npy").stdout)
        assert size == len(whole.stdout)
        nbytes = r.rows * np.dtype(r.dtype).itemsize
        assert digest(np.frombuffer(whole.stdout[-nbytes:], r.dtype)) == r.content
    for argv in (["touch", user.point / "x"], ["rm", "-f", user.point / "REC::Particle/px.npy"]):
        done = user.run(*argv, env=user.env | {"LC_ALL": "C"})
        assert done.returncode != 0 and "Read-only file system" in done.stderr
    done = user.run(user.binary, "umount", user.point)
    assert done.returncode == 0, done.stderr
    assert not mounts(user.point) and wait_ended(pid)


def test_fusermount3_ends_the_daemon_of_an_ordinary_user(user):
    assert user.run(user.binary, user.source, user.point).returncode == 0
    pid, = daemons(user.point)
    assert user.run("fusermount3", "-u", user.point).returncode == 0
    assert not mounts(user.point) and wait_ended(pid)


def test_an_ordinary_user_repairs_a_dead_mount(user):
    assert user.run(user.binary, user.source, user.point).returncode == 0
    pid, = daemons(user.point)
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(pid)
    done = user.run(user.binary, user.source, user.point)
    assert done.returncode == 0, done.stderr
    assert len(mounts(user.point)) == 1 and len(daemons(user.point)) == 1
    assert user.run("ls", user.point).returncode == 0


def test_a_signal_unmounts_for_an_ordinary_user(user):
    assert user.run(user.binary, user.source, user.point).returncode == 0
    pid, = daemons(user.point)
    os.kill(pid, signal.SIGTERM)
    assert wait_ended(pid) and not mounts(user.point)


def test_a_source_that_the_user_may_not_read_is_status_3(user):
    user.source.chmod(0)
    done = user.run(user.binary, user.source, user.point)
    line, = done.stderr.splitlines()
    assert done.returncode == 3 and "run.hipo" in line and "permission denied" in line.lower()


def test_without_fusermount3_the_remedy_is_named(user):
    """PATH is empty, so an ordinary user finds no fusermount3."""
    user.env["PATH"] = str(user.folder / "home")
    done = run(*([shutil.which("setpriv"), *user.prefix[1:]] if user.prefix else []), user.binary, user.source, user.point,
               ok=False, env=user.env, cwd=user.folder)
    line, = done.stderr.splitlines()
    assert done.returncode == 6 and "fuse3" in line, line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can close /dev/fuse")
def test_a_closed_dev_fuse_is_named(user):
    os.chmod("/dev/fuse", 0o600)
    done = user.run(user.binary, user.source, user.point)
    line, = done.stderr.splitlines()
    assert done.returncode == 6 and "/dev/fuse" in line, line


def test_allow_other_without_user_allow_other_is_named(user):
    conf = Path("/etc/fuse.conf")
    if conf.exists() and any(line.strip() == "user_allow_other" for line in conf.read_text().splitlines()):
        assert user.run(user.binary, "-o", "allow_other", user.source, user.point).returncode == 0
        return
    done = user.run(user.binary, "-o", "allow_other", user.source, user.point)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 6 and "user_allow_other" in line and "/etc/fuse.conf" in line, done.stderr
