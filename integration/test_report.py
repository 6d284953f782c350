"""What the page of hipofs report says of columns is what NumPy says of them."""
from __future__ import annotations

import html
import re

import numpy as np
import oxihipo
import pytest

from harness import data, run

CARD = re.compile(r'<div class="card"><h3>(.*?) <span>.*?<p class="facts">(.*?)</p>', re.DOTALL)
BAR = re.compile(r"<title>.*?: (\d+)</title>")


@pytest.mark.parametrize("name", ["codecs/tag05_zstd_perbank.hipo", "cpp_golden_lz4.hipo"])
def test_columns_are_as_numpy_finds_them(name, command, tmp_path):
    assert command("report", data(name), "-o", tmp_path / "r.html", "--columns", "*").returncode == 0
    page = (tmp_path / "r.html").read_text()
    cards = {html.unescape(n): (html.unescape(f), m) for m in CARD.finditer(page) for n, f in [m.groups()]}
    chain = oxihipo.open([str(data(name))])
    seen = 0
    for bank, _, columns in chain.read_columns([(b, []) for b in chain.keys()]):
        for column, values, _ in columns:
            if not len(values):
                continue
            seen += 1
            facts, card = cards[f"{bank}/{column}"]
            values = values.astype("f8")
            good = values[np.isfinite(values)]
            text = re.sub("<.*?>", "", facts)
            assert text.startswith(f"{values.size} values"), text
            assert f", {np.isnan(values).sum()} NaN" in text or not np.isnan(values).any(), text
            if good.min() == good.max():
                assert float(re.search(r"always (\S+?)(?:,|$)", text)[1]) == pytest.approx(good[0], rel=1e-4)
                continue
            low, high, mean = (float(x) for x in re.search(r"min (\S+), max (\S+), mean (\S+?)(?:,|$)", text).groups())
            assert (low, high) == pytest.approx((good.min(), good.max()), rel=1e-4)
            assert mean == pytest.approx(good.mean(), rel=1e-4, abs=1e-9 * np.abs(good).max())
            assert sum(map(int, BAR.findall(card.group(0)))) == good.size, f"{bank}/{column}"
    assert seen > 5


def test_man_pages_are_sound(command, tmp_path):
    assert command("man", tmp_path).returncode == 0
    pages = sorted(tmp_path.glob("*.1"))
    said = run("mandoc", "-Tlint", "-Wwarning", *pages, ok=False).stdout
    assert len(pages) > 10 and [line for line in said.splitlines() if "missing date" not in line] == []
