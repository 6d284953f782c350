"""Whatever is selected, hipofs_ak gives the values that oxihipo gives: of every bank of the real files and of each codec."""
from __future__ import annotations

import functools
from pathlib import Path

import awkward as ak
import hipofs_ak as hf
import numpy as np
import oxihipo
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import CASES, data

REAL = ["clas12_recon_proton_80MeV.hipo", "java_ntuple.hipo", "cpp_golden_lz4.hipo", "oxihipo_none.hipo", "oxihipo_percolumn.hipo"]
CODECS = sorted(p.name for p in data("codecs/small.hipo").parent.glob("tag[01][0-9]_*_per*.hipo") if "_v3_" not in p.name)  # oxihipo reads no v3
CHAINS = {
    "a real file": [data(REAL[0])],
    "columns apart": [data("oxihipo_percolumn.hipo")],
    "records and tags": [data("codecs/record_tags.hipo")],
    "named tags": [data("codecs/meta.hipo")],
    "one file twice": [data("codecs/small.hipo"), data("codecs/small.hipo")],
    "ragged": [CASES / "ragged_records_1_3_1_7.hipo"],
}

pytestmark = pytest.mark.usefixtures("program")
some = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=CHAINS)
def pair(request, program):
    """A chain as hipofs_ak and as oxihipo have it."""
    paths = [str(p) for p in CHAINS[request.param]]
    with hf.open(paths) as f:
        yield f, oxihipo.open(paths)


def same(got: ak.Array, want: ak.Array) -> bool:
    return got.type == want.type and ak.array_equal(got, want, equal_nan=True, dtype_exact=True)


@pytest.mark.parametrize("name", REAL[1:] + [f"codecs/{c}" for c in CODECS])
def test_every_bank(name):
    chain = oxihipo.open(str(data(name)))
    with hf.open(data(name)) as f:
        assert (f.keys(), len(f)) == (chain.keys(), len(chain))
        np.testing.assert_array_equal(f.event_tags(), chain.event_tags())
        for bank in f:
            assert same(f.arrays(bank), chain.arrays(bank)), bank


def bank_of(pair, draw) -> str:
    """A bank that has rows, if there is one."""
    f, _ = pair
    return draw.draw(st.sampled_from(f.keys(nonempty=True) or f.keys()), "bank")


@some
@given(draw=st.data())
def test_ranges(pair, draw):
    f, chain = pair
    n = len(f)
    bank = bank_of(pair, draw)
    start, stop = (draw.draw(st.none() | st.integers(-n - 2, n + 2), w) for w in ("start", "stop"))
    lo, hi, _ = slice(start, stop).indices(n)
    want = chain.arrays(bank, entry_start=lo, entry_stop=max(lo, hi))
    got = f.arrays(bank, entry_start=start, entry_stop=stop)
    assert same(got, want)
    assert same(ak.materialize(f.arrays([bank], entry_start=start, entry_stop=stop, virtual=True))[bank], want)
    column = draw.draw(st.sampled_from(f.columns(bank)), "column")
    for a, b in zip(f.numpy(bank, column, entry_start=start, entry_stop=stop),
                    chain.numpy(bank, column, entry_start=lo, entry_stop=max(lo, hi))):
        np.testing.assert_array_equal(a, b)


@some
@given(draw=st.data())
def test_lists_of_entries(pair, draw):
    f, chain = pair
    bank = bank_of(pair, draw)
    entries = draw.draw(st.lists(st.integers(0, len(f) + 2), max_size=20), "entries")
    assert same(f.arrays(bank, entries=entries), chain.arrays(bank, entries=entries))


@some
@given(draw=st.data())
def test_filters(pair, draw):
    f, chain = pair
    tags = sorted({0, 1, *chain.event_tags().tolist()})
    wanted = {
        "require": st.lists(st.sampled_from(f.keys(nonempty=True) or f.keys()), max_size=3, unique=True),
        "record_tag": st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
        "event_tag": st.lists(st.sampled_from(tags), min_size=1, max_size=3, unique=True),
        "event_tag_any": st.integers(1, 40),
    }
    keywords = {k: draw.draw(s, k) for k, s in wanted.items() if draw.draw(st.booleans(), k)}
    got, want = f.filtered(**keywords), chain.filtered(**keywords)
    bank = bank_of(pair, draw)
    assert same(got.arrays(bank), want.arrays(bank))
    assert len(got) == len(want.arrays(bank)) and got.num_entries_total == len(f)
    np.testing.assert_array_equal(got.event_tags(), want.event_tags())
    # step by step, and by number among those that passed
    size = draw.draw(st.integers(1 + len(f) // 8, len(f) + 1), "step")
    chunks = list(got.iterate(bank, step_size=size))
    if chunks:
        assert same(ak.concatenate(chunks), want.arrays(bank)) and all(len(c) <= size for c in chunks)
    n = len(got)
    entries = draw.draw(st.lists(st.integers(0, n + 2), max_size=9), "entries")
    inside = [e for e in entries if e < n]
    assert same(got.arrays(bank, entries=inside), want.arrays(bank)[inside])


def test_filters_hold_beside_each_other(pair):
    f, chain = pair
    bank = (f.keys(nonempty=True) or f.keys())[0]
    got = f.filtered(event_tag=[0, 1]).filtered(require=[bank]).filtered(event_tag=[1, 2])
    assert same(got.arrays(bank), chain.filtered(event_tag=[1], require=[bank]).arrays(bank))
    with f.filtered(event_tag_any=1).filtered(event_tag_any=2) as both:
        np.testing.assert_array_equal(both.event_tags(), [t for t in chain.event_tags() if t & 1 and t & 2])


def test_tags_have_names():
    path = str(data("codecs/meta.hipo"))
    chain = oxihipo.open(path)
    with hf.open(path) as f:
        assert f.tag_names == chain.tag_names and f.tag_names
        assert f.config == chain.config and f.config
        bank = f.keys()[0]
        for tags in ("dvcs", ["dvcs", "elastic"], ["sidis", 4]):
            assert same(f.filtered(event_tag=tags).arrays(bank), chain.filtered(event_tag=tags).arrays(bank))
            assert same(f.filtered(event_tag_any=tags).arrays(bank), chain.filtered(event_tag_any=tags).arrays(bank))
        with pytest.raises(KeyError, match="no tag name 'dvc'.*nearest are dvcs"):
            f.filtered(event_tag="dvc")


CUTS = ["{0} > 0", "({0} > 0) & ({0} < 100)", "ak.any({0} > 0, axis=1)", "ak.num({0}) > 1", "~({0} == 0)", "abs({0}) % 2 == 1",
        "np.sqrt(abs({0})) * 2 - 1 > {1} / 3", "ak.sum({0}, axis=1) >= ak.firsts({1}, axis=1)", "{0} == {1}[:, 0:1]"]


@some
@given(draw=st.data())
def test_cuts(pair, draw):
    f, chain = pair
    bank = bank_of(pair, draw)
    plain = [c.name for c in f.schema(bank).columns if c.length == 1 and c.name.isidentifier()]
    names = draw.draw(st.lists(st.sampled_from(plain), min_size=2, max_size=2), "names")
    cut = draw.draw(st.sampled_from(CUTS), "cut").format(*names)
    columns = draw.draw(st.none() | st.lists(st.sampled_from(f.columns(bank)), min_size=1, max_size=3, unique=True), "columns")
    try:
        with np.errstate(all="ignore"):
            want = chain.arrays(bank, columns, cut=cut)
    except ValueError:
        with np.errstate(all="ignore"), pytest.raises(ValueError):
            f.arrays(bank, columns, cut=cut)
        return
    with np.errstate(all="ignore"):
        got = f.arrays(bank, columns, cut=cut)
    assert got.fields == (columns or f.columns(bank))
    assert ak.array_equal(got[want.fields], want, equal_nan=True, dtype_exact=True)


@pytest.mark.parametrize("library", ["np", "pd", "arrow"])
def test_libraries(pair, library):
    f, chain = pair
    for bank in f.keys(nonempty=True) or f.keys():
        for banks in (bank, [bank]):
            got, want = f.arrays(banks, library=library), chain.arrays(banks, library=library)
            if library == "arrow":
                assert got.schema == want.schema and got.equals(want) or "nan" in str(want.to_pydict())
                continue
            if library == "pd" and banks == bank:
                got, want = {"": got}, {"": want}
            assert list(got) == list(want)
            for name in got:
                if library == "pd":
                    pd.testing.assert_frame_equal(got[name], want[name])
                    assert got[name].attrs == want[name].attrs
                else:
                    assert got[name].dtype == object and len(got[name]) == len(want[name])
                    for a, b in zip(got[name], want[name]):
                        assert a.dtype == b.dtype
                        np.testing.assert_array_equal(a, b)


def test_flat_numpy_and_polars(pair):
    f, chain = pair
    bank = (f.keys(nonempty=True) or f.keys())[0]
    for name, column in f.arrays(bank, library="np_flat").items():
        for a, b in zip(column, chain.numpy(bank, name)):
            np.testing.assert_array_equal(a, b)
    frame = f.arrays(bank, library="pl")
    for name in f.columns(bank):
        np.testing.assert_equal(frame[name].to_list(), chain.array(bank, name).to_list())
    assert list(f.arrays([bank], library="pl")) == [bank]


def test_nothing_is_copied(pair):
    """Arrow, pandas and awkward have the pages of the file itself."""
    f, _ = pair
    bank = (f.keys(nonempty=True) or f.keys())[0]
    column = f.columns(bank)[0]
    if f.schema(bank).column(column).length > 1:
        pytest.skip("an array column")
    flat = f.arrays(bank, [column], library="np_flat")[column]
    if not len(flat.values):
        pytest.skip("no rows")
    read = hf._bank.read_bank(f._open(), f.schema(bank), [f.schema(bank).columns[0]], 0, len(f))
    values, offsets = read.columns[0][1], read.offsets
    array = hf._library.assemble([read], True, "ak")
    assert np.shares_memory(array.layout.offsets.data, offsets) and np.shares_memory(array.layout.content.contents[0].data, values)
    table = hf._library.assemble([read], True, "arrow")
    assert table[column].chunk(0).values.buffers()[1].address == values.__array_interface__["data"][0]
    frame = hf._library.assemble([read], True, "pd")
    assert np.shares_memory(frame[column].to_numpy(), values)


@functools.cache
def composite() -> Path:
    return data("codecs/composite.hipo")


def test_composites():
    chain = oxihipo.open(str(composite()))
    with hf.open(composite()) as f:
        assert f.keys(kind="composite") == ["SM::part", "700.5"]
        assert same(f.composite("SM::part"), chain.composite("SM::part"))
        assert same(f.composite("SM::part", 1, 4), chain.composite("SM::part", 1, 4))
        for name, column in chain.composite("SM::part", library="np").items():
            np.testing.assert_equal(list(f.composite("SM::part", library="np")[name]), list(column))
        assert f.composite("700.5").fields == ["f0", "f1", "f2", "f3", "f4", "f5"]
        assert "800.9" in f.keys(kind="node") and f.schema("800.9").columns[0].typename == "float32[3]"
        assert ak.sum(ak.num(f.array("800.9", "value"))) == 4
        for name in ("SM::event", "no::bank", "800.1"):
            with pytest.raises(KeyError):
                f.composite(name)
