"""Ordinary programs on a mount: the bytes they see are the file's, and the sizes what stat says."""
from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from harness import data, digest, golden, run, walk

NAME = "clas12_recon_proton_80MeV.hipo"
COLUMN = "MC::True/trackE.npy"  # 6,667 rows: several blocks
EMPTY = {"stats.json", "errors.json", "progress.json", "metrics",  # like files of /proc
         ".trackerignore", ".metadata_never_index"}


@pytest.fixture
def m(mount):
    return mount(data(NAME))


@pytest.fixture
def column(m) -> tuple[Path, bytes]:
    """A column's path and its bytes, which golden.tsv knows."""
    path = m / COLUMN
    whole = path.read_bytes()
    row = next(r for r in golden()[NAME] if f"{r.bank}/{r.column}.npy" == COLUMN)
    content = np.frombuffer(whole[-row.rows * np.dtype(row.dtype).itemsize:], row.dtype)
    assert row.rows > 5000 and digest(content) == row.content
    return path, whole


def stdout(*argv: str | Path) -> bytes:
    """Standard output of a command that must succeed, in bytes."""
    return run(*argv, text=False).stdout


def test_cat_cp_and_cmp_give_the_bytes(column, tmp_path):
    path, whole = column
    assert stdout("cat", path) == whole
    for how in ([], ["-a"], ["--sparse=always"]):
        copy = tmp_path / f"copy{len(how and how[0])}"
        run("cp", *how, path, copy)
        assert copy.read_bytes() == whole
        run("cmp", path, copy)
    copy.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run("cmp", path, copy, ok=False).returncode == 1, "cmp sees a difference in the last byte"


@pytest.mark.parametrize("block", [1, 7, 777, 4095, 4097, 65537])
def test_dd_with_odd_blocks_before_at_and_past_the_end(column, block):
    path, whole = column
    blocks = len(whole) // block
    for skip in {0, 1, blocks // 2, max(0, blocks - 1), blocks, blocks + 1, blocks + 1000}:
        count = 3 if block > 7 else 500
        got = stdout("dd", f"if={path}", f"bs={block}", f"skip={skip}", f"count={count}", "status=none")
        assert got == whole[skip * block:(skip + count) * block], f"bs={block} skip={skip}"


def test_reads_around_the_end(column):
    path, whole = column
    fd = os.open(path, os.O_RDONLY)
    try:
        for at in (0, 63, 64, 127, 128, len(whole) - 1, len(whole), len(whole) + 1, len(whole) + 4096, 1 << 40):
            for n in (1, 100, 4096, len(whole) + 10):
                assert os.pread(fd, n, at) == whole[at:at + n], f"{n} bytes at {at}"
        assert os.lseek(fd, 0, os.SEEK_END) == len(whole) and os.read(fd, 1) == b""
    finally:
        os.close(fd)


def test_tail_head_and_wc(column):
    path, whole = column
    assert stdout("tail", "-c", "1001", path) == whole[-1001:]
    assert stdout("tail", "-c", f"+{len(whole) - 4}", path) == whole[-5:]
    assert stdout("head", "-c", "-1", path) == whole[:-1]
    assert int(stdout("wc", "-c", path).split()[0]) == len(whole)
    with open(path, "rb") as file:
        assert int(run("wc", "-c", stdin=file).stdout) == len(whole)


def test_find_ls_and_du_see_every_file_with_its_size(m):
    files = list(walk(m.point))
    assert len(files) > 3000
    found = stdout("find", m, "-type", "f", "-printf", "%s %b %n %p\\0").decode().split("\0")[:-1]
    sizes = {}
    for line in found:
        size, blocks, links, path = line.split(" ", 3)
        sizes[path] = int(size)
        assert int(blocks) == (int(size) + 511) // 512 and links == "1", path
    assert set(sizes) == set(map(str, files))
    for path in files:
        if sizes[str(path)]:
            assert len(path.read_bytes()) == sizes[str(path)], path
        else:
            assert path.name in EMPTY, f"{path} is empty"
    listed = run("ls", "-lAR", m)
    assert listed.stderr == "" and len(re.findall("^-r--r--r-- +1 ", listed.stdout, re.MULTILINE)) == len(files)
    folders = int(run("find", m, "-type", "d", "-printf", "x").stdout.count("x"))
    apparent = int(stdout("du", "--apparent-size", "--block-size=1", "-s", m).split()[0])
    empty = sum(p.lstat().st_size for p in (Path(d) for d, _, _ in os.walk(m)))
    links = sum(p.lstat().st_size for p in (m / ".hipofs/populated").iterdir())
    assert apparent in (sum(sizes.values()) + links, sum(sizes.values()) + links + empty) and folders > 194
    used = int(stdout("du", "--block-size=512", "-s", m).split()[0])
    assert used >= sum((s + 511) // 512 for s in sizes.values())


def archive(folder: Path | str) -> str:
    return hashlib.sha256(stdout("tar", "-C", folder, "--sort=name", "-cf", "-", ".")).hexdigest()


def test_two_tar_archives_are_the_same_also_after_remounting(mount):
    first = mount(data(NAME))
    one = archive(first)
    assert archive(first) == one
    inodes = {p.relative_to(first.point): p.lstat().st_ino for p in walk(first.point)}
    assert len(set(inodes.values())) == len(inodes) and 0 not in inodes.values()
    first.umount()
    again = mount(data(NAME))
    assert archive(again) == one, "another mount of the same source gives another archive"
    assert {p.relative_to(again.point): p.lstat().st_ino for p in walk(again.point)} == inodes


def same_tree(copy: Path, original: Path) -> None:
    """Every file of the mount is in the copy, with its bytes and times, and nothing else is."""
    want = {p.relative_to(original): p for p in walk(original)}
    got = {p.relative_to(copy): p for p in walk(copy)}
    assert got.keys() == want.keys()
    for name, path in want.items():
        if path.stat().st_size:
            assert got[name].read_bytes() == path.read_bytes(), name
        assert int(got[name].stat().st_mtime) == int(path.stat().st_mtime), name


def test_an_archive_extracted_again_is_equal(m, tmp_path):
    run("tar", "-C", m, "-cf", tmp_path / "a.tar", ".")
    (tmp_path / "out").mkdir()
    run("tar", "-C", tmp_path / "out", "-xf", tmp_path / "a.tar", "--delay-directory-restore")
    same_tree(tmp_path / "out", m.point)
    run("chmod", "-R", "u+w", tmp_path / "out")


@pytest.mark.parametrize("tool", [["rsync", "-a"], ["cp", "-a"]])
def test_a_copy_of_the_whole_tree_is_equal(tool, m, tmp_path):
    out = tmp_path / "out"
    run(*tool, f"{m}/.", out)
    same_tree(out, m.point)
    if tool[0] == "rsync":
        again = run("rsync", "-a", "--itemize-changes", "--checksum", "--exclude=.hipofs", f"{m}/", out)
        assert again.stdout == "", "rsync sees a difference"
    run("chmod", "-R", "u+w", out)


def test_a_mapping_outlives_its_descriptor(column):
    path, whole = column
    import mmap
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
    os.stat(path)
    os.listdir(path.parent)
    assert mapped[:] == whole
    mapped.close()
    private = np.load(path, mmap_mode="c")
    private[0] = 42
    assert path.read_bytes() == whole, "a copy-on-write mapping changed the file"


def test_modes_owner_and_times_are_the_sources(m):
    source = data(NAME).stat()
    for name in ("MC::Particle/px.npy", "MC::Particle/@entry.npy", ".hipofs/event_tags.npy"):
        st = (m / name).stat()
        assert stat.S_ISREG(st.st_mode) and st.st_mode & 0o7777 == source.st_mode & 0o444, name
        assert (st.st_uid, st.st_gid, int(st.st_mtime)) == (source.st_uid, source.st_gid, int(source.st_mtime)), name


def test_a_column_is_as_private_as_its_most_private_source(mount, tmp_path):
    for name, mode in (("a", 0o640), ("b", 0o604)):
        (tmp_path / f"{name}.hipo").write_bytes(data("codecs/small.hipo").read_bytes())
        (tmp_path / f"{name}.hipo").chmod(mode)
    m = mount([tmp_path / "a.hipo", tmp_path / "b.hipo"])
    assert (m / "SM::part/pid.npy").stat().st_mode & 0o7777 == 0o400
