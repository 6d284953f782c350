"""Arrow files: what pyarrow, polars, DuckDB and awkward-array read in BANK.arrow is what NumPy reads in the bank's columns."""
from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
from pathlib import Path

import awkward as ak
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pytest

import writer
from harness import banks, columns, data, errno_of, golden, load, mounted, records

CODECS = sorted(f for f in golden() if f.startswith("codecs/tag"))
FILES = sorted(f for f in golden() if "?" not in f and not f.startswith("codecs/"))


@contextlib.contextmanager
def opened(path: Path):
    """An Arrow file, mapped."""
    with pa.memory_map(str(path)) as mapped:
        yield pa.ipc.open_file(mapped)


@contextlib.contextmanager
def shown(hipofs, env, sources, *options):
    """A mount. What was read of it lies in its pages, and has to go before it can."""
    with mounted(hipofs, env, sources, *options) as m:
        yield m
        gc.collect()


def content(tree: Path, bank: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    folder = tree / bank
    return load(folder / "offsets.npy"), {c: load(folder / f"{c}.npy") for c in columns(folder)}


def check(tree: Path, bank: str, others: bool = False) -> None:
    """The bank's Arrow file has what its columns have."""
    path = tree / f"{bank}.arrow"
    offsets, want = content(tree, bank)
    with opened(path) as file:
        table = file.read_all()
    table.validate(full=True)
    assert table.num_rows == len(offsets) - 1
    got = table.column(0).combine_chunks() if table.num_rows else pa.array([], table.schema.field(0).type)
    assert not table.schema.field(0).nullable and table.column(0).null_count == 0
    assert np.array_equal(np.diff(got.offsets.to_numpy()), np.diff(offsets))
    rows = got.flatten()
    assert len(rows) == offsets[-1]
    assert [rows.type.field(i).name for i in range(rows.type.num_fields)] == [c["name"] for c in json.loads((tree / bank / "schema.json").read_text())["columns"]]
    for name, values in want.items():
        field = rows.field(name)
        if values.ndim > 1:
            assert field.type.list_size == values.shape[1]
            field = field.flatten()
        assert field.to_numpy(zero_copy_only=True).dtype == values.dtype, name
        assert field.to_numpy().tobytes() == values.tobytes(), f"{bank}/{name}"
    if others and len(rows) > 0:
        check_others(tree, bank, table)


def check_others(tree: Path, bank: str, table: pa.Table) -> None:
    """polars, DuckDB and awkward-array read the same."""
    offsets, want = content(tree, bank)
    name = table.column_names[0]
    frame = pl.read_ipc(tree / f"{bank}.arrow")
    assert frame.columns == [name] and frame.height == table.num_rows
    assert np.array_equal(frame[name].list.len().to_numpy(), np.diff(offsets))
    rows = frame[name].explode(empty_as_null=False).struct.unnest()
    array = ak.from_arrow(table)[name]
    assert np.array_equal(ak.num(array, axis=1), np.diff(offsets))
    assert "?" not in str(array.type)
    unnested = duckdb.sql(f'select unnest(row) from (select unnest("{name}") as row from "table")').arrow().read_all()
    for column, values in want.items():
        assert rows[column].to_numpy().tobytes() == values.tobytes(), f"polars: {bank}/{column}"
        assert ak.to_numpy(ak.flatten(array[column])).tobytes() == values.tobytes(), f"awkward: {bank}/{column}"
        if values.ndim == 1:
            assert unnested[column].to_numpy().tobytes() == values.tobytes(), f"DuckDB: {bank}/{column}"


@pytest.mark.parametrize("name", FILES)
def test_every_reader_sees_what_numpy_sees(hipofs, env, name):
    with shown(hipofs, env, [data(name)]) as m:
        for bank in sorted(banks(m.point)):
            check(m.point, bank, others=True)


def test_all_codecs_and_arrays_in_columns(hipofs, env):
    with shown(hipofs, env, [data(f) for f in CODECS]) as m:
        arrays = 0
        for path in ("", ".entries/3:40", ".files/" + Path(CODECS[-1]).name, ".where/require=CODEC::hits", ".event/5"):
            for bank in banks(m.point):
                check(m / path, bank, others=path == "")
                arrays += sum(values.ndim > 1 for values in content(m / path, bank)[1].values())
        assert arrays > 0


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """100 records, each larger than what is decoded at once, of a bank with an array in a column."""
    path = tmp_path_factory.mktemp("arrow") / "run.hipo"
    value = np.arange(60_000, dtype="<i4")
    writer.write(path, ["{A::x/100/1}{i/I,v/F#2}", "{A::none/100/2}{i/I}"],
                 [[writer.event(writer.structure(100, 1, 11, (value + r).tobytes() + np.repeat(value, 2).astype("<f4").tobytes())), writer.event()] for r in range(100)])
    return path


def test_one_batch_is_read_without_the_rest(hipofs, env, small):
    """Of a file with an index: to open it takes the records that its first and its last page are of, a batch its own."""
    with shown(hipofs, env, [small]) as m:
        size = os.stat(m / "A::x.arrow").st_size
    with shown(hipofs, env, [small]) as m:
        assert os.stat(m / "A::x.arrow").st_size == size
        with opened(m / "A::x.arrow") as file:
            assert m.json("stats.json")["records_decoded"] <= 2
            assert file.num_record_batches == 100
            rows = file.get_batch(57).column(0).flatten()
            assert rows.field("i").to_numpy()[-1] == 59_999 + 57
            assert rows.field("v").flatten().to_numpy()[-1] == 59_999
        del rows, file
        assert 1 <= m.json("stats.json")["records_decoded"] <= 5, "the record, and what the kernel read around it"


def test_parts_of_the_file_are_those_of_the_whole(hipofs, env, small):
    with shown(hipofs, env, [small], "--memory", "8M") as m:
        path = m / "A::none.arrow"
        whole = path.read_bytes()
        assert len(whole) == os.stat(path).st_size
        dice = np.random.default_rng(1)
        with open(path, "rb", buffering=0) as f:
            for _ in range(200):
                at, n = dice.integers(len(whole) + 10), dice.integers(1, 3000)
                assert os.pread(f.fileno(), n, at) == whole[at:at + n]
        assert errno_of(os.open, path, os.O_WRONLY) == errno.EROFS
        assert errno_of(os.getxattr, path, "user.hipofs.realpath") == errno.ENODATA
        assert os.listdir(m / ".nodes") == []


def test_damage_is_seen_at_open(hipofs, env, tmp_path):
    good = data("codecs/tag01_lz4_perchunk.hipo")
    broken = tmp_path / "broken.hipo"
    b = bytearray(good.read_bytes())
    second = records(good)[1]
    b[second.at + second.length - 100:second.at + second.length] = bytes(100)
    broken.write_bytes(b)
    with shown(hipofs, env, [broken, good], "--index", "lazy") as m:
        assert errno_of(os.stat, m / "CODEC::hits.arrow") == errno.EIO
        with pytest.raises(OSError):
            pa.memory_map(str(m / "CODEC::hits.arrow"))
        check(m / f".files/{good.name}", "CODEC::hits")
