"""Who may read what: columns are as private as their sources, and so is what a mount tells about itself."""
from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from harness import data, errno_of, mounts, run, walk

NAME = "cpp_golden_lz4.hipo"
COLUMN = "REC::Particle/px.npy"
NOBODY, OTHER = 65534, 65533

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others, and become them")


def sources(folder: Path, *attributes: tuple[int, int, int]) -> list[Path]:
    """A chain of files with these modes, owners and groups."""
    paths = [folder / f"{i}.hipo" for i in range(len(attributes))]
    for path, (mode, uid, gid) in zip(paths, attributes):
        shutil.copyfile(data(NAME), path)
        os.chown(path, uid, gid)
        path.chmod(mode)
    return paths


@needs_root
@pytest.mark.parametrize("attributes, want", [
    ([(0o644, 0, 0)], (0o444, 0, 0)),
    ([(0o600, 0, 0)], (0o400, 0, 0)),
    ([(0o640, 0, 0)], (0o440, 0, 0)),
    ([(0o444, 1, 2)], (0o444, 1, 2)),
    ([(0o644, 1, 2)], (0o444, 1, 2)),
    ([(0o600, 1, 2)], (0o400, 1, 2)),
    ([(0o640, 1, 2)], (0o440, 1, 2)),
    ([(0o604, 1, 2)], (0o404, 1, 2)),
    ([(0o060, 1, 2)], (0o040, 1, 2)),
    ([(0o755, 1, 2)], (0o444, 1, 2)),
    ([(0o6755, 1, 2)], (0o444, 1, 2)),
    ([(0o222, 1, 2)], (0o000, 1, 2)),
    ([(0o666, NOBODY, NOBODY)], (0o444, NOBODY, NOBODY)),
    ([(0o644, 1, 2), (0o644, 1, 2)], (0o444, 1, 2)),
    ([(0o644, 1, 2), (0o640, 1, 2)], (0o440, 1, 2)),
    ([(0o640, 1, 2), (0o604, 1, 2)], (0o400, 1, 2)),
    ([(0o644, 1, 2), (0o644, 3, 2)], (0o400, 0, 0)),
    ([(0o644, 1, 2), (0o644, 1, 3)], (0o400, 0, 0)),
    ([(0o644, 1, 2), (0o644, 1, 2), (0o600, 1, 2)], (0o400, 1, 2)),
    ([(0o644, 1, 2), (0o644, 1, 2), (0o600, 3, 2)], (0o400, 0, 0)),
])
def test_everything_is_as_private_as_the_sources(attributes, want, mount, tmp_path):
    chain = sources(tmp_path, *attributes)
    m = mount(chain)
    mode, uid, gid = want
    seen = 0
    for folder, _, names in os.walk(m.point):
        for path in [Path(folder), *(Path(folder, n) for n in names)]:
            st = path.lstat()
            seen += 1
            kind = stat.S_IFMT(st.st_mode)
            allowed = {stat.S_IFREG: mode, stat.S_IFDIR: mode | mode >> 2, stat.S_IFLNK: 0o777}[kind]
            assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (allowed, uid, gid), path
    assert seen > 30
    assert {"stats.json", "errors.json", "files.json"} <= set(os.listdir(m / ".hipofs")), "these are among what was seen"
    for (source_mode, *owner), source in zip(attributes, chain):
        st = (m / f".files/{source.name}/{COLUMN}").stat()
        assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (source_mode & 0o444, *owner), "a file of the chain is as private as itself"


def as_user(uid: int, *argv) -> subprocess.CompletedProcess[bytes]:
    return run("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv, ok=False, text=False,
               env=os.environ | {"LC_ALL": "C"})


@needs_root
@pytest.mark.parametrize("others, mode, owner, reader, gets_in", [
    (False, 0o644, 0, NOBODY, False),
    (False, 0o644, NOBODY, NOBODY, False),
    (False, 0o644, 0, 0, True),
    (True, 0o644, 0, NOBODY, True),
    (True, 0o644, NOBODY, OTHER, True),
    (True, 0o640, 0, NOBODY, False),
    (True, 0o600, 0, NOBODY, False),
    (True, 0o600, NOBODY, NOBODY, True),
    (True, 0o600, NOBODY, OTHER, False),
    (True, 0o640, NOBODY, OTHER, False),
    (True, 0o044, NOBODY, NOBODY, False),
    (True, 0o600, NOBODY, 0, True),
])
def test_others_get_in_when_told_to_and_as_far_as_the_sources_let_them(others, mode, owner, reader, gets_in, mount, tmp_path):
    m = mount(sources(tmp_path, (mode, owner, owner)), *(["-o", "allow_other"] if others else []))
    m.point.parent.chmod(0o755)
    (_, options), = mounts(m.point)
    assert ("allow_other" in options) == others and "default_permissions" in options
    for argv in (["ls", m.point], ["cat", m / COLUMN], ["cat", m / ".hipofs/stats.json"], ["cat", m / ".hipofs/files.json"],
                 ["cat", m / ".files/0.hipo" / COLUMN], ["readlink", m / ".hipofs/populated/REC::Particle"]):
        done = as_user(reader, *argv)
        assert (done.returncode == 0) == gets_in, f"{argv}: {done.stderr}"
        assert gets_in or argv[0] == "readlink" or b"Permission denied" in done.stderr


def test_what_the_mount_tells_about_itself_takes_no_commands(mount):
    m = mount(data(NAME))
    seen = 0
    for folder, folders, names in os.walk(m / ".hipofs"):
        for path in (Path(folder, n) for n in folders + names):
            st = path.lstat()
            assert stat.S_ISDIR(st.st_mode) or stat.S_ISREG(st.st_mode) or stat.S_ISLNK(st.st_mode), "no pipe, no socket"
            assert stat.S_ISLNK(st.st_mode) or st.st_mode & 0o222 == 0
            if stat.S_ISREG(st.st_mode):
                assert errno_of(os.open, path, os.O_WRONLY) == errno.EROFS
                seen += 1
    assert seen >= 10


# ---------------------------------------------------------------- a program with more rights than its caller

@pytest.fixture
def capable(hipofs):
    """hipofs with a capability of its file, which a caller who is not root lacks."""
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder, "hipofs")
        shutil.copy(hipofs, copy)
        run("setcap", "cap_net_bind_service+ep", copy)
        shutil.copyfile(data(NAME), copy.parent / "run.hipo")
        yield copy


@needs_root
@pytest.mark.skipif(not shutil.which("setcap"), reason="there is no setcap here")
@pytest.mark.parametrize("variable, value", [
    ("HIPOFS_BANKS", "NO::Such"), ("HIPOFS_BANKS", "["), ("HIPOFS_MEMORY", "much"), ("HIPOFS_ON_ERROR", "shrug"), ("HIPOFS_THREADS", "-1"),
    ("HIPOFS_MAX_RECORD", "1"),
])
def test_the_environment_steers_no_program_with_rights_that_its_caller_lacks(variable, value, capable, hipofs):
    def ls(program):
        return run("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"{variable}={value}", "XDG_CACHE_HOME=/nowhere",
                   program, "ls", capable.parent / "run.hipo", ok=False)
    done = ls(capable)
    assert done.returncode == 0 and "REC::Particle" in done.stdout, done.stderr
    plain = capable.parent / "plain"
    shutil.copy(hipofs, plain)
    done = ls(plain)
    assert done.returncode != 0 or "REC::Particle" not in done.stdout, "without the capability it does steer it"


@needs_root
@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_setuid_hipofs_does_not_run(mode, capable):
    os.chown(capable, 0, 0)
    capable.chmod(mode)
    done = as_user(NOBODY, capable, "ls", capable.parent / "run.hipo")
    line, = done.stderr.splitlines()
    assert done.returncode == 1 and b"setuid" in line and b"chmod" in line and done.stdout == b""


# ---------------------------------------------------------------- what du and df say

def test_du_df_and_ls_agree_with_the_sizes(mount):
    whole = data("clas12_recon_proton_80MeV.hipo")
    m = mount(whole)
    files = list(walk(m.point))
    sizes = [p.stat().st_size for p in files]
    columns = [p for p in files if p.suffix == ".npy" and p.parent.name != ".hipofs"]
    assert len(columns) > 2000
    for p in columns[::100]:
        assert p.stat().st_size == 128 + np.load(p, mmap_mode="r").nbytes
    links = [p.lstat().st_size for p in (m / ".hipofs/populated").iterdir()]
    blocks = sum(-(-s // 512) for s in sizes + links)
    assert int(run("du", "-s", "--block-size=512", "-l", m).stdout.split()[0]) == blocks
    assert int(run("du", "-s", "-b", "-l", m).stdout.split()[0]) == sum(sizes + links), "folders and live files count nothing"
    for p in columns[:50]:
        assert int(run("ls", "-s", "--block-size=512", p).stdout.split()[0]) == -(-p.stat().st_size // 512), p
    source = whole.stat().st_size
    name, total, used, free, percent, where = run("df", "-P", "-B1", m).stdout.splitlines()[1].split()
    assert (name, int(total), int(free), percent, where) == ("hipofs", -(-source // 4096) * 4096, 0, "100%", str(m)) and used == total
    inodes = run("df", "-P", "-i", m).stdout.splitlines()[1].split()
    assert int(inodes[1]) > 190 and int(inodes[3]) == 0
    kind, block, namelen = run("stat", "-f", "-c", "%t %S %l", m).stdout.split()
    assert (kind, block, namelen) == ("65735546", "4096", "255")
