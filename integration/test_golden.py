"""Every file of golden.tsv, mounted and read with NumPy: the columns, the offsets, and nothing else."""
from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from harness import (GOLDEN, Row, banks, columns, data, digest, errno_of, golden, load, records, walk)

EXPECTED = golden()
READABLE = sorted(f for f in EXPECTED if not f.endswith("?salvage"))
SALVAGED = sorted(f for f in EXPECTED if f.endswith("?salvage"))


def check_column(path: Path, row: Row) -> None:
    """dtype, shape, and the bytes of a column and of its bank's offsets."""
    got = load(path)
    assert (got.dtype.str, got.shape) == (row.dtype, row.shape), path
    assert digest(got) == row.content, f"{path}: content"


def check_tree(tree: Path, rows: list[Row]) -> None:
    """A tree has the banks, nodes and columns of those rows, with their bytes, and no others."""
    tags = next(r for r in rows if r.bank == "@event")
    by_bank: dict[str, list[Row]] = {}
    for r in rows:
        if r is not tags:
            by_bank.setdefault(r.bank, []).append(r)
    assert banks(tree) == {b for b in by_bank if not b.startswith("@")}
    assert set(os.listdir(tree / ".nodes")) == {b[1:].replace("/", ".") for b in by_bank if b.startswith("@")}
    for bank, cols in by_bank.items():
        folder = tree / ".nodes" / bank[1:].replace("/", ".") if bank.startswith("@") else tree / bank
        assert columns(folder) == {r.column for r in cols}, bank
        offsets = load(folder / "offsets.npy")
        assert (offsets.dtype.str, offsets.shape) == ("<i8", (tags.rows + 1,)), bank
        assert digest(offsets) == cols[0].offsets, f"{bank}: offsets"
        for r in cols:
            check_column(folder / f"{r.column}.npy", r)
    events = load(tree / ".hipofs" / "event_tags.npy")
    assert (events.dtype.str, events.shape, digest(events)) == ("<u4", (tags.rows,), tags.content)


def test_golden_lists_files():
    assert len(READABLE) >= 50 and len(SALVAGED) == 6, GOLDEN


@pytest.mark.parametrize("name", READABLE)
def test_every_column_of_a_readable_file(name, mount):
    m = mount(data(name))
    check_tree(m.point, EXPECTED[name])
    assert m.json("errors.json") == [] and m.json("stats.json")["errors"] == 0


@pytest.mark.parametrize("name", READABLE)
def test_every_column_again_with_the_index_of_the_first_mount(name, mount):
    first = mount(data(name))
    os.listdir(first / ".nodes")  # waits for the pass, after which the index is there
    first.umount()
    m = mount(data(name))
    for path in walk(m.point):
        os.stat(path)
    assert m.decoded() == 0, "the sizes of an indexed file need no pass"
    check_tree(m.point, EXPECTED[name])
    assert m.json("errors.json") == []


@pytest.mark.parametrize("name", READABLE)
def test_schema_json_says_what_the_columns_are(name, mount):
    m = mount(data(name))
    entries = next(r.rows for r in EXPECTED[name] if r.bank == "@event")
    for bank in banks(m.point):
        rows = [r for r in EXPECTED[name] if r.bank == bank]
        schema = json.loads((m / bank / "schema.json").read_text())
        assert (schema["name"], schema["entries"], schema["rows"]) == (bank, entries, rows[0].rows)
        assert [(c["name"], c["type"], c["length"], c["dtype"], c["file"]) for c in schema["columns"]] == \
            [(r.column, r.letter, r.n, r.dtype, f"{r.column}.npy") for r in rows]


@pytest.mark.parametrize("name", SALVAGED)
def test_skipping_damage_serves_what_is_whole(name, mount):
    path = data(name.removesuffix("?salvage"))
    m = mount(path, "--on-error=skip")
    rows = EXPECTED[name]
    if path.name == "ragged_bank.hipo":  # that bank has no golden row: it stays an error, and no event is dropped
        assert banks(m.point) == {"SM::event", "SM::part"}
        check_ragged(m, rows)
        return
    check_tree(m.point, rows)
    assert path.name in m.said, "nothing was said about what is left out"
    left_out, = m.json("files.json")
    assert left_out["left_out"] and left_out["entries"] == rows[0].rows


# ---------------------------------------------------------------- one chain

def test_all_tags_in_one_chain(mount):
    paths = sorted(data("codecs/tag00_none_perchunk.hipo").parent.glob("tag*.hipo"))
    assert len(paths) == 22
    m = mount(paths)
    rows = EXPECTED[f"codecs/{paths[0].name}"]
    one = {}  # the same 300 events in each file, so what one file gives must come once for each
    for path in paths:
        assert EXPECTED[f"codecs/{path.name}"] == rows
        tree = m / f".files/{path.name}"
        check_tree(tree, rows)
    n = len(paths)
    for r in rows[1:]:
        folder = f".nodes/{r.bank[1:].replace('/', '.')}" if r.bank.startswith("@") else r.bank
        single, whole = (np.load(t / folder / f"{r.column}.npy") for t in (tree, m.point))
        assert digest(single) == r.content
        assert whole.dtype.str == r.dtype and whole.shape == (n * r.rows,) + r.shape[1:]
        assert whole.tobytes() == single.tobytes() * n, f"{folder}/{r.column}"
        if folder not in one:
            one[folder] = np.load(tree / folder / "offsets.npy")
            assert digest(one[folder]) == r.offsets
            counts = np.tile(np.diff(one[folder]), n)
            np.testing.assert_array_equal(load(m / folder / "offsets.npy"), np.concatenate([[0], np.cumsum(counts)]))
    tags = np.load(tree / ".hipofs" / "event_tags.npy")
    assert digest(tags) == rows[0].content
    np.testing.assert_array_equal(load(m / ".hipofs/event_tags.npy"), np.tile(tags, n))
    assert [(f["name"], f["entries"], f["first_entry"]) for f in m.json("files.json")] == \
        [(str(p), 300, 300 * i) for i, p in enumerate(paths)]
    assert len(m.json("records.json")) == 3 * n


def test_one_file_of_a_chain_has_its_own_dictionary(mount):
    m = mount([data("codecs/tiny.hipo"), data("codecs/small.hipo")])
    assert banks(m.point) == {"T", "SM::event", "SM::part"}
    check_tree(m / ".files/tiny.hipo", EXPECTED["codecs/tiny.hipo"])
    check_tree(m / ".files/small.hipo", EXPECTED["codecs/small.hipo"])
    assert os.listdir(m / ".files") == [], "a walker would walk everything twice"


def test_files_of_one_name_are_told_apart(mount, tmp_path):
    paths = []
    for folder, name in (("a", "tiny"), ("b", "small"), ("c", "tiny")):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "run.hipo")
        paths[-1].write_bytes(data(f"codecs/{name}.hipo").read_bytes())
    m = mount(paths)
    for shown, name in (("run.hipo", "tiny"), ("run.hipo~2", "small"), ("run.hipo~3", "tiny")):
        check_tree(m / f".files/{shown}", EXPECTED[f"codecs/{name}.hipo"])


# ---------------------------------------------------------------- about the mount

@pytest.mark.parametrize("name", ["codecs/meta.hipo", "codecs/record_tags.hipo", "codecs/tag07_lz4hc_percolumn.hipo"])
def test_records_and_their_tags(name, mount):
    path = data(name)
    want = records(path)
    m = mount(path)
    got = m.json("records.json")
    assert [(r["record"], r["byte"], r["length"], r["data_length"], r["events"], r["compression"], r["record_tag"])
            for r in got] == [(i, r.at, r.length, r.data_length, r.events, r.tag, r.word1) for i, r in enumerate(want)]
    tags = load(m / ".hipofs/record_tags.npy")
    np.testing.assert_array_equal(tags, np.repeat([r.word1 for r in want], [r.events for r in want]), strict=False)
    assert tags.dtype.str == "<i8"
    entries = load(m / ".hipofs/entries.npy")
    assert entries.dtype.str == "<i8" and entries.tolist() == list(range(sum(r.events for r in want)))


@pytest.mark.parametrize("name, config, tags", [
    ("meta", {"run": "5038", "note": "a = b\nsecond line"}, {"dvcs": 0, "sidis": 1, "elastic": 5}),
    ("portable_meta", {"run": "5038", "note": "two\nlines"}, {"dvcs": 0, "sidis": 1}),
    ("dictionary_forms", {"order": "value first", "with schema": "1"}, {"dvcs": 0, "sidis": 1, "elastic": 31}),
    ("java_config", {"mode": "test"}, {}),
    ("small", {}, {}),
])
def test_configuration_and_tag_names(name, config, tags, mount):
    m = mount(data(f"codecs/{name}.hipo"))
    assert m.json("config.json") == config
    assert m.json("tags.json") == tags


def test_dictionary_json_and_version(mount, command):
    m = mount(data("codecs/small.hipo"))
    listed = {b["name"]: b for b in m.json("dictionary.json")}
    assert set(listed) == {"SM::event", "SM::part"}
    assert [(c["name"], c["type"], c["length"]) for c in listed["SM::part"]["columns"]] == \
        [("pid", "I", 1), ("p", "F", 3), ("q", "B", 1), ("s", "S", 1), ("w", "D", 1)]
    assert (m / ".hipofs/version").read_text().strip() in command("version").stdout


def test_populated_links_to_the_banks_with_rows(mount):
    name = "clas12_recon_proton_80MeV.hipo"
    m = mount(data(name))
    want = {r.bank for r in EXPECTED[name] if r.rows and not r.bank.startswith("@")}
    folder = m / ".hipofs/populated"
    assert len(want) == 6 and set(os.listdir(folder)) == want
    for bank in want:
        assert (folder / bank).is_symlink() and os.path.samefile(folder / bank, m / bank)


# ---------------------------------------------------------------- damage

@pytest.mark.parametrize("name, says", [
    ("truncated", r"record 1\b.*|byte 1664|1664"),
    ("corrupt_magic", r"1172"),
])
def test_damaged_headers_refuse_the_mount(name, says, command, tmp_path):
    path = data(f"codecs/{name}.hipo")
    point = tmp_path / "mnt"
    point.mkdir()
    done = command(path, point)
    assert done.returncode == 3
    line, = done.stderr.splitlines()
    assert line.startswith(f"hipofs: {path}: ") and re.search(says, line), line


@pytest.mark.parametrize("name, record, at", [
    ("corrupt_record", 1, 1172),
    ("bomb_lz4", 0, 684),
    ("overrun_bank", 0, 684),
])
def test_what_needs_a_damaged_record_fails_at_open(name, record, at, mount):
    path = data(f"codecs/{name}.hipo")
    m = mount(path)
    for bank in ("SM::event", "SM::part"):
        files = [m / bank / f"{c}.npy" for c in columns(m / bank)] + [m / bank / n for n in ("offsets.npy", "@entry.npy")]
        assert len(files) >= 4
        for file in files:
            assert errno_of(os.stat, file) == errno.EIO, file
            assert errno_of(os.open, file, os.O_RDONLY) == errno.EIO, file
        assert (m / bank / "form.json").read_text()
    assert errno_of(os.stat, m / ".hipofs/event_tags.npy") in (0, errno.EIO)
    assert errno_of(os.open, m / ".hipofs/event_tags.npy", os.O_RDONLY) == errno.EIO
    # The mount is alive, and serves what does not need the record.
    assert banks(m.point) == {"SM::event", "SM::part"}
    heads = records(path)
    assert load(m / ".hipofs/record_tags.npy").tolist() == [r.word1 for r in heads for _ in range(r.events)]
    fault, = m.json("errors.json")  # once, however often it was met
    assert (fault["file"], fault["record"], fault["byte"]) == (str(path), record, at)
    assert f"record {record} at byte {at}" in fault["message"]
    if name == "bomb_lz4":
        assert m.peak() < 256 << 20, "memory was taken on the word of a header"


def test_a_damaged_stream_fails_its_column_alone(mount):
    name = "codecs/tag14_v3_none_percolumn.hipo"  # the same events, undamaged
    path = data("codecs/corrupt_checksum.hipo")
    m = mount(path)
    assert errno_of(os.open, m / "CODEC::cov/w.npy", os.O_RDONLY) == errno.EIO
    for r in EXPECTED[name]:
        if r.bank == "@event" or r.bank == "CODEC::cov" and r.column == "w":
            continue
        folder = m / f".nodes/{r.bank[1:].replace('/', '.')}" if r.bank.startswith("@") else m / r.bank
        if r.bank == "CODEC::cov":  # beside the damaged stream: an error, or right
            if errno_of(os.open, folder / f"{r.column}.npy", os.O_RDONLY) == errno.EIO:
                continue
        check_column(folder / f"{r.column}.npy", r)
        assert digest(load(folder / "offsets.npy")) == r.offsets
    assert digest(load(m / ".hipofs/event_tags.npy")) == EXPECTED[name][0].content
    fault, = m.json("errors.json")
    assert (fault["file"], fault["record"]) == (str(path), 1) and "checksum" in fault["message"]


def check_ragged(m, rows: list[Row]) -> None:
    """SM::event is an error at stat and open, SM::part reads, and no event is gone."""
    for file in ("evno.npy", "offsets.npy", "@entry.npy"):
        assert errno_of(os.stat, m / f"SM::event/{file}") == errno.EIO, file
        assert errno_of(os.open, m / f"SM::event/{file}", os.O_RDONLY) == errno.EIO, file
    part = [r for r in rows if r.bank == "SM::part"]
    assert columns(m / "SM::part") == {r.column for r in part} and len(part) == 5
    for r in part:
        check_column(m / f"SM::part/{r.column}.npy", r)
    assert digest(load(m / "SM::part/offsets.npy")) == part[0].offsets
    assert digest(load(m / ".hipofs/event_tags.npy")) == rows[0].content
    fault, = m.json("errors.json")
    assert fault["record"] == 0 and "SM::event" in fault["message"]


def test_a_ragged_bank_is_an_error_of_that_bank_alone(mount):
    check_ragged(mount(data("codecs/ragged_bank.hipo")), EXPECTED["codecs/ragged_bank.hipo?salvage"])


def test_skipping_a_record_with_an_overrunning_structure(mount):
    m = mount(data("codecs/overrun_bank.hipo"), "--on-error=skip")
    for bank in ("SM::event", "SM::part"):
        assert load(m / bank / "offsets.npy").tolist() == [0], "its only record is damaged"
    left_out, = m.json("files.json")
    lost = sum(r.events for r in records(data("codecs/overrun_bank.hipo")))
    assert (left_out["lost_events"], left_out["entries"]) == (lost, 0) and lost > 0


def test_a_good_file_beside_a_damaged_one_is_served(mount):
    """What needs the damaged file fails; the other file's own tree does not need it."""
    m = mount([data("codecs/corrupt_record.hipo"), data("codecs/small.hipo")])
    assert errno_of(os.open, m / "SM::part/pid.npy", os.O_RDONLY) == errno.EIO
    check_tree(m / ".files/small.hipo", EXPECTED["codecs/small.hipo"])


def test_skipping_damage_in_a_chain_keeps_the_good_files_whole(mount):
    m = mount([data("codecs/corrupt_record.hipo"), data("codecs/small.hipo")], "--on-error=skip")
    check_tree(m / ".files/small.hipo", EXPECTED["codecs/small.hipo"])
    check_tree(m / ".files/corrupt_record.hipo", EXPECTED["codecs/corrupt_record.hipo?salvage"])
    assert len(load(m / ".hipofs/event_tags.npy")) == 16 + 24
