"""The short form of make soak: 64 processes read for a minute what is much larger than the memory for it."""
from __future__ import annotations

import pytest

import benchfiles
import soak
from harness import data, mounted


@pytest.mark.timeout(900)
def test_64_readers_get_the_right_bytes_within_the_budget(hipofs, env, tmp_path):
    if benchfiles.WRITER.exists():
        sources, budget = soak.chain(scale=10), 8 << 20
    else:  # of every codec and layout
        sources, budget = sorted(data("codecs/tag00_none_perchunk.hipo").parent.glob("tag*.hipo")), 64 << 10
    soak.expect(sources, tmp_path / "expected")
    with mounted(hipofs, env, sources, f"--memory={budget}") as m:
        soaked = soak.soak(m, tmp_path / "expected", readers=64, seconds=60, budget=budget)
        evictions = m.json("stats.json")["cache_evictions"]
    print(soaked)
    assert not soaked.mistakes, "\n".join(soaked.mistakes)
    assert all(soaked.count.reads.get(way) for way in ("by_load", "by_map", "by_pread")), soaked
    assert evictions, "the budget was never reached"
