"""Many readers at once get the right bytes, and nothing is decoded twice for them; memory stays in its bounds."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import PATIENCE, ROOT, load, mounted


@pytest.fixture(scope="module")
def oracle(dst, tmp_path_factory) -> Path:
    """The content of 100 columns with rows, in files that every reader can compare with."""
    folder = tmp_path_factory.mktemp("oracle")
    content = dst.content()
    names = sorted(content)[:: max(1, len(content) // 100)][:100]
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        content[name].tofile(path)
    return folder


def race(readers: list[list[str]]) -> None:
    """Start all readers, let them go at the same moment, and wait for each; all must agree with the oracle."""
    start, go = os.pipe()
    processes = [subprocess.Popen([sys.executable, "-S", str(ROOT / "integration/reader.py"), *argv], stdin=start,
                                  stderr=subprocess.PIPE, text=True) for argv in readers]
    os.close(start)
    os.close(go)
    said = []
    for p in processes:
        try:
            _, err = p.communicate(timeout=2 * PATIENCE)
        except subprocess.TimeoutExpired:
            p.kill()
            _, err = p.communicate()
            err = f"a reader hangs\n{err}"
        if p.returncode or err:
            said.append(f"status {p.returncode}: {err}")
    assert not said, "\n".join(said)


@pytest.mark.parametrize("processors", [1, 2])
def test_32_readers_in_two_records_of_memory(processors, dst, oracle, hipofs_race, env, tmp_path):
    env |= {"GOMAXPROCS": str(processors), "GORACE": f"log_path={tmp_path}/race halt_on_error=0"}
    assert len(list(oracle.rglob("*.npy"))) == 100 or not dst.sources[0].name.startswith("dst")
    with mounted(hipofs_race, env, dst.sources, f"--memory={2 * dst.largest}") as m:
        race([[str(oracle), str(m), f"--seed={seed}", "--slices=8"] for seed in range(32)])
        stats = m.json("stats.json")
        assert stats["cache_evictions"] > 0 or not dst.sources[0].name.startswith("dst"), "the budget was never reached"
        assert 0 < stats["cache_bytes"] <= stats["cache_budget"] <= 2 * dst.largest
        assert stats["errors"] == 0
    assert not list(tmp_path.glob("race*")), "".join(p.read_text() for p in tmp_path.glob("race*"))


@pytest.mark.parametrize("build, share", [("hipofs", 1), ("hipofs_race", 5)])
def test_8_readers_of_40_columns_in_3_ways(build, share, request, dst, oracle, env, tmp_path):
    """HIPOFS_ROUNDS is how often each reader goes through its columns; with the race detector, a fifth of it."""
    rounds = max(1, int(os.environ.get("HIPOFS_ROUNDS", 5)) // share)
    env |= {"GORACE": f"log_path={tmp_path}/race halt_on_error=0"}
    with mounted(request.getfixturevalue(build), env, dst.sources) as m:
        race([[str(oracle), str(m), f"--seed={seed}", f"--rounds={rounds}", "--columns=40"] for seed in range(8)])
        assert m.json("stats.json")["errors"] == 0
    assert not list(tmp_path.glob("race*")), "".join(p.read_text() for p in tmp_path.glob("race*"))


def test_ten_first_readers_decode_each_record_once(dst, oracle, hipofs, env):
    """The very first readers: the pass that counts rows keeps the column that is asked for."""
    name = sorted(str(p.relative_to(oracle)) for p in oracle.rglob("*.npy"))[0]
    with mounted(hipofs, env, dst.sources, "--index=lazy", "--no-index") as m:
        assert m.decoded() == 0, "a lazy mount decodes nothing unasked"
        race([[str(oracle), str(m), f"--whole={name}"] for _ in range(10)])
        assert m.decoded() == dst.records
        race([[str(oracle), str(m), f"--whole={name}"] for _ in range(10)])
        assert m.decoded() == dst.records, "the second ten readers decoded again"


def test_readers_of_ten_columns_that_no_pass_kept_share_each_decode(dst, oracle, hipofs, env):
    """Another bank was asked for first, so this one has to be decoded again: once for all its columns.

    Ten readers of one column would not do: the kernel itself asks only once for each page.
    """
    by_bank: dict[str, list[str]] = {}
    for path in sorted(oracle.rglob("*.npy")):
        by_bank.setdefault(path.parent.name, []).append(f"{path.parent.name}/{path.name}")
    wide = max(by_bank, key=lambda b: len(by_bank[b]))
    other = next(b for b in by_bank if b != wide)
    with mounted(hipofs, env, dst.sources, "--index=lazy", "--no-index") as m:
        race([[str(oracle), str(m), f"--whole={by_bank[other][0]}"]])
        before = m.decoded()
        race([[str(oracle), str(m), f"--whole={name}"] for name in by_bank[wide][:10]])
        assert m.decoded() - before <= dst.records


def test_five_banks_one_after_the_other_decode_each_record_twice_at_most(dst, hipofs, env):
    content = dst.content()
    first: dict[str, str] = {}
    for name in content:
        first.setdefault(name.split("/")[0], name)
    with mounted(hipofs, env, dst.sources) as m:
        for name in list(first.values())[:5]:
            np.testing.assert_array_equal(load(m / name), content[name])
        assert dst.records <= m.decoded() <= 2 * dst.records


def test_reading_everything_stays_in_memory_bounds(dst, hipofs, env):
    """A chain that inflates to many times the budget, every column of it."""
    budget, copies = 32 << 20, 3
    with mounted(hipofs, env, dst.sources * copies, f"--memory={budget}") as m:
        for name, content in dst.content().items():
            with open(m / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                assert (size - copies * content.nbytes) % 64 == 0, name
                file.seek(size - copies * content.nbytes)
                for _ in range(copies):
                    assert file.read(content.nbytes) == content.tobytes(), name
        assert m.peak() <= budget + (64 << 20), f"{m.peak() >> 20} MiB"
        assert m.json("stats.json")["cache_bytes"] <= budget
