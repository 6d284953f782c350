"""What hipofs skim and hipofs pack write is read by hipofs and by others, and is what it was made of."""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import oxihipo
import pytest

from harness import DTYPES, PATIENCE, ROOT, SHARED, data, digest, golden, load, python, records, run, walk
from writer import event, structure, write

EXPECTED = golden()
READABLE = sorted(f for f in EXPECTED if not f.endswith("?salvage"))
CODECS = {"none": 0, "lz4": 1, "lz4hc": 2, "gzip": 3, "zstd": 4, "zstd+perbank": 5, "lz4hc+perbank": 6,
          "lz4hc+percolumn": 7, "zstd+percolumn": 8, "lz4+perbank": 9, "lz4+percolumn": 10, "gzip+perbank": 11,
          "gzip+percolumn": 12, "none+perbank": 13, "none+percolumn": 14}

#: oxihipo refuses two names for one id, and composite banks under the id of another bank
NOT_OXIHIPO = {"codecs/dictionary_alias.hipo", "codecs/composite.hipo", "codecs/composite_lz4hc_perbank.hipo",
               "codecs/composite_lz4hc_percolumn.hipo"}


def reference(path: Path) -> set[tuple] | None:
    """What the reference decoder finds in a file, as rows of golden.tsv; None where it is not at hand."""
    if not (SHARED / "check" / "hipo_ref.py").exists():
        return None
    if str(SHARED / "check") not in sys.path:
        sys.path.append(str(SHARED / "check"))
    import hipo_ref
    return set(hipo_ref.sha_rows(hipo_ref.HipoFile(path.read_bytes())))


def rows(name: str) -> set[tuple]:
    return {(r.bank, r.column, r.letter, r.n, r.rows, r.content, r.offsets) for r in EXPECTED[name]}


def by_oxihipo(path: Path) -> set[tuple]:
    """The banks that oxihipo finds, and the event tags."""
    chain = oxihipo.open(str(path))
    letters = {np.dtype(d): t for t, d in DTYPES.items()}
    found = {(bank, name, letters[values.dtype], n, int(offsets[-1]), digest(values), digest(offsets.astype("<i8")))
             for bank, offsets, columns in chain.read_columns([(b, []) for b in chain.keys()]) for name, values, n in columns}
    tags = np.asarray(chain.event_tags(), "<u4")
    return found | {("@event", "tag", "U", 1, len(tags), digest(tags), digest(np.arange(len(tags) + 1, dtype="<i8")))}


@pytest.mark.parametrize("name", READABLE)
def test_every_file_through_every_codec(name, command, mount, tmp_path):
    outs = []
    want = rows(name)
    for codec, tag in CODECS.items():
        out = tmp_path / f"{codec}.hipo"
        done = command("skim", "-q", "--no-index", data(name), "--codec", codec, "--record-size", "8M", "-o", out)
        assert done.returncode == 0, done.stderr
        assert {r.tag for r in records(out)} <= {tag}
        found = reference(out)
        assert found is None or found == want, f"{codec}: the reference decoder finds something else"
        if name not in NOT_OXIHIPO:
            assert by_oxihipo(out) == {r for r in want if r[0] == "@event" or not r[0].startswith("@")}, f"{codec}: oxihipo"
        outs.append(out)
    # hipofs reads the files of all codecs as one chain.
    m = mount(outs, "--no-index")
    tags = load(m / ".hipofs/event_tags.npy")
    assert digest(tags[:len(tags) // len(outs)]) == next(r.content for r in EXPECTED[name] if r.bank == "@event")
    for r in EXPECTED[name]:
        if r.rows == 0 or r.bank == "@event":
            continue
        folder = f".nodes/{r.bank[1:].replace('/', '.')}" if r.bank.startswith("@") else r.bank
        got = load(m / folder / f"{r.column}.npy")
        assert got.dtype.str == r.dtype and got.shape == (len(outs) * r.rows,) + r.shape[1:]
        one = got.tobytes()[:got.nbytes // len(outs)]
        assert hashlib.sha256(one).hexdigest() == r.content and got.tobytes() == one * len(outs), f"{folder}/{r.column}"


PORTABLE = ["codecs/plain.hipo", "codecs/portable_meta.hipo", "codecs/cpp_tags.hipo", "codecs/java_none.hipo"]


@pytest.mark.parametrize("codec", ["lz4", "lz4hc", "none"])
@pytest.mark.parametrize("name", PORTABLE)
def test_the_cpp_library_reads_what_is_portable(name, codec, command, tmp_path):
    out = tmp_path / "out.hipo"
    assert command("skim", "-q", "--no-index", data(name), "--codec", codec, "-o", out).returncode == 0
    for r in EXPECTED[name]:
        if r.letter != "F" or r.n != 1 or r.rows == 0 or r.bank.startswith("@"):
            continue
        done = python("benchreader.py", "hipopybind", out, r.bank, r.column)
        theirs = json.loads(done.stdout)["sums"]
        chain = oxihipo.open(str(data(name)))  # the source, by another reader
        values, offsets, _ = chain.numpy(r.bank, r.column)
        assert digest(values) == r.content
        import xxhash
        assert theirs == {f"{r.bank}/{r.column}": xxhash.xxh3_128_hexdigest(values.view("u1")),
                          f"{r.bank}/offsets": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(offsets, "<i8").view("u1"))}


def bodies(path: Path) -> list[bytes]:
    b = path.read_bytes()
    return [b[r.at:r.at + r.length] for r in records(path)]


@pytest.mark.parametrize("name", [f for f in READABLE if "big_endian" not in f])
def test_records_that_nothing_touches_are_copied_as_they_are(name, command, tmp_path):
    out = tmp_path / "out.hipo"
    assert command("skim", "-q", "--no-index", data(name), "-o", out).returncode == 0
    source, pieces = data(name).read_bytes(), bodies(out)
    at = 0
    for piece in pieces:
        at = source.index(piece, at) + len(piece)
    assert sum(r.events for r in records(out)) == next(r.rows for r in EXPECTED[name] if r.bank == "@event")
    found = reference(out)
    assert found is None or found == rows(name)


def test_the_same_bytes_whatever_the_threads(dst, command, tmp_path):
    for codec in ("lz4", "zstd+percolumn"):
        outs = [tmp_path / f"{codec}.{n}.hipo" for n in (1, 2, 7)]
        for n, out in zip((1, 2, 7), outs):
            done = command("skim", "-q", "--no-index", *dst.sources, "--require", "REC::Calorimeter", "--threads", n,
                           "--codec", codec, "-o", out)
            assert done.returncode == 0, done.stderr
        assert len({out.read_bytes() for out in outs}) == 1


def test_entries_and_conditions_choose_what_numpy_chooses(dst, command, mount, tmp_path):
    particles, counts = dst.banks["REC::Particle"]
    offsets = particles
    n = len(offsets) - 1
    calorimeter = np.diff(dst.banks["REC::Calorimeter"][0])
    a, b = n // 3, n // 3 + n // 2
    keep = np.zeros(n, bool)
    keep[a:b] = calorimeter[a:b] > 0
    out = tmp_path / "out.hipo"
    done = command("skim", "--no-index", *dst.sources, "--entries", f"{a}:{b}", "--require", "REC::Calorimeter",
                   "--banks", "REC::Particle,REC::Calorimeter", "-o", out)
    assert done.returncode == 0 and f"{keep.sum()} entries" in done.stderr, done.stderr
    m = mount(out)
    assert set(json.loads((m / ".hipofs/dictionary.json").read_text())[i]["name"] for i in range(2)) == {"REC::Particle", "REC::Calorimeter"}
    for bank in ("REC::Particle", "REC::Calorimeter"):
        offsets, columns = dst.banks[bank]
        rows = np.repeat(keep, np.diff(offsets))
        np.testing.assert_array_equal(load(m / bank / "offsets.npy"), np.concatenate([[0], np.cumsum(np.diff(offsets)[keep])]))
        for c, values in columns.items():
            assert load(m / bank / f"{c}.npy").tobytes() == values[rows].tobytes(), c


def test_tags_choose_entries(command, mount, tmp_path):
    source = data("codecs/tag07_lz4hc_percolumn.hipo")
    tags = np.asarray(oxihipo.open(str(source)).event_tags(), "<u4")
    out = tmp_path / "out.hipo"
    assert command("skim", "-q", source, "--tag", f"4+{0x80000005}", "-o", out).returncode == 0
    np.testing.assert_array_equal(load(mount(out) / ".hipofs/event_tags.npy"), tags[(tags == 4) | (tags == 0x80000005)])
    assert command("skim", "-q", source, "--record-tag", "7", "-o", out, "--force").returncode == 0
    assert bodies(out) == bodies(source)[1:2], "the record with the tag is copied, and no other"


def test_many_files_become_one_and_one_becomes_many(dst, command, mount, tmp_path):
    parts = tmp_path / "part.hipo"
    done = command("skim", "-q", "--no-index", *dst.sources, "--record-size", "1M", "--split", "8MB", "-o", parts)
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("part.*.hipo"))
    assert len(files) > 1 and files[0].name == "part.0000.hipo" and max(f.stat().st_size for f in files) <= 8_000_000
    whole = tmp_path / "whole.hipo"
    assert command("skim", "-q", "--no-index", tmp_path / "part.*.hipo", "-o", whole).returncode == 0
    assert bodies(whole) == [b for f in files for b in bodies(f)]
    m = mount(whole)
    for path, values in dst.content().items():
        assert load(m / path).tobytes() == values.tobytes(), path


def test_dictionaries_are_united_and_conflicts_refused(command, mount, tmp_path):
    cases = SHARED / "cases" if (SHARED / "cases").is_dir() else ROOT / "integration/testdata/cases"
    sources = [cases / "chain_a.hipo", cases / "chain_b_other_dictionary_order_and_bank.hipo"]
    out = tmp_path / "out.hipo"
    done = command("skim", "-q", "--no-index", *sources, "-o", out)
    assert done.returncode == 0, done.stderr
    apart, together = mount(sources), mount(out)
    for path in walk(apart.point):
        name = path.relative_to(apart.point)
        if path.suffix == ".npy" and name.parts[0] != ".hipofs":
            assert path.read_bytes() == (together / str(name)).read_bytes(), name

    write(tmp_path / "a.hipo", ["{A::b/1/1}{x/I}"], [[event(structure(1, 1, 11, struct.pack("<i", 7)))]])
    write(tmp_path / "b.hipo", ["{A::b/1/1}{x/F}"], [[event()]])
    write(tmp_path / "c.hipo", ["{C::d/2/2}{x/I}"], [[event(structure(1, 1, 3, struct.pack("<i", 7)))]])
    for other, says in (("b", "differs between files"), ("c", "which would become bank A::b")):
        done = command("skim", "-q", "--no-index", tmp_path / "a.hipo", tmp_path / f"{other}.hipo", "-o", tmp_path / "ab.hipo")
        assert done.returncode == 4 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("ab")) == []


def created(folder: Path):
    """A function that waits until a name comes up in the folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    IN_CREATE = 0x100
    assert fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(folder), IN_CREATE) >= 0
    return lambda: (os.read(fd, 4096), os.close(fd))


@pytest.mark.parametrize("sig, status", [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_whoever_ends_it_nothing_half_written_has_the_name(sig, status, dst, hipofs, env, tmp_path):
    out = tmp_path / "out.hipo"
    argv = [str(hipofs), "skim", "-q", "--no-index", *map(str, dst.sources), "--codec", "lz4hc+percolumn", "-o", str(out)]
    wait = created(tmp_path)
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as p:
        wait()
        p.send_signal(sig)
        said = p.communicate(timeout=PATIENCE)[1]
    assert p.returncode == status, said
    assert not out.exists()
    left = [f.name for f in tmp_path.iterdir() if f.name.startswith("out")]
    assert left == (["out.hipo.hipofs.part"] if sig == signal.SIGKILL else []), said
    run(*argv, env=env, timeout=600)  # what is left over is taken over
    assert sorted(f.name for f in tmp_path.iterdir() if f.name.startswith("out")) == ["out.hipo"]
    assert sum(r.events for r in records(out)) == len(dst.banks["REC::Particle"][0]) - 1


def test_nothing_is_overwritten_unasked(command, tmp_path):
    source = tmp_path / "run.hipo"
    source.write_bytes(data("codecs/small.hipo").read_bytes())
    out = tmp_path / "out.hipo"
    out.write_text("mine")
    done = command("skim", "-q", source, "-o", out)
    assert done.returncode == 1 and "--force replaces it" in done.stderr and out.read_text() == "mine"
    assert command("skim", "-q", source, "-o", out, "--force").returncode == 0 and out.read_bytes()[:4] == b"HIPO"
    link = tmp_path / "link.hipo"
    link.symlink_to(source)
    for name in (source, link):
        done = command("skim", "-q", source, "-o", name, "--force")
        assert done.returncode == 1 and "one of the sources" in done.stderr, done.stderr
    assert source.read_bytes() == data("codecs/small.hipo").read_bytes() and link.is_symlink()
    (tmp_path / "victim").write_text("mine")
    for plant in (os.symlink, os.link):
        new = tmp_path / f"planted-{plant.__name__}.hipo"
        plant(tmp_path / "victim", f"{new}.hipofs.part")
        assert command("skim", "-q", source, "-o", new).returncode == 1 and not new.exists()
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_damaged_record_that_must_be_read_ends_it(command, tmp_path):
    out = tmp_path / "out.hipo"
    done = command("skim", "-q", data("codecs/corrupt_record.hipo"), "--codec", "zstd", "-o", out)
    assert done.returncode == 3 and "record 1 at byte 1172" in done.stderr and not out.exists(), done.stderr
    done = command("skim", "-q", data("codecs/corrupt_record.hipo"), "--on-error", "skip", "--codec", "zstd", "-o", out)
    assert done.returncode == 0 and "left out" in done.stderr
    found = reference(out)
    assert found is None or found == rows("codecs/corrupt_record.hipo?salvage")


def test_a_record_that_is_not_as_it_was_indexed_is_not_copied(command, mount, tmp_path):
    source = tmp_path / "run.hipo"
    source.write_bytes(data("codecs/small.hipo").read_bytes())
    assert command("index", "-q", source).returncode == 0
    stat = source.stat()
    at = records(source)[1].at + 100
    b = bytearray(source.read_bytes())
    b[at] ^= 1
    source.write_bytes(b)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    done = command("skim", "-q", source, "-o", tmp_path / "out.hipo")
    assert done.returncode == 3 and "record 1" in done.stderr and not (tmp_path / "out.hipo").exists(), done.stderr


# ---------------------------------------------------------------- pack

@pytest.mark.parametrize("name", ["clas12_recon_proton_80MeV.hipo", "java_histograms_nodict.hipo", "codecs/tag01_lz4_perchunk.hipo",
                                  "codecs/composite.hipo", "codecs/dictionary_alias.hipo", "codecs/record_tags.hipo", "codecs/portable_meta.hipo"])
def test_a_copy_of_a_mount_packs_to_the_same_columns(name, command, mount, tmp_path):
    m = mount(data(name), "--no-index")
    run("cp", "-r", m.point, tmp_path / "tree")
    settings = m.json("config.json"), m.json("tags.json")
    for codec in ("lz4", "zstd+percolumn"):
        out = tmp_path / f"{codec}.hipo"
        done = command("pack", "-q", tmp_path / "tree", "--codec", codec, "-o", out)
        assert done.returncode == 0, done.stderr
        if name not in NOT_OXIHIPO:
            assert by_oxihipo(out) == {r for r in rows(name) if r[0] == "@event" or not r[0].startswith("@")}
        found = reference(out)
        assert found is None or found == rows(name)
        again = mount(out)
        assert (again.json("config.json"), again.json("tags.json")) == settings
        assert load(again / ".hipofs/record_tags.npy").tobytes() == load(m / ".hipofs/record_tags.npy").tobytes()


def test_arrays_of_ones_own_become_a_bank(command, mount, tmp_path):
    bank = tmp_path / "dir" / "MY::tags"
    bank.mkdir(parents=True)
    x, weights = np.arange(6, dtype="<f4"), np.arange(12, dtype="<i2").reshape(6, 2)
    np.save(bank / "offsets.npy", np.array([0, 2, 2, 6]))
    np.save(bank / "x.npy", x)
    np.save(bank / "w.npy", weights)
    out = tmp_path / "out.hipo"
    assert command("pack", "-q", tmp_path / "dir", "-o", out).returncode == 0
    chain = oxihipo.open(str(out))
    values, offsets, n = chain.numpy("MY::tags", "w")
    assert values.tobytes() == weights.tobytes() and list(offsets) == [0, 2, 2, 6] and n == 2
    assert list(chain.numpy("MY::tags", "x").values) == list(x)


def test_a_bank_is_added_to_a_copy_of_a_chain(command, mount, tmp_path):
    name = "codecs/tag07_lz4hc_percolumn.hipo"
    bank = tmp_path / "dir" / "MY::tags"
    bank.mkdir(parents=True)
    counts = np.arange(300) % 3
    x = np.arange(counts.sum(), dtype="<f8")
    np.save(bank / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]))
    np.save(bank / "x.npy", x)
    out = tmp_path / "out.hipo"
    done = command("pack", "-q", tmp_path / "dir", "--onto", data(name), "-o", out)
    assert done.returncode == 0, done.stderr
    mine = {r for r in by_oxihipo(out) if r[0] == "MY::tags"}
    assert by_oxihipo(out) - mine == {r for r in rows(name) if r[0] == "@event" or not r[0].startswith("@")}
    assert {r[5] for r in mine} == {digest(x)}
    assert {r.tag for r in records(out)} == {7} and [r.word1 for r in records(out)] == [r.word1 for r in records(data(name))]
    done = command("pack", "-q", tmp_path / "dir", "--onto", out, "-o", tmp_path / "twice.hipo")
    assert done.returncode == 1 and "MY::tags is in the chain already" in done.stderr
    done = command("pack", "-q", tmp_path / "dir", "--onto", data("codecs/small.hipo"), "-o", tmp_path / "other.hipo")
    assert done.returncode == 1 and "300 entries, the chain has 24" in done.stderr, done.stderr


def npy(version: tuple[int, int], header: str, body: bytes = b"") -> bytes:
    h = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(h)) + h + body


GOOD = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize("content, says", [
    (npy((1, 0), GOOD, bytes(12)), None),
    (npy((2, 0), GOOD, bytes(12)), None),
    (npy((3, 0), '{"shape": (3, 1), "descr": "<i4", "fortran_order": True}', bytes(12)), None),
    (npy((4, 0), GOOD, bytes(12)), "version 4.0"),
    (npy((1, 0), GOOD, bytes(11)), "3 rows of 4 bytes declared, the file has 11"),
    (npy((1, 0), GOOD, bytes(16)), "3 rows of 4 bytes declared, the file has 16"),
    (npy((1, 0), GOOD.replace("(3,)", "(4611686018427387904,)"), bytes(12)), "not one that numpy.save writes"),
    (npy((1, 0), GOOD.replace("(3,)", "(4611686018427387903,)"), bytes(12)), "declared, the file has 12"),
    (npy((1, 0), GOOD.replace("(3,)", "(2,)"), bytes(8)), "2 rows"),
    (npy((1, 0), GOOD.replace("(3,)", "()"), bytes(4)), "0 dimensions"),
    (npy((1, 0), GOOD.replace("(3,)", "(3, 2, 2)"), bytes(48)), "3 dimensions"),
    (npy((1, 0), GOOD.replace("(3,)", "(3, 0)"), b""), "0 values a row"),
    (npy((1, 0), GOOD.replace("(3,)", "(3, 2)").replace("False", "True"), bytes(24)), "Fortran order"),
    (npy((1, 0), GOOD.replace("<i4", ">i4"), bytes(12)), "big-endian"),
    (npy((1, 0), GOOD.replace("<i4", "<u2"), bytes(6)), "convert it with astype"),
    (npy((1, 0), GOOD.replace("<i4", "<u4"), bytes(12)), "convert it with astype"),
    (npy((1, 0), GOOD.replace("<i4", "|O"), bytes(12)), "convert it with astype"),
    (npy((1, 0), GOOD.replace("'<i4'", "[('a', '<i4')]"), bytes(12)), "structured"),
    (npy((1, 0), "{}"), "not one that numpy.save writes"),
    (npy((1, 0), GOOD[:-1], bytes(12)), "not one that numpy.save writes"),
    (npy((1, 0), GOOD.replace("'shape'", "'shape'+"), bytes(12)), "not one that numpy.save writes"),
    (b"\x93NUMPY\x01\x00\xff\xff{", "cut short"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "cut short"),
    (b"\x93NUM", "not a .npy file"),
    (b"PK\x03\x04" + bytes(20), "not a .npy file"),
])
def test_npy_files_are_not_taken_at_their_word(content, says, command, tmp_path):
    bank = tmp_path / "dir" / "A::b"
    bank.mkdir(parents=True)
    np.save(bank / "offsets.npy", np.array([0, 1, 3]))
    (bank / "x.npy").write_bytes(content)
    out = tmp_path / "out.hipo"
    done = command("pack", "-q", tmp_path / "dir", "-o", out)
    if says is None:
        assert done.returncode == 0 and list(oxihipo.open(str(out)).numpy("A::b", "x").values) == [0, 0, 0], done.stderr
        return
    line, = done.stderr.splitlines()
    assert done.returncode in (1, 3) and says in line and str(bank) in line, line
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("offsets, says", [
    ([1, 2, 3], "the first number is 1"), ([0, 1, 2], "the last number is 2"), ([0, 2, 1, 3], "number 2 is 1"), ([0, 9, 3], "number 1 is 9"),
])
def test_offsets_are_not_taken_at_their_word(offsets, says, command, tmp_path):
    bank = tmp_path / "dir" / "A::b"
    bank.mkdir(parents=True)
    np.save(bank / "offsets.npy", np.array(offsets))
    np.save(bank / "x.npy", np.zeros(3, "f4"))
    done = command("pack", "-q", tmp_path / "dir", "-o", tmp_path / "out.hipo")
    assert done.returncode == 3 and says in done.stderr and not list(tmp_path.glob("out*")), done.stderr
