"""Inputs made after real bug reports: each gives the answer that expect.json has for it."""
from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness import CASES, banks, load

EXPECT = json.loads((CASES / "expect.json").read_text())
PRESENT = sorted(n for n in EXPECT if (CASES / n).exists())
REFUSED = [n for n in PRESENT if "exit" in EXPECT[n]]
SERVED = [n for n in PRESENT if "exit" not in EXPECT[n]]

KNOWN = {"events", "rows", "counts", "values", "dtypes", "shape", "tags", "nodes", "banks", "note"}


def test_every_case_is_tried():
    assert set(EXPECT) - set(PRESENT) <= {"many_records_big_trailer.hipo"}, "only ../shared has that one"
    assert len(REFUSED) == 5 and len(SERVED) >= 14
    for name in SERVED:
        assert set(EXPECT[name]) <= KNOWN, f"{name}: a key of expect.json that no test looks at"


def check(tree: Path, want: dict) -> None:
    """What expect.json says of a file, in its tree."""
    for bank, rows in want.get("rows", {}).items():
        assert load(tree / bank / "offsets.npy")[-1] == rows, bank
    for bank, counts in want.get("counts", {}).items():
        assert np.diff(load(tree / bank / "offsets.npy")).tolist() == counts, bank
    for column, values in want.get("values", {}).items():
        assert load(tree / f"{column}.npy").tolist() == values, column
    for column, shape in want.get("shape", {}).items():
        assert list(load(tree / f"{column}.npy").shape) == shape, column
    for name, dtype in want.get("dtypes", {}).items():
        bank, = banks(tree)
        assert load(tree / bank / f"{name}.npy").dtype == np.dtype(dtype).newbyteorder("<"), name
    for node, values in want.get("nodes", {}).items():
        assert load(tree / ".nodes" / f"{node}.npy").tolist() == values, node
    if "tags" in want:
        assert load(tree / ".hipofs/event_tags.npy").tolist() == want["tags"]
    if "banks" in want:
        assert len(banks(tree)) == want["banks"]
    assert len(load(tree / ".hipofs/event_tags.npy")) == want["events"]
    for bank in banks(tree):  # every bank has the same entries, and its columns the rows that its offsets say
        offsets = load(tree / bank / "offsets.npy")
        assert len(offsets) == want["events"] + 1 and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
        for column in (tree / bank).glob("*.npy"):
            assert column.name == "offsets.npy" or len(load(column)) == offsets[-1], column


@pytest.mark.parametrize("name", SERVED)
def test_case_is_served(name, mount):
    check(mount(CASES / name).point, EXPECT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_case_is_refused_in_one_sentence(name, command, tmp_path):
    point = tmp_path / "mnt"
    point.mkdir()
    done = command(CASES / name, point)
    assert done.returncode == EXPECT[name]["exit"] and done.stdout == ""
    line, = done.stderr.splitlines()
    assert line.startswith("hipofs: ") and name in line
    assert re.search(EXPECT[name].get("says", "."), line, re.IGNORECASE), line


def test_a_truncated_file_names_its_last_good_record_and_skip_serves_it(command, mount, tmp_path):
    path = CASES / "truncated_last_record.hipo"
    point = tmp_path / "mnt"
    point.mkdir()
    done = command(path, point)
    assert done.returncode == 3 and "512" in done.stderr, "the record that is cut begins at byte 512"
    assert re.search(r"last good record is 0\b", done.stderr), done.stderr
    m = mount(path, "--on-error=skip")
    check(m.point, {"events": 2, "counts": {"REC::Particle": [1, 2], "REC::Event": [1, 1]}, "tags": [0, 0],
                    "values": {"REC::Particle/pid": [11, -211, -211], "REC::Event/evno": [0, 1],
                               "REC::Particle/status": [2000, 2010, -2011]}})
    assert path.name in m.said


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_chain_is_the_union_of_its_dictionaries(order, mount):
    names = ["chain_a.hipo", "chain_b_other_dictionary_order_and_bank.hipo"]
    names = [names[i] for i in order]
    m = mount([CASES / n for n in names])
    counts: dict[str, list[int]] = {}
    for bank in ("REC::Particle", "MC::Lund"):
        counts[bank] = [c for n in names for c in EXPECT[n]["counts"].get(bank, [0] * EXPECT[n]["events"])]
    check(m.point, {"events": 3, "counts": counts})
    assert "MC::Lund" not in banks(m / f".files/{'chain_a.hipo'}"), "that file's dictionary lacks it"
    for n in names:
        check(m / f".files/{n}", EXPECT[n])
