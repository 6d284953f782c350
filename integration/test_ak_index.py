"""hf.index says of records what their headers say, and of banks what oxihipo reads."""
from __future__ import annotations

import shutil
from pathlib import Path

import hipofs_ak as hf
import numpy as np
import oxihipo
import pytest

from harness import data, records

PLAIN = "clas12_recon_proton_80MeV.hipo"
SPLIT = "codecs/tag08_zstd_percolumn.hipo"


@pytest.mark.parametrize("name", [PLAIN, SPLIT, "codecs/record_tags.hipo", "codecs/tag14_none_percolumn.hipo"])
def test_records_are_those_of_the_file(program, name):
    path = data(name)
    index, want = hf.index(path), records(path)
    assert len(index) == len(want) and index.files == [str(path)]
    for got, field in ((index.positions, "at"), (index.lengths, "length"), (index.events, "events"),
                       (index.data_lengths, "data_length"), (index.record_tags, "word1")):
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, [getattr(r, field) for r in want])
    np.testing.assert_array_equal(index.records, range(len(want)))
    np.testing.assert_array_equal(index.first_entries, np.cumsum([0, *index.events])[:-1])

    chain = oxihipo.open(str(path))
    for bank in chain.keys():
        offsets = chain.numpy(bank, chain.columns(bank)[0]).offsets
        bounds = offsets[[*index.first_entries, index.events.sum()]]
        rows = index.rows.get(bank, np.zeros(len(want), np.int64))
        np.testing.assert_array_equal(rows, np.diff(bounds), err_msg=bank)


def test_a_plan_names_the_records_that_entries_are_in(program):
    index = hf.index([data(SPLIT), data("codecs/tag05_zstd_perbank.hipo")])
    assert len(index.files) == 2 and index.file.tolist() == sorted(index.file.tolist())
    bank, column = "CODEC::hits", oxihipo.open(str(data(SPLIT))).columns("CODEC::hits")[0]
    everything = index.plan(bank, column)
    assert {(r.file, r.record) for r in everything} == set(zip((index.files[i] for i in index.file), index.records.tolist()))
    first = int(index.events[0])
    for entries in (range(0, first), (0, first), slice(None, first), slice(0, first - int(index.events.sum()))):
        assert {(r.file, r.record) for r in index.plan(bank, column, entries)} == {(index.files[0], 0)}
    assert len({r.record for r in index.plan(bank, column, (first - 1, first + 1))}) == 2
    assert index.plan(bank, column, (5, 5)) == []
    for r in everything:
        at = (index.file == index.files.index(r.file)) & (index.records == r.record)
        begin, end = int(index.positions[at][0]), int(index.positions[at][0] + index.lengths[at][0])
        assert begin <= r.position < r.position + r.length <= end
    assert {r.what for r in everything} == {"directory", "stream"}
    assert sum(r.length for r in everything) < int(index.lengths.sum()) / 2


def test_an_index_is_kept_where_it_is_wanted(program, tmp_path: Path):
    path = tmp_path / "run.hipo"
    shutil.copy(data(PLAIN), path)
    hf.index(path, index_dir=tmp_path / "indexes")
    assert len(list((tmp_path / "indexes").iterdir())) == 1
    assert not list(tmp_path.glob("*.hipofs-index"))
    hf.index(str(path), beside=True)
    assert [p.name for p in tmp_path.glob("*.hipofs-index")] == ["run.hipo.hipofs-index"]


def test_what_cannot_be_indexed_or_planned(program):
    with pytest.raises(FileNotFoundError):
        hf.index("no such file.hipo")
    with pytest.raises(hf.CorruptFileError) as damaged:
        hf.index(data("codecs/truncated.hipo"))
    assert (damaged.value.record, damaged.value.byte) == (2, 1664)
    index = hf.index(data(PLAIN))
    for bank, column in (("MC::Nope", "px"), ("MC::Particle", "nope")):
        with pytest.raises(KeyError, match=column if bank == "MC::Particle" else bank):
            index.plan(bank, column)
    with pytest.raises(ValueError, match="gaps"):
        index.plan("MC::Particle", "px", slice(0, 9, 2))
