"""What the README tells a physicist to type works as it stands."""
from __future__ import annotations

import os
import re
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import ROOT, Mount, run
from writer import event, structure, write

BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def bank(item: int, fmt: str, columns: list[list]) -> bytes:
    return structure(300, item, 11, b"".join(struct.pack(f"<{len(c)}{f}", *c) for f, c in zip(fmt, columns)))


@pytest.fixture
def run5042(tmp_path: Path) -> Path:
    """A folder with the run of two files that the README speaks of."""
    (tmp_path / "run5042").mkdir()
    schemas = ["{REC::Particle/300/31}{pid/I,px/F}", "{REC::Calorimeter/300/32}{pindex/S,energy/F}"]
    write(tmp_path / "run5042/a.hipo", schemas, [[
        event(bank(31, "if", [[11, 211], [1, 2]]), bank(32, "hf", [[1, 1, 0], [0.25, 0.5, 4]])),
        event(bank(31, "if", [[11], [3.5]]))]])
    write(tmp_path / "run5042/b.hipo", schemas, [[
        event(bank(31, "if", [[22], [8]]), bank(32, "hf", [[0, 5], [16, 32]]))]])
    return tmp_path


def test_every_block_of_the_readme_works(run5042, hipofs, env):
    env |= {"PATH": f"{hipofs.parent}:{os.environ['PATH']}"}
    said = ""
    assert [kind for kind, _ in BLOCKS] == [
        "sh", "python", "python", "python", "sh", "sh", "sh", "python", "sh", "python", "sh", "sh", "sh", "sh"]
    try:
        for kind, text in BLOCKS:
            argv = ["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else [sys.executable, "-W", "error", "-c", text]
            said += run(*argv, cwd=run5042, env=env).stdout
    finally:
        Mount(hipofs, run5042 / "mnt", env).discard()
    for line in ("px.npy", "4 particles in 3 events", "the particles of event 1 have px [3.5]", "[ 4.    0.75  0.   16.  ]",
                 "[2, 1, 1] 4.5", "the sum of px is 14.5", "REC::Calorimeter"):
        assert line in said, said
    assert not (run5042 / "mnt").exists()


def test_the_demo_shows_a_column_and_leaves_no_mount(tmp_path):
    said = run("make", "demo", cwd=ROOT, env=os.environ | {"MAKEFLAGS": "", "TMPDIR": str(tmp_path)}, timeout=300).stdout
    assert "float32 (24,)" in said and "REC::Particle" in said and "MC::Particle" in said
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text() and os.listdir(tmp_path) == []


def test_the_old_way_and_the_new_print_the_same(run5042, hipofs, env):
    """docs/moving.md: the Python blocks of a section, by hipopy, oxihipo and hipofs."""
    if find_spec("hipopy") is None:
        pytest.skip("hipopy is not here")
    page = (ROOT / "docs" / "moving.md").read_text()
    for link in re.findall(r"\]\(([^)]*)\)", page):
        assert (ROOT / "docs" / link).exists(), link
    m = Mount(hipofs, run5042 / "mnt", env)
    m.point.mkdir()
    compared = 0
    try:
        m.start([run5042 / "run5042/a.hipo", run5042 / "run5042/b.hipo"], ())
        for section in page.split("\n## "):
            blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
            said = [run(sys.executable, "-W", "error", "-c", b, cwd=run5042, env=env).stdout for b in blocks]
            assert len(set(said)) <= 1 and "" not in said, (section.splitlines()[0], said)
            compared += len(said)
    finally:
        m.discard()
    assert compared == 15


def test_make_alone_lists_what_one_can_ask_for():
    said = run("make", cwd=ROOT, env=os.environ | {"MAKEFLAGS": ""}).stdout
    for target in ("demo", "test", "bench", "lint", "fuzz", "build", "clean"):
        assert f"make {target} " in said
