"""The short form of make kills: fifty SIGKILLs, and the next start is right each time."""
from __future__ import annotations

import pytest

import kills


@pytest.mark.timeout(900)
def test_after_a_kill_at_any_instant_the_next_start_is_right(hipofs, tmp_path):
    target = kills.Target(hipofs, tmp_path, seed=1)
    tally = target.kill(50)
    print(tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert {k.split(",")[0] for k in tally.kills} == set(target.works()), f"one of them always ended before: {tally}"
