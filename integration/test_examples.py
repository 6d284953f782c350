"""The worked examples give the same histograms in every language, and the peaks that were simulated."""
from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec

import pytest

from harness import ROOT, Mount, environment, mounted, run

EXAMPLES = ROOT / "integration" / "examples"


def counts(said: str) -> list[tuple[int, ...]]:
    """The lines of both histograms: a hundred bins of 50 MeV from 0 on."""
    rows = [(e, int(w), int(mx)) for e, w, mx in (line.split() for line in said.splitlines())]
    assert [e for e, _, _ in rows] == [f"{i * 0.05:.2f}" for i in range(100)]
    return [(w, mx) for _, w, mx in rows]


@pytest.fixture(scope="module", params=["simulated", "dst"])
def chain(request, hipofs, tmp_path_factory):
    """A mount of a run, its files, and the histograms by oxihipo and awkward arrays, which share no code with the others."""
    folder = tmp_path_factory.mktemp("examples")
    env = environment(folder)
    if request.param == "simulated":
        run(sys.executable, "-W", "error", EXAMPLES / "simulate.py", folder / "simulated", "30000")
        run(hipofs, "pack", folder / "simulated", "-o", folder / "simulated.hipo", env=env)
        sources = [folder / "simulated.hipo"]
    else:
        sources = request.getfixturevalue("dst").sources
        if not any("dst" in s.name for s in sources):
            pytest.skip("there is no writer of a DST here")
    expected = counts(run(sys.executable, "-W", "error", EXAMPLES / "spectra_oxihipo.py", *sources).stdout)
    assert all(sum(column) > 10 for column in zip(*expected))
    with mounted(hipofs, env, sources) as m:
        yield request.param, m, expected


def test_python(chain, tmp_path):
    name, mnt, expected = chain
    assert counts(run(sys.executable, "-W", "error", EXAMPLES / "spectra.py", mnt).stdout) == expected
    if name == "simulated":  # the neutron, and the elastic peak beside the first resonance
        w, mx = zip(*expected)
        assert max(mx) == mx[18] and w[18] > 2 * w[20] < w[24]


def test_the_plot(chain, tmp_path):
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not here")
    run(sys.executable, EXAMPLES / "spectra.py", chain[1], tmp_path / "plot.png")
    head = (tmp_path / "plot.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[16:] == (1000).to_bytes(4, "big") + (400).to_bytes(4, "big")


@pytest.mark.skipif(not shutil.which("c++"), reason="c++ is not here")
def test_cpp(chain, tmp_path):
    source = EXAMPLES / "spectra.cc"
    line = re.search(r"^// (c\+\+ .*)", source.read_text(), re.MULTILINE)[1]
    run(*line.replace("-o spectra spectra.cc", "").split(), "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "spectra", source)
    assert counts(run(tmp_path / "spectra", chain[1]).stdout) == chain[2]


def test_julia(chain):
    if not shutil.which("julia"):
        pytest.skip("julia is not here")
    assert counts(run("julia", "--startup-file=no", EXAMPLES / "spectra.jl", chain[1]).stdout) == chain[2]


def test_the_page_tells_the_commands_that_work(hipofs, tmp_path):
    """docs/examples.md, in a folder that looks like a clone."""
    if find_spec("matplotlib") is None or not shutil.which("c++"):
        pytest.skip("matplotlib or c++ is not here")
    page = (ROOT / "docs" / "examples.md").read_text()
    block, = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name in (".venv", "build", "integration"):
        (tmp_path / name).symlink_to(ROOT / name)
    try:
        said = run("bash", "-euo", "pipefail", "-c", block, cwd=tmp_path, env=environment(tmp_path)).stdout.splitlines()
    finally:
        Mount(hipofs, tmp_path / "mnt", environment(tmp_path)).discard()
    assert len(said) == 300 and said[:100] == said[100:200] == said[200:]
