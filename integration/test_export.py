"""hipofs export writes what a mount shows: the values, the shape, and nothing that is not whole."""
from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import duckdb
import numpy as np
import oxihipo
import pandas
import polars
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from harness import CASES, banks, data, digest, golden, load, run, walk

EXPECTED = golden()
READABLE = sorted(f for f in EXPECTED if not f.endswith("?salvage"))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for what says where it comes from, and in which order."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in walk(folder)
            if p.is_file() and p.name not in ("export.json", "files.json", "dictionary.json")}


def rows_of(folder: Path) -> set[tuple]:
    """The columns of an export, as golden.tsv has them."""
    found = set()
    tags = load(folder / ".hipofs/event_tags.npy")
    found.add(("@event", "tag", "<u4", len(tags), digest(tags)))
    nodes = folder / ".nodes"
    for bank in [folder / b for b in banks(folder)] + sorted(nodes.iterdir() if nodes.exists() else []):
        offsets = load(bank / "offsets.npy")
        for c in json.loads((bank / "schema.json").read_text())["columns"]:
            values = load(bank / c["file"])
            name = "@" + bank.name.replace(".", "/") if bank.parent == nodes else bank.name
            found.add((name, c["name"], values.dtype.str, len(values), digest(values), digest(offsets)))
    return found


def expected(name: str) -> set[tuple]:
    return {("@event", r.column, "<u4", r.rows, r.content) if r.bank == "@event" else
            (r.bank, r.column, r.dtype, r.rows, r.content, r.offsets) for r in EXPECTED[name]}


def test_every_file_has_the_golden_values_also_packed_again(command, tmp_path):
    for i, name in enumerate(READABLE):
        out, packed, again = (tmp_path / f"{i}{end}" for end in ("", ".hipo", ".again"))
        done = command("export", "-q", "--no-index", data(name), out)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert rows_of(out) == expected(name), name
        assert command("pack", "-q", out, "-o", packed).returncode == 0
        assert command("export", "-q", "--no-index", packed, again).returncode == 0
        assert tree(again) == tree(out), f"{name}: packed and exported again"


def test_the_same_files_as_in_a_mount(command, mount, tmp_path):
    sources = [CASES / "chain_a.hipo", CASES / "chain_b_other_dictionary_order_and_bank.hipo"]
    out = tmp_path / "out"
    assert command("export", "-q", "--no-index", *sources, out).returncode == 0
    m = mount(sources, "--no-index")
    mine = tree(out)
    for bank in banks(m.point):
        for path in sorted((m / bank).iterdir()):
            assert mine.pop(str(path.relative_to(m.point))) == path.read_bytes(), path
    assert sorted(mine) == [f".hipofs/{f}" for f in ("config.json", "entries.npy", "event_tags.npy", "record_tags.npy", "tags.json")]
    for name in sorted(mine):
        assert mine[name] == (m / name).read_bytes(), name
    assert (out / ".hipofs/dictionary.json").read_bytes() == (m / ".hipofs/dictionary.json").read_bytes()
    assert command("export", "-q", "--no-index", "--format", "arrow", *sources, tmp_path / "arrow").returncode == 0
    for bank in banks(m.point):
        assert (tmp_path / "arrow" / f"{bank}.arrow").read_bytes() == (m / f"{bank}.arrow").read_bytes(), bank


def test_entries_conditions_and_columns(dst, command, tmp_path):
    out = tmp_path / "out"
    n = len(dst.banks["REC::Particle"][0]) - 1
    a, b = n // 3, n // 3 + n // 2
    keep = np.zeros(n, bool)
    keep[a:b] = np.diff(dst.banks["REC::Calorimeter"][0])[a:b] > 0
    done = command("export", "--no-index", *dst.sources, out, "--entries", f"{a}:{b}", "--require", "REC::Calorimeter",
                   "--banks", "REC::Particle,REC::Calorimeter", "--columns", "p?,REC::Calorimeter/energy,@*")
    assert done.returncode == 0 and f"{keep.sum()} entries, 2 banks" in done.stderr, done.stderr
    kept = {}
    for bank, columns in (("REC::Particle", ["px", "py", "pz"]), ("REC::Calorimeter", ["energy"])):
        offsets, content = dst.banks[bank]
        kept[bank] = np.concatenate([[0], np.cumsum(np.diff(offsets)[keep])])
        np.testing.assert_array_equal(load(out / bank / "offsets.npy"), kept[bank])
        rows = np.repeat(keep, np.diff(offsets))
        files = {f"{c}.npy" for c in columns} | {"offsets.npy", "@entry.npy", "schema.json", "form.json"}
        assert files <= set(os.listdir(out / bank)) <= files | {"@REC::Particle.npy"}
        for c in columns:
            assert load(out / bank / f"{c}.npy").tobytes() == content[c][rows].tobytes(), c
    np.testing.assert_array_equal(load(out / ".hipofs/entries.npy"), np.flatnonzero(keep))
    np.testing.assert_array_equal(load(out / "REC::Particle/@entry.npy"), np.repeat(np.arange(keep.sum()), np.diff(kept["REC::Particle"])))


def test_tables_have_the_values_of_the_columns(dst, command, tmp_path):
    for sources in (dst.sources, [CASES / "array_column.hipo"], [CASES / "types_signed_extremes.hipo"], [data("cpp_golden_lz4.hipo")]):
        name = Path(sources[0]).stem
        out = {f: tmp_path / f"{name}.{f}" for f in ("npy", "parquet", "csv", "arrow")}
        for how, folder in out.items():
            small = ["--entries", ":2000"]
            done = command("export", "-q", "--no-index", "--format", how, *small, *sources, folder)
            assert done.returncode == 0, done.stderr
        for bank in banks(out["npy"]):
            offsets = load(out["npy"] / bank / "offsets.npy")
            content = {c["name"]: load(out["npy"] / bank / c["file"]) for c in json.loads((out["npy"] / bank / "schema.json").read_text())["columns"]}
            parquet(out["parquet"] / f"{bank}.parquet", offsets, content)
            arrow(out["arrow"] / f"{bank}.arrow", offsets, content)
            comma_separated(out["csv"] / f"{bank}.csv", load(out["npy"] / bank / "@entry.npy"), content)


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes() and got.dtype == want.dtype, what


def parquet(path: Path, offsets: np.ndarray, content: dict[str, np.ndarray]) -> None:
    """A Parquet file by three readers."""
    table = pyarrow.parquet.read_table(path)
    assert table.num_rows == len(offsets) - 1 and table.schema.names == list(content)
    frame = polars.read_parquet(path)
    for name, want in content.items():
        lists = table[name].combine_chunks()
        assert not table.schema.field(name).nullable
        np.testing.assert_array_equal(lists.offsets, offsets)
        values = lists.flatten()
        while pyarrow.types.is_nested(values.type):
            np.testing.assert_array_equal(np.diff(values.offsets), want.shape[1])
            values = values.flatten()
        same(values.to_numpy(), want.reshape(-1), f"{path}: {name}, by pyarrow")
        column = frame[name]
        np.testing.assert_array_equal(column.list.len().to_numpy(), np.diff(offsets))
        column = column.filter(column.list.len() > 0).explode()
        if len(want):
            if column.dtype == polars.List:
                column = column.explode()
            same(column.to_numpy(), want.reshape(-1), f"{path}: {name}, by polars")
    first = next(iter(content))
    with duckdb.connect() as db:
        entries, rows = db.execute(f"SELECT count(*), sum(len(\"{first}\")) FROM '{path}'").fetchone()
        assert (entries, rows or 0) == (len(offsets) - 1, offsets[-1])
        for name, want in content.items():
            if want.ndim == 1 and len(want):
                got = db.execute(f"SELECT unnest(\"{name}\") FROM '{path}'").fetchnumpy()
                same(next(iter(got.values())), want, f"{path}: {name}, by DuckDB")


def arrow(path: Path, offsets: np.ndarray, content: dict[str, np.ndarray]) -> None:
    """An Arrow file, mapped."""
    with pyarrow.memory_map(str(path)) as file:
        rows = pyarrow.ipc.open_file(file).read_all().column(0).combine_chunks()
        np.testing.assert_array_equal(rows.offsets, offsets)
        for name, want in content.items():
            values = rows.flatten().field(name)
            if want.ndim > 1:
                values = values.flatten()
            same(values.to_numpy(), want.reshape(-1), f"{path}: {name}")


def comma_separated(path: Path, entry: np.ndarray, content: dict[str, np.ndarray]) -> None:
    """A table of text, whose numbers are read as those that they were made of."""
    names = ["entry"]
    for name, want in content.items():
        names += [name] if want.ndim == 1 else [f"{name}[{i}]" for i in range(want.shape[1])]
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    assert list(frame.columns) == names and len(frame) == len(entry)
    np.testing.assert_array_equal(frame["entry"].to_numpy().astype("i8"), entry)
    for name, want in content.items():
        for i, column in enumerate([want] if want.ndim == 1 else want.T):
            text = frame[name if want.ndim == 1 else f"{name}[{i}]"].to_list()
            same(np.array([column.dtype.type(t) for t in text], column.dtype), column, f"{path}: {name}")


def test_killed_at_any_instant_nothing_half_written_has_its_name(dst, hipofs, env, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    argv = [hipofs, "export", "-q", "--no-index", *dst.sources]
    began = time.monotonic()
    run(*argv, whole, env=env)
    took = time.monotonic() - began
    want = tree(whole)
    rng = random.Random(5042)
    for _ in range(10):
        process = subprocess.Popen([*argv, out], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(rng.uniform(0, 1.2 * took))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        if out.exists():
            there = {name: b for name, b in tree(out).items() if not name.startswith(".hipofs.part/")}
            assert all(want[name] == b for name, b in there.items())
        if process.returncode == 0:
            assert tree(out) == want
            for path in out.rglob("p?.npy"):
                path.unlink()
    run(*argv, out, env=env)
    assert tree(out) == want, "an export that was killed and started again"


def test_interrupted_it_says_so_and_goes_on(dst, hipofs, env, command, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen([hipofs, "export", "--no-index", "--threads", "1", *dst.sources, out], env=env, stderr=subprocess.PIPE, text=True)
    while not (out / ".hipofs.part").exists() and process.poll() is None:
        pass  # it may be through before anybody looks
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130 and said == "hipofs: interrupted; started again, it goes on\n" or process.returncode == 0, said
    assert command("export", "-q", "--no-index", *dst.sources, out).returncode == 0
    assert ".hipofs.part" not in os.listdir(out)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted")
def test_a_full_disk_leaves_nothing(dst, command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m", "hipofs-test", disk)
    try:
        done = command("export", "-q", "--no-index", *dst.sources, disk / "out")
        assert done.returncode == 1 and "MB are needed, and 4 MB are free; choose another folder" in done.stderr, done.stderr
        assert os.listdir(disk) == []
        for how in ("npy", "arrow", "parquet", "csv"):  # of a part of the columns nobody knows beforehand how large it is
            done = command("export", "-q", "--no-index", "--format", how, "--banks", "REC::*", *dst.sources, disk)
            assert done.returncode == 1 and "no space left on device" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
            assert os.listdir(disk) == []
    finally:
        run("umount", disk)


@pytest.mark.skipif(os.geteuid() != 0, reason="the device is hidden by a mount")
def test_no_fuse_is_needed(hipofs, env, tmp_path):
    hidden = 'mount --make-rprivate / && mount --bind /dev/null /dev/fuse && exec "$@"'
    run("unshare", "-m", "sh", "-c", hidden, "sh", hipofs, "export", data("cpp_golden_lz4.hipo"), tmp_path / "out", env=env)
    chain = oxihipo.open(str(data("cpp_golden_lz4.hipo")))
    values, _, _ = chain.numpy("REC::Particle", "px")
    np.testing.assert_array_equal(load(tmp_path / "out/REC::Particle/px.npy"), values)
