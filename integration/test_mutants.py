"""Two hundred of make mutants: damaged files, each mounted beside a good one."""
from __future__ import annotations

import pytest

import mutants


@pytest.mark.timeout(900)
def test_a_mutant_beside_a_good_file_harms_nobody(hipofs, tmp_path):
    tally = mutants.Mounts(hipofs, tmp_path).attempt_many(200, seed=1)
    print(tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.served and tally.partly and tally.refused, tally
