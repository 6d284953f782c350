"""What a file system owes its callers, and what other file systems with made-up content got wrong."""
from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness import (banks, columns, daemons, data, errno_of, golden, load, mounts, records, run, wait_ended,
                     wait_mounted, walk)
from writer import event, structure, write

NAME = "clas12_recon_proton_80MeV.hipo"
COLUMN = "MC::True/trackE.npy"


@pytest.fixture
def m(mount):
    return mount(data(NAME))


def xattr(path: Path, name: str) -> int:
    return errno_of(os.getxattr, path, name)


# ---------------------------------------------------------------- a file and a folder

def test_seek_data_and_hole(m):
    fd = os.open(m / COLUMN, os.O_RDONLY)
    size = os.fstat(fd).st_size
    try:
        for at in (0, 1, 127, 128, size - 1):
            assert os.lseek(fd, at, os.SEEK_DATA) == at
            assert os.lseek(fd, at, os.SEEK_HOLE) == size
        for at in (size, size + 1, 1 << 40):
            for whence in (os.SEEK_DATA, os.SEEK_HOLE):
                assert errno_of(os.lseek, fd, at, whence) == errno.ENXIO, at
    finally:
        os.close(fd)


def test_o_direct_works_or_is_refused_at_open(m):
    whole = (m / COLUMN).read_bytes()
    try:
        fd = os.open(m / COLUMN, os.O_RDONLY | os.O_DIRECT)
    except OSError as e:
        assert e.errno == errno.EINVAL
        return
    import mmap
    page = mmap.mmap(-1, 1 << 20)  # memory at a page border
    try:
        n = os.preadv(fd, [page], 0)
        assert n > 0 and page[:n] == whole[:n]
    finally:
        os.close(fd)


def test_folders_have_links_dots_and_a_stable_listing(m):
    for folder in (m.point, m / "MC::Particle", m / ".hipofs", m / ".nodes"):
        assert folder.stat().st_nlink >= 1
        raw = run("ls", "-fa", folder).stdout.splitlines()
        assert {".", ".."} <= set(raw) and len(raw) == len(set(raw))
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            first = os.listdir(fd)
            assert os.listdir(fd) == first, "a rewound listing differs"
        finally:
            os.close(fd)
        assert os.listdir(folder) == first and set(raw) == set(first) | {".", ".."}
    listing = run("ls", "-i1", m).stdout.split()[::2]
    assert [int(i) for i in listing] == [(m / n).stat().st_ino for n in run("ls", "-1", m).stdout.split()]


def test_statfs_and_mount_options(m):
    fs = os.statvfs(m)
    assert fs.f_blocks > 0 and fs.f_bfree == 0 and fs.f_bavail == 0 and fs.f_namemax >= 255
    (kind, options), = mounts(m)
    assert kind == "fuse.hipofs" and {"ro", "nosuid", "nodev", "noexec"} <= set(options.split(","))
    run("df", m)


def test_every_change_fails_as_on_a_read_only_mount(m):
    file, folder = m / COLUMN, m / "MC::True"
    assert os.geteuid() == 0 or not os.access(file, os.W_OK)
    for call, args in [
        (os.open, (file, os.O_WRONLY)), (os.open, (file, os.O_RDWR)), (os.open, (file, os.O_WRONLY | os.O_TRUNC)),
        (os.open, (folder / "new", os.O_CREAT | os.O_WRONLY)), (os.truncate, (file, 0)), (os.unlink, (file,)),
        (os.rename, (file, folder / "new")), (os.mkdir, (folder / "new",)), (os.rmdir, (folder,)),
        (os.symlink, ("x", folder / "new")), (os.link, (file, folder / "new")), (os.mkfifo, (folder / "new",)),
        (os.setxattr, (file, "user.x", b"1")), (os.removexattr, (file, "user.hipofs.name")),
    ]:
        assert errno_of(call, *args) == errno.EROFS, call.__name__
    if os.geteuid() == 0:
        assert errno_of(os.chmod, file, 0o777) == errno.EROFS
        assert errno_of(os.chown, file, 1, 1) == errno.EROFS
        assert errno_of(os.utime, file) == errno.EROFS


@pytest.mark.parametrize("name", [".git", ".Trash", ".Trash-0", ".hidden", "._x", ".localized", "REC::Nope", "autorun.inf",
                                  "MC::Particle/nope.npy", "MC::Particle/px", "MC::Particle/px.npy.npy",
                                  "MC::Particle/@nope.npy", ".files/nope", ".nodes/1.2", ".hipofs/nope", "x" * 255])
def test_unknown_names_are_not_found_and_decode_nothing(name, mount):
    m = mount(data(NAME), "--index=lazy", "--no-index")
    if not name.startswith((".nodes", "MC::Particle/")):  # these two may wait for the counting pass
        assert errno_of(os.stat, m / name) == errno.ENOENT
        assert m.decoded() == 0
    assert errno_of(os.stat, m / name) == errno.ENOENT
    assert errno_of(os.open, m / name, os.O_RDONLY) == errno.ENOENT


def test_a_name_that_is_too_long(m):
    assert errno_of(os.stat, m / ("x" * 256)) == errno.ENAMETOOLONG


def test_xattrs_are_answered_from_memory(mount):
    m = mount(data(NAME), "--index=lazy", "--no-index")
    for name in ("security.selinux", "security.capability", "system.posix_acl_access", "system.nfs4_acl", "user.x",
                 "trusted.overlay.opaque", "user.hipofs.realpath"):
        assert xattr(m.point, name) in (errno.ENODATA, errno.EOPNOTSUPP) and xattr(m / "MC::Particle", name) in (
            errno.ENODATA, errno.EOPNOTSUPP), name
    assert os.getxattr(m / "MC::Particle", "user.hipofs.name") == b"MC::Particle"
    assert os.listxattr(m / "MC::Particle") == []
    assert m.decoded() == 0
    column = m / "MC::Particle/px.npy"
    assert os.getxattr(column, "user.hipofs.name") == b"px"
    assert xattr(column, "user.hipofs.realpath") == errno.ENODATA, "there is no cache folder"
    assert xattr(column, "security.selinux") in (errno.ENODATA, errno.EOPNOTSUPP)
    assert os.listxattr(column) == []


def test_names_that_a_file_name_cannot_carry(mount, tmp_path):
    """bank in the file → folder; column in the file → .npy; true names in schema.json."""
    schemas = [
        ("R::a", ["offsets", "@entry", "100%", "x", "X", ".hidden", "schema.json", "tab\tin", "é"]),
        (".hipofs", ["v"]), ("@R", ["v"]), ("CACHEDIR.TAG", ["v"]), ("r~2", ["v"]), ("long" + "y" * 300, ["v"]), ("R::A", ["v"]),
    ]
    value = struct.pack("<i", 7)
    write(tmp_path / "names.hipo", [f"{{{b}/500/{i + 1}}}{{{','.join(f'{c}/I' for c in cols)}}}"
                                    for i, (b, cols) in enumerate(schemas)],
          [[event(*(structure(500, i + 1, 11, value * len(cols)) for i, (_, cols) in enumerate(schemas)))]])
    m = mount(tmp_path / "names.hipo")
    shown = {}
    for folder in os.listdir(m.point):
        if (m / folder / "schema.json").is_file():
            shown[json.loads((m / folder / "schema.json").read_text())["name"]] = folder
    assert set(shown) == {b for b, _ in schemas}, "a bank of that name is missing"
    assert len(set(shown.values())) == len(schemas)
    for bank, cols in schemas:
        folder = shown[bank]
        assert len(os.fsencode(folder)) <= 255
        schema = json.loads((m / folder / "schema.json").read_text())
        assert [c["name"] for c in schema["columns"]] == cols
        assert len({c["file"] for c in schema["columns"]}) == len(cols)
        for c in schema["columns"]:
            assert load(m / folder / c["file"]).tolist() == [7], (bank, c)
        assert load(m / folder / "offsets.npy").tolist() == [0, 1]
        assert load(m / folder / "@entry.npy").tolist() == [0]
        assert os.getxattr(m / folder, "user.hipofs.name") == bank.encode()
    assert shown["R::a"] == "R::a" and shown["R::A"] == "R::A"
    assert shown[".hipofs"] == "%2Ehipofs" and shown["@R"] == "%40R" and shown["r~2"] == "r%7E2"
    assert shown["CACHEDIR.TAG"] != "CACHEDIR.TAG" and (m / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172")
    files = {c["name"]: c["file"] for c in json.loads((m / "R::a/schema.json").read_text())["columns"]}
    assert files["100%"] == "100%25.npy" and files["@entry"] == "%40entry.npy" and files["x"] == "x.npy" and files["é"] == "é.npy"
    assert shown["long" + "y" * 300].startswith(("long" + "y" * 300)[:200] + "~")


def test_names_dot(mount):
    m = mount(data("cpp_golden_lz4.hipo"), "--names=dot")
    assert banks(m.point) == {"REC.Event", "REC.Particle"}
    row = next(r for r in golden()["cpp_golden_lz4.hipo"] if r.bank == "REC::Particle" and r.column == "px")
    assert load(m / "REC.Particle/px.npy").shape == row.shape


def test_banks_leaves_the_others_out(mount):
    m = mount(data(NAME), "--banks=MC::*,RUN::config")
    want = {r.bank for r in golden()[NAME] if r.bank.startswith("MC::") or r.bank == "RUN::config"}
    assert banks(m.point) == want and len(want) > 3


# ---------------------------------------------------------------- what costs nothing

@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A dictionary of 70,000 banks, of which one has a row."""
    path = tmp_path_factory.mktemp("wide") / "wide.hipo"
    write(path, [f"{{B{i:05d}::x/{1000 + i // 200}/{1 + i % 200}}}{{a/I,b/F}}" for i in range(70_000)],
          [[event(structure(1000 + 69_999 // 200, 1 + 69_999 % 200, 11, struct.pack("<if", 7, 0.5)))]])
    return path


def test_a_dictionary_of_70000_banks_lists_completely_and_decodes_nothing(wide, mount):
    m = mount(wide, "--index=lazy", "--no-index")
    want = {f"B{i:05d}::x" for i in range(70_000)}
    assert banks(m.point) == want
    listed = run("ls", "-f", m).stdout.splitlines()
    assert len(listed) == len(set(listed)) and want <= set(listed)
    assert columns(m / "B12345::x") == {"a", "b"}
    assert m.decoded() == 0
    assert load(m / "B69999::x/a.npy").tolist() == [7] and load(m / "B12345::x/b.npy").shape == (0,)


def test_listing_waits_for_nothing(dst, mount):
    m = mount(dst.sources, "--index=lazy", "--no-index")
    for folder in ["", ".hipofs", *dst.banks]:
        assert os.listdir(m / folder) or folder
    for bank in dst.banks:
        json.loads((m / bank / "form.json").read_text())
    assert m.decoded() == 0


def test_walkers_decode_nothing_beyond_the_pass_that_counts(dst, mount):
    m = mount(dst.sources, "--no-index")
    some = next(iter(dst.content()))
    os.stat(m / some)  # waits for the pass
    counted = m.decoded()
    assert counted == dst.records
    run("find", m, "-type", "f", "-size", "+1k")
    run("ls", "-lR", m)
    run("du", "-s", m)
    assert m.decoded() == counted


def test_previews_decode_nothing_beyond_the_pass_that_counts(mount):
    path = data(NAME)
    m = mount(path, "--no-index")
    files = [p for p in walk(m.point) if p.suffix == ".npy"]
    for p in files:
        with open(p, "rb") as f:
            assert f.read(6) == b"\x93NUMPY"
    assert m.decoded() == len(records(path))


def test_a_walk_over_everything_decodes_each_record_twice_at_most(dst, mount):
    m = mount(dst.sources, "--no-index")
    run("sh", "-c", 'tar -C "$1" -cf - . | cat >/dev/null', "sh", m)  # straight to /dev/null, tar reads nothing
    assert dst.records <= m.decoded() <= 2 * dst.records


# ---------------------------------------------------------------- beginning and ending

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_unmount_a_foreground_mount_with_status_0(number, hipofs, env, tmp_path):
    point = tmp_path / "mnt"
    point.mkdir()
    p = subprocess.Popen([hipofs, "-f", data(NAME), point], env=env, stderr=subprocess.PIPE, text=True)
    try:
        wait_mounted(point, p)
        assert len(load(point / COLUMN)) > 0
        p.send_signal(number)
        _, said = p.communicate(timeout=60)
        assert (p.returncode, mounts(point)) == (0, []), said
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        if mounts(point):
            run("umount", "-l", point)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_unmount_a_background_mount(number, m):
    pid = m.pid
    os.kill(pid, number)
    assert wait_ended(pid) and not mounts(m)


def test_the_command_returns_when_the_mount_answers(m):
    """m was started in the background; the first call after it, from another process, finds the tree."""
    assert "MC::Particle" in run("ls", m).stdout.splitlines()
    assert os.getsid(m.pid) != os.getsid(0), "the daemon would die with the terminal"


def test_a_dead_mount_is_repaired_and_mounted_once(m):
    pid = m.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(pid)
    assert errno_of(os.listdir, m.point) == errno.ENOTCONN
    m.start([data(NAME)], ())
    assert len(mounts(m)) == 1 and len(daemons(m)) == 1
    assert len(load(m / COLUMN)) > 0


def test_a_mount_point_that_is_in_use_is_refused(m, command):
    done = command(data(NAME), m)
    assert done.returncode == 7 and len(mounts(m)) == 1
    line, = done.stderr.splitlines()
    assert str(m) in line
    assert len(load(m / COLUMN)) > 0, "the mount that was there goes on"


def test_umount_names_who_is_busy_and_z_is_lazy(m, command):
    with open(m / COLUMN, "rb") as f:
        done = command("umount", m)
        assert done.returncode == 7 and str(os.getpid()) in done.stderr, done.stderr
        assert len(mounts(m)) == 1
        pid = m.pid
        assert command("umount", "-z", m).returncode == 0
        assert not mounts(m)
        assert f.read(6) == b"\x93NUMPY", "what is open stays readable"
    assert wait_ended(pid)


def test_umount_of_what_is_no_mount(command, tmp_path):
    done = command("umount", tmp_path)
    line, = done.stderr.splitlines()
    assert done.returncode == 7 and str(tmp_path) in line


def test_the_systems_own_umount_ends_the_daemon(m):
    pid = m.pid
    run("umount", m) if os.geteuid() == 0 else run("fusermount3", "-u", m)
    assert wait_ended(pid)


def test_a_relative_source_survives_going_to_the_background(mount, tmp_path):
    (tmp_path / "run.hipo").write_bytes(data("codecs/small.hipo").read_bytes())
    m = mount("run.hipo", cwd=tmp_path)
    row = next(r for r in golden()["codecs/small.hipo"] if r.column == "pid")
    assert load(m / "SM::part/pid.npy").shape == row.shape
    assert os.path.basename(m.json("files.json")[0]["name"]) == "run.hipo"


def test_a_path_into_the_mount_does_not_hang_it(mount, env):
    env["PATH"] = os.environ["PATH"]
    m = mount(data(NAME))
    m.umount()
    m.env = env | {"PATH": f"{m}:{m}/MC::Particle:{env['PATH']}"}
    m.start([data(NAME)], ())
    assert len(load(m / COLUMN)) > 0
    m.umount()


def test_a_mount_over_its_own_source_is_refused(command, tmp_path):
    source = tmp_path / "run.hipo"
    source.write_bytes(data("codecs/small.hipo").read_bytes())
    for argument in (source, tmp_path):
        done = command(argument, tmp_path)
        line, = done.stderr.splitlines()
        assert done.returncode == 7 and not mounts(tmp_path)
        assert "hide" in line and str(tmp_path) in line, line


def test_nothing_is_written_beside_the_source(mount, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    source = folder / "run.hipo"
    source.write_bytes(data("codecs/small.hipo").read_bytes())
    before = (os.listdir(folder), folder.stat().st_mtime_ns, source.stat().st_mtime_ns, source.read_bytes())
    m = mount(source)
    for p in walk(m.point):
        p.read_bytes()
    m.umount()
    assert (os.listdir(folder), folder.stat().st_mtime_ns, source.stat().st_mtime_ns, source.read_bytes()) == before


def test_a_folder_is_its_hipo_files_and_a_part_file_is_skipped_and_said(mount, tmp_path):
    for name in ("run.10.hipo", "run.9.hipo", "run.11.hipo.part", "notes.txt"):
        (tmp_path / name).write_bytes(data("codecs/small.hipo").read_bytes())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.hipo").write_bytes(b"not read: folders are not walked")
    m = mount(tmp_path)
    assert [os.path.basename(f["name"]) for f in m.json("files.json")] == ["run.9.hipo", "run.10.hipo"]
    assert "run.11.hipo.part" in m.said


def test_stats_count_what_was_served(m):
    before = m.json("stats.json")
    whole = (m / COLUMN).read_bytes()
    after = m.json("stats.json")
    assert after["bytes_served"] - before["bytes_served"] >= len(whole)
    assert after["files"] == 1 and after["files_counted"] == 1 and after["errors"] == 0
    assert (m / ".hipofs/stats.json").stat().st_size == 0


def test_a_mapping_of_every_mode_agrees(m):
    want = np.load(m / COLUMN)
    for mode in ("r", "c"):
        np.testing.assert_array_equal(np.load(m / COLUMN, mmap_mode=mode), want)
    assert len(want) > 5000
