"""What is kept about a file, and that nobody is served by it what the file no longer says.

Expected values come from golden.tsv, from layout.py, or from the file that the test wrote.
"""
from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import lz4.block
import numpy as np
import pytest
import xxhash

from benchfiles import made_up
from harness import Mount, daemons, data, digest, errno_of, golden, mounted, mounts, records, run, wait_ended
from layout import BY_BANK, inflate, splits
from writer import event, structure, write

REAL = "clas12_recon_proton_80MeV.hipo"
SUFFIX = ".hipofs-index"
SPLIT = ["tag05_zstd_perbank", "tag08_zstd_percolumn", "tag08_v3_zstd_percolumn", "tag10_lz4_percolumn",
         "tag12_gzip_percolumn", "tag14_none_percolumn", "tag09_lz4_perbank"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk that is full or read-only")


def filled(name: str) -> list:
    """The golden rows of every column of a bank that has rows."""
    return [r for r in golden()[name] if r.rows and not r.bank.startswith("@")]


def check_columns(m, name: str) -> None:
    """The columns of every bank with rows have their golden bytes."""
    for r in filled(name):
        assert digest(np.load(m / f"{r.bank}/{r.column}.npy")) == r.content, f"{r.bank}/{r.column}"
        assert digest(np.load(m / f"{r.bank}/offsets.npy")) == r.offsets, r.bank


def copies(folder: Path, n: int) -> list[Path]:
    """n copies of the real file that differ: each has another file number in its header."""
    folder.mkdir()
    content = bytearray(data(REAL).read_bytes())
    paths = [folder / f"run.{i}.hipo" for i in range(n)]
    for i, path in enumerate(paths):
        content[4:8] = i.to_bytes(4, "little")
        path.write_bytes(content)
    return paths


def links(folder: Path, n: int) -> list[Path]:
    """One file under n names."""
    folder.mkdir()
    paths = [folder / f"run.{i}.hipo" for i in range(n)]
    shutil.copyfile(data(REAL), paths[0])
    for path in paths[1:]:
        os.link(paths[0], path)
    return paths


def indexes(folder: Path) -> dict[str, int]:
    """The finished indexes of a folder, with their inodes."""
    return {e.name: e.inode() for e in os.scandir(folder) if e.name.endswith(SUFFIX)} if folder.is_dir() else {}


def wait_until(holds, process: subprocess.Popen) -> None:
    """Look until it holds or the process has ended."""
    while not holds() and process.poll() is None:
        os.sched_yield()


# ---------------------------------------------------------------- building

def test_two_processes_index_one_file_at_once(hipofs, mount, tmp_path):
    source, index = tmp_path / "run.hipo", tmp_path / "index"
    shutil.copyfile(data(REAL), source)
    for _ in range(10):
        both = [subprocess.Popen([hipofs, "index", "-q", f"--index-dir={index}", source], stderr=subprocess.PIPE)
                for _ in range(2)]
        assert [(p.communicate()[1], p.returncode) for p in both] == [(b"", 0)] * 2
        assert len(os.listdir(index)) == len(indexes(index)) == 1, "something half-written is left"
        m = mount(source, f"--index-dir={index}")
        check_columns(m, REAL)
        assert m.json("stats.json")["files_counted"] == 1 and m.decoded() <= len(records(source))
        m.umount()
        for name in indexes(index):
            (index / name).unlink()


def test_two_mounts_index_one_file_at_once(hipofs, env, tmp_path):
    index = tmp_path / "index"
    points = [tmp_path / "a", tmp_path / "b"]
    with contextlib.ExitStack() as stack:
        both = []
        for point in points:
            point.mkdir()
            stack.callback(Mount(hipofs, point, env).discard)
            both.append(subprocess.Popen([hipofs, "--index=eager", f"--index-dir={index}", data(REAL), point], env=env))
        assert [p.wait() for p in both] == [0, 0]
        for point in points:
            check_columns(point, REAL)
            run(hipofs, "umount", point, env=env)
    assert len(os.listdir(index)) == len(indexes(index)), "something half-written is left"


def test_a_mount_that_ends_takes_no_index_from_another(hipofs, env, tmp_path):
    """It adds what was read to the index, which another mount goes by."""
    index = tmp_path / "index"
    with mounted(hipofs, env, data(REAL), f"--index-dir={index}", f"--log-file={tmp_path}/log") as m:
        with mounted(hipofs, env, data(REAL), f"--index-dir={index}") as other:
            for each in (m, other):
                np.load(each / "MC::Particle/px.npy")
        decoded = m.decoded()
        for r in filled(REAL):
            assert digest(np.load(m / f"{r.bank}/offsets.npy")) == r.offsets
        assert m.decoded() == decoded and len(indexes(index)) == 1
    assert "WARN" not in (tmp_path / "log").read_text()


def test_an_interrupted_run_keeps_what_is_finished_and_the_next_does_the_rest(hipofs, command, env, tmp_path):
    paths, index = links(tmp_path / "data", 400), tmp_path / "index"
    process = subprocess.Popen([hipofs, "index", "--threads=1", f"--index-dir={index}", *paths], env=env,
                               stderr=subprocess.PIPE, text=True)
    wait_until(lambda: indexes(index), process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "interrupted" in said.splitlines()[-1], said
    kept = indexes(index)
    assert 0 < len(kept) < len(paths) and len(os.listdir(index)) == len(kept), "something half-written is left"
    done = command("index", f"--index-dir={index}", *paths)
    assert done.returncode == 0 and "400 of 400 files" in done.stderr, done.stderr
    all_of_them = indexes(index)
    assert len(all_of_them) == len(paths)
    assert {n: all_of_them[n] for n in kept} == kept, "a finished index was made again"
    before = all_of_them
    assert command("index", "-q", f"--index-dir={index}", *paths).stderr == ""
    assert indexes(index) == before


def test_only_what_has_changed_is_indexed_again(command, tmp_path):
    paths, index = copies(tmp_path / "data", 4), tmp_path / "index"
    assert command("index", "-q", f"--index-dir={index}", *paths).returncode == 0
    before = indexes(index)
    os.utime(paths[2], ns=(1, 1))
    assert command("index", "-q", f"--index-dir={index}", *paths).returncode == 0
    after = indexes(index)
    assert len(before) == len(after) == 4 and len(before.items() - after.items()) == 1


def test_a_damaged_file_is_named_and_the_others_are_indexed(command, tmp_path):
    index = tmp_path / "index"
    done = command("index", "-q", f"--index-dir={index}", data("codecs/small.hipo"), data("codecs/corrupt_magic.hipo"),
                   data(REAL))
    line, = done.stderr.splitlines()
    assert done.returncode == 3 and "corrupt_magic.hipo" in line
    assert len(indexes(index)) == 2


def test_what_a_mount_has_not_read_is_added(command, mount):
    """A mount sums what it reads; the command sums everything."""
    name = "codecs/tag08_zstd_percolumn.hipo"
    m, r = mount(data(name)), filled(name)[0]
    np.load(m / f"{r.bank}/{r.column}.npy")
    m.umount()
    dump = listed(command, "--dump", data(name))
    assert len(dump) == len(records(data(name))) and all(r["streams"] and all(r["streams"]) for r in dump)


def test_banks_that_were_read_together_are_decoded_together_by_the_next_mount(mount, dst):
    columns = sorted(dst.content())
    five = [columns[i * len(columns) // 5] for i in range(5)]
    assert len({c.split("/")[0] for c in five}) > 1
    for most in (2 * dst.records, dst.records):
        m = mount(dst.sources)
        for c in five:
            assert np.load(m / c).tobytes() == dst.content()[c].tobytes(), c
        assert m.decoded() <= most
        m.umount()


# ---------------------------------------------------------------- where it lies

def test_an_index_beside_the_data_serves_everybody(hipofs, command, tmp_path, user):
    """Made by one user, read by another with another cache folder, who cannot write there."""
    folder = Path(tempfile.mkdtemp(prefix="hipofs-", dir=user.folder.parent))
    try:
        folder.chmod(0o755)
        source = folder / "run.hipo"
        shutil.copyfile(data(REAL), source)
        assert command("index", "-q", "--beside", source).returncode == 0
        assert sorted(os.listdir(folder)) == ["run.hipo", "run.hipo" + SUFFIX]
        stamp = os.stat(folder / ("run.hipo" + SUFFIX)).st_ino
        assert user.run(user.binary, "--log-file=log", source, user.point).returncode == 0
        for r in filled(REAL):
            assert user.run("stat", user.point / f"{r.bank}/{r.column}.npy").returncode == 0
        stats = json.loads(user.run("cat", user.point / ".hipofs/stats.json").stdout)
        assert stats["records_decoded"] == 0
        r = filled(REAL)[0]
        whole = user.run("cat", user.point / f"{r.bank}/{r.column}.npy", text=False).stdout
        assert digest(np.frombuffer(whole[-r.rows * r.n * np.dtype(r.dtype).itemsize:], r.dtype)) == r.content
        pid, = daemons(user.point)
        assert user.run(user.binary, "umount", user.point).returncode == 0 and wait_ended(pid)
        assert "WARN" not in (user.folder / "log").read_text()
        assert os.stat(folder / ("run.hipo" + SUFFIX)).st_ino == stamp
    finally:
        shutil.rmtree(folder)


def test_a_mount_does_not_write_to_an_index_beside_the_data(mount, command, tmp_path):
    source, index = tmp_path / "run.hipo", tmp_path / ("run.hipo" + SUFFIX)
    shutil.copyfile(data(REAL), source)
    assert command("index", "-q", "--beside", source).returncode == 0
    before = index.read_bytes(), index.stat()
    m = mount(source)
    check_columns(m, REAL)
    m.umount()
    assert (index.read_bytes(), index.stat().st_ino, index.stat().st_mtime_ns) == (before[0], before[1].st_ino, before[1].st_mtime_ns)


def test_nothing_is_written_beside_the_data_unasked(mount, command, tmp_path):
    (tmp_path / "data").mkdir()
    source = tmp_path / "data/run.hipo"
    shutil.copyfile(data(REAL), source)
    m = mount(source, "--index=eager")
    check_columns(m, REAL)
    m.umount()
    assert command("index", "-q", source).returncode == 0
    assert os.listdir(tmp_path / "data") == ["run.hipo"]


def test_no_index_neither_reads_nor_writes_one(mount, env, tmp_path):
    m = mount(data(REAL), "--no-index")
    check_columns(m, REAL)
    m.umount()
    assert not Path(env["XDG_CACHE_HOME"], "hipofs").exists()
    index = tmp_path / "index"
    mount(data(REAL), "--index=eager", f"--index-dir={index}").umount()
    m = mount(data(REAL), f"--index-dir={index}", "--no-index")
    os.stat(m / "MC::Particle/px.npy")
    assert m.decoded() > 0


def test_an_index_folder_that_cannot_be_written_is_status_5(command, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "mnt").mkdir()
    for folder in (tmp_path / "file", tmp_path / "file/below", "/proc/hipofs"):
        for argv in (["index", f"--index-dir={folder}", data(REAL)], [f"--index-dir={folder}", data(REAL), tmp_path / "mnt"]):
            done = command(*argv)
            line, = done.stderr.splitlines()
            assert done.returncode == 5 and str(folder) in line, done.stderr
            assert not mounts(tmp_path / "mnt")


@contextlib.contextmanager
def disk(folder: Path, options: str):
    """A disk of its own at folder."""
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size=1m,{options}", "hipofs-test", folder)
    try:
        yield folder
    finally:
        run("umount", folder)


def served_with_one_warning(hipofs, env, log: Path, *options: str, where: str) -> None:
    """A mount serves every byte, and its log has one warning, which says where the trouble is."""
    with mounted(hipofs, env, data(REAL), f"--log-file={log}", *options) as m:
        check_columns(m, REAL)
        assert m.json("errors.json") == []
        assert m.said == ""
    warnings = [line for line in log.read_text().splitlines() if "level=INFO" not in line]
    assert len(warnings) == 1 and where in warnings[0], warnings


@needs_root
def test_on_a_full_disk_the_mount_works_all_the_same(hipofs, env, tmp_path):
    with disk(tmp_path / "full", "mode=700") as folder:
        with open(folder / "ballast", "wb", buffering=0) as f:
            with contextlib.suppress(OSError):
                while f.write(bytes(4096)):
                    pass
            f.truncate(f.tell() - 8192)  # room to begin with
        served_with_one_warning(hipofs, env, tmp_path / "log", f"--index-dir={folder}", where="no space left")
        assert os.listdir(folder) == ["ballast"], "the beginning of an index is left"


@needs_root
def test_with_a_read_only_cache_folder_the_mount_works_all_the_same(hipofs, env, tmp_path):
    with disk(tmp_path / "home/cache", "ro"):
        served_with_one_warning(hipofs, env, tmp_path / "log", where="read-only file system")


@needs_root
def test_a_read_only_index_folder_that_was_asked_for_is_status_5(command, tmp_path):
    (tmp_path / "mnt").mkdir()
    with disk(tmp_path / "ro", "ro") as folder:
        assert command(f"--index-dir={folder}", data(REAL), tmp_path / "mnt").returncode == 5
        assert command("index", f"--index-dir={folder}", data(REAL)).returncode == 5


@pytest.mark.parametrize("home", ["absent", "not named"])
def test_without_a_home_the_mount_works_all_the_same(home, hipofs, env, tmp_path):
    env = {k: v for k, v in env.items() if k != "XDG_CACHE_HOME"} | {"HOME": "/proc/absent"}
    if home == "not named":
        del env["HOME"]
    with mounted(hipofs, env, data(REAL), f"--log-file={tmp_path}/log") as m:
        check_columns(m, REAL)
        assert m.json("errors.json") == [] and m.said == ""
    assert (tmp_path / "log").read_text().count("level=WARN") == (home != "not named")


# ---------------------------------------------------------------- what it says

def listed(command, *argv) -> list[dict]:
    """What hipofs index prints, a JSON object a line."""
    done = command("index", *argv)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", [REAL, "java_ntuple.hipo", "cpp_golden_lz4.hipo", "codecs/record_tags.hipo",
                                  "codecs/java_gzip.hipo", *(f"codecs/{n}.hipo" for n in SPLIT)])
def test_the_dump_says_what_the_file_has(name, command):
    path = data(name)
    b = path.read_bytes()
    want, got = records(path), listed(command, "--dump", path)
    assert [(r["file"], r["record"], r["byte"], r["length"], r["data_length"], r["events"], r["compression"], r["record_tag"])
            for r in got] == [(str(path), i, r.at, r.length, r.data_length, r.events, r.tag, r.word1) for i, r in enumerate(want)]
    rows: dict[str, int] = {}
    for r in got:
        for bank, n in r["rows"].items():
            rows[bank] = rows.get(bank, 0) + n
    assert {k: n for k, n in rows.items() if not k.startswith("structure ")} == \
        {r.bank: r.rows for r in filled(name)}
    if "per" not in name:
        assert [r["xxh3"] for r in got] == [xxhash.xxh3_64_hexdigest(b[r.at:r.at + r.length]) for r in want]
        assert not any("streams" in r for r in got)
        return
    split = splits(path)
    assert [r["xxh3"] for r in got] == [xxhash.xxh3_64_hexdigest(b[s.off:s.off + s.head]) for s in split]
    assert [r["streams"] for r in got] == \
        [[xxhash.xxh3_64_hexdigest(b[t.off:t.off + t.length]) for t in s.streams] for s in split]
    layout = "by bank" if "perbank" in name else "by column"
    assert [r["codec"] for r in got] == [f"{s.codec} {layout}" for s in split]


def rows_by_record(path: Path) -> list[dict[tuple[int, int], list[int]]]:
    """Bytes of each structure in each event, by record of a file in plain LZ4 or stored."""
    b, out = path.read_bytes(), []
    for r in records(path):
        _, _, header, events, index, bits, user_header = np.frombuffer(b, "<u4", 7, r.at).tolist()
        body = b[r.at + 4 * header:r.at + r.length - (bits >> 24 & 3)]
        inflated = index + user_header + (bits >> 20 & 3) + r.data_length
        payload = body if r.tag == 0 else lz4.block.decompress(body, uncompressed_size=inflated + 3)
        lengths = np.frombuffer(payload, "<u4", events).tolist()
        at, found = inflated - r.data_length, {}
        for e, n in enumerate(lengths):
            pos = at + 16
            while pos + 8 <= at + n:
                word = int.from_bytes(payload[pos + 4:pos + 8], "little") & 0xFFFFFF
                key = int.from_bytes(payload[pos:pos + 2], "little"), payload[pos + 2]
                found.setdefault(key, [0] * events)[e] = word
                pos += 8 + word
            at += n
        out.append(found)
    return out


def cuts(entries: int) -> list[tuple[int, int]]:
    """Entry ranges: all, none, one, and across the middle."""
    return [(0, entries), (0, 0), (0, 1), (entries - 1, entries), (entries // 3, entries // 2 + 1), (entries // 2, entries + 9)]


@pytest.mark.parametrize("name", [REAL, "java_ntuple.hipo", "cpp_golden_lz4.hipo", "codecs/record_tags.hipo"])
def test_the_plan_of_a_plain_file_names_the_records_with_rows(name, command, mount):
    path = data(name)
    heads, found = records(path), rows_by_record(path)
    ids = {b["name"]: (b["group"], b["item"]) for b in mount(path).json("dictionary.json")}
    for bank in sorted({r.bank for r in golden()[name] if not r.bank.startswith("@")})[:12]:
        column = next(r.column for r in golden()[name] if r.bank == bank)
        for a, z in cuts(sum(r.events for r in heads)):
            want, first = [], 0
            for i, r in enumerate(heads):
                sizes = found[i].get(ids[bank], [0] * r.events)
                if any(sizes[max(0, a - first):max(0, z - first)]):
                    want.append({"file": str(path), "record": i, "offset": r.at, "length": r.length, "what": "record"})
                first += r.events
            assert listed(command, f"--plan={bank}/{column}", "--entries", f"{a}:{z}", path) == want, (bank, a, z)


@pytest.mark.parametrize("name", SPLIT)
def test_the_plan_of_a_split_file_holds_the_column_and_no_more(name, command, mount):
    path = data(f"codecs/{name}.hipo")
    b, split = path.read_bytes(), splits(path)
    m = mount(path)
    ids = {s["name"]: (s["group"], s["item"]) for s in m.json("dictionary.json")}
    events = [r.events for r in records(path)]
    for r in filled(f"codecs/{name}.hipo"):
        number = [c.column for c in golden()[f"codecs/{name}.hipo"] if c.bank == r.bank].index(r.column)

        def wanted(s, a: int, z: int) -> list[tuple]:
            """Directory and streams of one record for its events a to z; none where the bank has no rows."""
            sizes = s.sizes.get(ids[r.bank])
            if sizes is None or not sizes[max(0, a):max(0, z)].any():
                return []
            return [(s.off, s.head, "directory")] + [(t.off, t.length, "stream") for t in s.streams
                                                    if t.key == ids[r.bank] and t.column in (-1, number)]

        for a, z in cuts(sum(events)):
            got = listed(command, f"--plan={r.bank}/{r.column}", "--entries", f"{a}:{z}", path)
            first = np.cumsum([0, *events])
            want = [w for s, f in zip(split, first) for w in wanted(s, a - f, z - f)]
            assert [(g["offset"], g["length"], g["what"]) for g in got] == want, (r.bank, r.column, a, z)
            if (a, z) == (0, sum(events)) and records(path)[0].tag not in BY_BANK:
                streams = {t.off: (s, t) for s in split for t in s.streams if t.length}
                planned = [(*streams[g["offset"]], b[g["offset"]:g["offset"] + g["length"]])
                           for g in got if g["what"] == "stream"]
                if all(t.column == number for _, t, _ in planned):
                    content = b"".join(inflate(s, t, stored) for s, t, stored in planned)
                    assert digest(np.frombuffer(content, "u1")) == r.content, "these ranges are not the column"


@pytest.mark.parametrize("argv, status, says", [
    (["--plan=REC::Nothing/px"], 1, "REC::Nothing"),
    (["--plan=MC::Particle/nothing"], 1, "nothing"),
    (["--plan=px"], 2, "BANK/COLUMN"),
    (["--plan=MC::Particle/px", "--entries=5"], 2, "A:B"),
    (["--plan=MC::Particle/px", "--entries=9:5"], 2, "A:B"),
])
def test_a_plan_that_makes_no_sense_is_refused(argv, status, says, command):
    done = command("index", *argv, data(REAL))
    line, = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (status, "") and says in line


# ---------------------------------------------------------------- large chains

def limited(hipofs: Path, folder: Path, descriptors: int) -> Path:
    """The command under ulimit -n."""
    script = folder / f"limited-{descriptors}"
    script.write_text(f'#!/bin/sh\nulimit -n {descriptors} || exit 99\nexec "{hipofs}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("descriptors", [1024, 64])
def test_a_chain_of_1500_files_needs_few_descriptors(descriptors, hipofs, env, tmp_path):
    name, n = "codecs/small.hipo", 1500
    (tmp_path / "data").mkdir()
    for i in range(n):
        shutil.copyfile(data(name), tmp_path / f"data/run.{i}.hipo")
    rows = [r for r in golden()[name] if r.bank == "SM::part"]
    for _ in ("the pass makes the indexes", "the indexes are there"):
        with mounted(limited(hipofs, tmp_path, descriptors), env, tmp_path / "data") as m:
            limit, = [line.split()[3:5] for line in Path(f"/proc/{m.pid}/limits").read_text().splitlines()
                      if line.startswith("Max open files")]
            assert limit == [str(descriptors)] * 2
            for r in rows:
                whole = np.load(m / f"{r.bank}/{r.column}.npy")
                parts = whole.reshape(n, *r.shape)
                assert digest(parts[0]) == r.content and (parts == parts[0]).all(), r.column
            assert len(np.load(m / "SM::part/offsets.npy")) == n * 24 + 1
            assert m.json("errors.json") == []
            assert len(os.listdir(f"/proc/{m.pid}/fd")) < min(descriptors, 300)
    assert len(indexes(Path(env["XDG_CACHE_HOME"], "hipofs"))) == n


def resident(pid: int) -> int:
    """Resident memory of a process, bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def test_an_indexed_file_of_a_chain_costs_50_kilobytes_of_memory_at_most(hipofs, command, mount, tmp_path):
    paths = copies(tmp_path / "data", 300)
    assert command("index", "-q", *paths).returncode == 0
    one, all_of_them = mount(paths[0]), mount(paths)
    assert len(os.listdir(one.point)) == len(os.listdir(all_of_them.point)) > 194
    for m in (one, all_of_them):
        assert m.decoded() == 0 and m.json("stats.json")["bytes_read"] == 0
    assert all_of_them.json("stats.json")["files_counted"] == len(paths)
    each = (resident(all_of_them.pid) - resident(one.pid)) / (len(paths) - 1)
    assert each <= 50_000, f"{each:.0f} bytes a file"


def test_offsets_of_a_chain_are_exact_past_2_to_the_31_rows(dst, hipofs, env, tmp_path):
    """Files that hold nothing, with the indexes of a real one: nothing but indexes is read."""
    bank = max(dst.banks, key=lambda b: dst.banks[b][0][-1])
    known = dst.banks[bank][0]
    entries, rows = len(known) - 1, int(known[-1])
    files = 2**31 // rows + 100
    if files > 10_000:
        pytest.skip("the generated DST is not here, and smaller files would be too many")
    made_up(tmp_path / "chain", files, dst.sources)
    with mounted(hipofs, env, tmp_path / "chain/data", f"--index-dir={tmp_path}/chain/index") as m:
        offsets = np.load(m / f"{bank}/offsets.npy", mmap_mode="r")
        assert (offsets.dtype, len(offsets), offsets[-1]) == (np.int64, files * entries + 1, files * rows)
        for i in [0, 1, files // 2, *range(files - 110, files, 10)]:
            got = np.array(offsets[i * entries:(i + 1) * entries + 1])
            np.testing.assert_array_equal(got, known + i * rows)
        assert got[-1] > 2**31
        del offsets  # a mapping keeps the mount busy
        stats = m.json("stats.json")
        assert (stats["records_decoded"], stats["bytes_read"], stats["files_counted"]) == (0, 0, files)
        assert m.peak() < 500 << 20


# ---------------------------------------------------------------- changes since

def rows_file(path: Path, counts: list[int], first: int, schema: str = "{B/1/1}{x/I,y/F}") -> dict[str, np.ndarray]:
    """A file of one bank with so many rows an event, in records of three events; and its columns."""
    n = sum(counts)
    x, y = np.arange(first, first + n, dtype="<i4"), np.arange(first, first + n, dtype="<f4") / 4
    ends = np.cumsum([0, *counts])
    order = (y, x) if schema.index("y/") < schema.index("x/") else (x, y)
    events = [event(structure(1, 1, 11, b"".join(c[a:z].tobytes() for c in order))) for a, z in zip(ends, ends[1:])]
    write(path, [schema], [events[i:i + 3] for i in range(0, len(events), 3)])
    return {"x": x, "y": y, "offsets": ends.astype("<i8")}


def overwrite(path: Path, content: bytes) -> None:
    with open(path, "r+b") as f:
        f.write(content)


def replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


OLD = [5, 1, 2, 3, 1, 4] * 50
CHANGES = {
    "other values": (overwrite, OLD, 7, "{B/1/1}{x/I,y/F}"),
    "other counts": (overwrite, OLD[::-1], 7, "{B/1/1}{x/I,y/F}"),
    "other columns": (overwrite, OLD, 7, "{B/1/1}{y/F,x/I}"),
    "replaced": (replace, OLD[::-1], 7, "{B/1/1}{x/I,y/F}"),
    "replaced by longer": (replace, OLD + [2, 2, 2], 7, "{B/1/1}{x/I,y/F}"),
    "replaced by shorter": (replace, OLD[:30], 7, "{B/1/1}{x/I,y/F}"),
    "appended": (lambda p, b: overwrite(p, b + bytes(64)), OLD, 0, "{B/1/1}{x/I,y/F}"),
    "truncated": (lambda p, b: os.truncate(p, len(b) - 5000), OLD, 0, "{B/1/1}{x/I,y/F}"),
}


def changed(path: Path, how: str, put_back: bool) -> dict[str, np.ndarray] | None:
    """Change the file; what its columns are then, or None where it is damaged."""
    change, counts, first, schema = CHANGES[how]
    stamp = os.stat(path)
    other = path.with_name("other")
    now = rows_file(other, counts, first, schema)
    wait_tick(path)
    change(path, other.read_bytes())
    os.utime(path, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns + (0 if put_back else 10**9)))
    other.unlink()
    return now if how != "truncated" else None


def wait_tick(path: Path) -> None:
    """Wait until the clock that stamps files has moved on from the last change of path."""
    probe = path.with_name("probe")
    while True:
        probe.write_bytes(b"")
        if os.stat(probe).st_ctime_ns > os.stat(path).st_ctime_ns:
            probe.unlink()
            return
        probe.unlink()


def new_or_stale(m, now: dict[str, np.ndarray], names: list[str]) -> int:
    """Read columns: the bytes of the file as it is, or ESTALE; how many are ESTALE."""
    stale = 0
    for name in names:
        path = m / f"B/{name}.npy"
        try:
            got = np.load(path)
        except OSError as e:
            assert e.errno == errno.ESTALE, (name, e)
            stale += 1
            continue
        np.testing.assert_array_equal(got, now[name], err_msg=name)
    return stale


@pytest.mark.parametrize("put_back", [False, True], ids=["new mtime", "mtime put back"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_has_changed_since_it_was_indexed_is_noticed(how, put_back, command, mount, tmp_path):
    source = tmp_path / "run.hipo"
    then = rows_file(source, OLD, 0)
    assert command("index", "-q", source).returncode == 0
    now = changed(source, how, put_back)
    if now is None:
        with pytest.raises(AssertionError, match="status 3"):
            mount(source)
        return
    m = mount(source)
    # By times and ends alone the index may still be this file's; then it takes a value to tell.
    stale = new_or_stale(m, now, ["x", "y"])
    assert stale == 0 or put_back
    m.umount()
    assert command("index", "-q", source).returncode == 0
    assert new_or_stale(mount(source), now, list(then)) == 0, "hipofs index does not help"


@pytest.mark.parametrize("put_back", [False, True], ids=["new mtime", "mtime put back"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changes_under_an_indexed_mount_is_stale(how, put_back, command, mount, tmp_path):
    source = tmp_path / "run.hipo"
    then = rows_file(source, OLD, 0)
    assert command("index", "-q", source).returncode == 0
    m = mount(source)
    sizes = {name: os.stat(m / f"B/{name}.npy").st_size for name in then}
    changed(source, how, put_back)
    for name in ("x", "y"):
        assert errno_of(lambda p: p.read_bytes(), m / f"B/{name}.npy") == errno.ESTALE
        assert errno_of(os.stat, m / f"B/{name}.npy") == errno.ESTALE or os.stat(m / f"B/{name}.npy").st_size == sizes[name]
    fault, = m.json("errors.json")
    assert "changed" in fault["message"] and "run.hipo" in fault["message"]
