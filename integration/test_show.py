"""What ls and show print is what oxihipo and the reference decoder find."""
from __future__ import annotations

import json
import re

import numpy as np
import oxihipo
import pytest

from harness import data, golden

FILES = ["clas12_recon_proton_80MeV.hipo", "cpp_golden_lz4.hipo", "codecs/tag00_none_perchunk.hipo",
         "codecs/tag05_zstd_perbank.hipo", "codecs/tag07_lz4hc_percolumn.hipo"]


def banks(name: str) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Offsets and columns of each bank by oxihipo."""
    chain = oxihipo.open([str(data(name))])
    return {bank: (offsets, {c: values.reshape(-1, n) if n > 1 else values for c, values, n in columns})
            for bank, offsets, columns in chain.read_columns([(bank, []) for bank in chain.keys()])}


@pytest.mark.parametrize("name", FILES)
def test_ls_counts_what_oxihipo_counts(name, command):
    # Counted at first, and then out of the index.
    first, again = (json.loads(command("ls", "--json", data(name)).stdout) for _ in range(2))
    assert first == again
    listed = {b["name"]: b for b in first["banks"] if not b["undeclared"]}
    expected = banks(name)
    assert listed.keys() == expected.keys()
    for bank, (offsets, columns) in expected.items():
        rows = np.diff(offsets)
        said = listed[bank]
        assert (said["rows"], said["entries_with_rows"], said["largest"]) == (rows.sum(), np.count_nonzero(rows), rows.max()), bank
        assert [c["name"] for c in said["columns"]] == list(columns), bank
        assert (said["stored_bytes"] is not None) == (name.startswith("codecs/tag0") and "perchunk" not in name and rows.sum() > 0)


def test_sizes_of_split_banks_add_up_to_the_streams(command):
    listed = json.loads(command("ls", "--json", data("codecs/tag09_lz4_perbank.hipo")).stdout)["banks"]
    from layout import splits
    expected: dict[tuple[int, int], int] = {}
    for record in splits(data("codecs/tag09_lz4_perbank.hipo")):
        for s in record.streams:
            expected[s.key] = expected.get(s.key, 0) + s.length
    assert {(b["group"], b["item"]): b["stored_bytes"] for b in listed if b["rows"]} == expected


def tables(text: str) -> dict[str, dict[str, list[str]]]:
    """What show prints: of each bank, the cells of each column."""
    out: dict[str, dict[str, list[str]]] = {}
    for part in text.split("\n\n")[1:]:
        title, *lines = part.strip("\n").splitlines()
        name, _, rows = re.split(r"  +", title)[:3]
        n = int(rows.split()[0])
        out[name] = {}
        for i in range(0, len(lines), n + 1):
            cells = [re.findall(r"\[[^\]]*\]|\S+", line) for line in lines[i:i + n + 1]]
            for k, column in enumerate(cells[0]):
                out[name][column] = [row[k + 1] for row in cells[1:]]
    return out


def value(cell: str, dtype: np.dtype) -> np.ndarray:
    return np.array(cell.strip("[]").replace("NaN", "nan").split(), dtype=dtype).squeeze()


@pytest.mark.parametrize("name", FILES)
def test_show_prints_the_values_that_oxihipo_reads(name, command):
    expected = banks(name)
    entries = len(next(iter(expected.values()))[0]) - 1
    for entry in sorted({0, 1, entries // 2, entries - 1}):
        done = command("show", data(name), "--entry", str(entry))
        assert done.returncode == 0, done.stderr
        shown = {b: t for b, t in tables(done.stdout).items() if not b.startswith(".nodes/")}
        assert shown.keys() == {b for b, (o, _) in expected.items() if o[entry] < o[entry + 1]}
        for bank, table in shown.items():
            offsets, columns = expected[bank]
            assert table.keys() == columns.keys()
            for column, cells in table.items():
                want = columns[column][offsets[entry]:offsets[entry + 1]]
                got = np.array([value(c, want.dtype) for c in cells], dtype=want.dtype)
                assert got.tobytes() == want.tobytes() or np.array_equal(got, want, equal_nan=want.dtype.kind == "f"), (bank, column)


def test_ls_lists_the_nodes_that_the_reference_decoder_finds(command):
    rows = {r.bank: r.rows for r in golden()["codecs/composite.hipo"] if r.bank.startswith("@") and r.bank != "@event"}
    listed = json.loads(command("ls", "--json", data("codecs/composite.hipo")).stdout)["banks"]
    assert {"@" + b["name"].replace(".", "/"): b["rows"] for b in listed if b["undeclared"]} == rows
