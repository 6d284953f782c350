"""What the README and the manual tell a physicist to type works as it stands, and the manual is complete."""
from __future__ import annotations

import json
import os
import re
import shutil
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import ROOT, Mount, banks, data, run
from writer import event, structure, write

SAID = {  # of what the blocks of a page print
    "README.md": ("px.npy", "4 particles in 3 events", "the particles of event 1 have px [3.5]", "[ 4.    0.75  0.   16.  ]",
                  "[2, 1, 1] 4.5", "11       2  2.25", "entry 2 has px [8.]", "calorimeter: [0 2]", "REC::Calorimeter"),
    "docs/manual.md": ("2 files, 3 entries, 2 records", "a.hipo has 2 entries", "px <f4 px.npy", "errors: []", "\npx\n",
                       "the sum of px is 14.5", "MY::Weight", "a.hipo.hipofs-index"),
    "docs/farm.md": ("1 of 1 files", ".hipofs-index", "4 particles, sum of px 14.5", "entries 0:1 have 2 particles", "entries 1:3 have 2 particles"),
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The shell and Python blocks of a page, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


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


@pytest.mark.parametrize("page", SAID)
def test_every_block_works_as_it_stands(page, run5042, hipofs, env):
    path = hipofs.parent, ROOT / "integration" / "standin", Path(sys.executable).parent, os.environ["PATH"]
    env |= {"PATH": ":".join(map(str, path))}
    env |= {name: run("go", "env", name).stdout.strip() for name in ("GOCACHE", "GOPATH")}  # "make build" has another HOME here
    shutil.copytree(ROOT / "packaging" / "slurm", run5042, dirs_exist_ok=True)
    said = ""
    try:
        for kind, text in blocks(page):
            argv = ["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else [sys.executable, "-W", "error", "-c", text]
            said += run(*argv, cwd=ROOT if text.startswith("make ") else run5042, env=env).stdout
    finally:
        Mount(hipofs, run5042 / "mnt", env).discard()
    for line in SAID[page]:
        assert line in said, said
    assert not (run5042 / "mnt").exists()


def test_no_page_has_a_block_that_is_not_run():
    for page in SAID:
        text = (ROOT / page).read_text()
        assert set(re.findall(r"^```(\w+)$", text, re.MULTILINE)) <= {"sh", "python"}, page
        assert not re.search(r"^    (hipofs|make|pip|sudo|mkdir|[a-z]+=)[ $]", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)


def test_every_link_of_every_page_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "integration/clients/README.md"]
    assert len(pages) > 8
    for page in pages:
        for link, anchor in re.findall(r"\]\((?!\w+://)([^)#]*)#?([^)]*)\)", page.read_text()):
            to = page.parent / link if link else page
            assert to.exists(), f"{page}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)", to.read_text(), re.MULTILINE)
                assert anchor in {h.lower().replace(" ", "-") for h in headings}, f"{page}: {link}#{anchor}"


def test_the_manual_has_every_command_and_option(hipofs):
    text = (ROOT / "docs/manual.md").read_text()
    assert run(ROOT / "scripts/manual.py", "--print").stdout == text, "run make manual"
    sections = dict(re.findall(r"^### hipofs ([a-z]+)\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL))
    commands = {line.split("\t")[0] for line in run(hipofs, "__complete", "").stdout.splitlines()}
    assert commands - {":4", ":0", "help"} <= set(sections)
    for command, section in sections.items():
        flags = {line.split("\t")[0] for line in run(hipofs, "__complete", command, "--").stdout.splitlines()}
        for flag in flags - {"--help", "--o", ":4", ":0"}:
            assert flag in section, f"hipofs {command} {flag}"


def test_the_manual_has_every_file_of_a_mount(run5042, mount, tmp_path):
    m = mount([run5042 / "run5042/a.hipo", data("codecs/tag00_none_perchunk.hipo")], "--cache-dir", str(tmp_path / "columns"))
    found = {n for n in os.listdir(m) if n.startswith(".") or "::" not in n} | {f".hipofs/{n}" for n in os.listdir(m / ".hipofs")}
    for bank in [*(m / b for b in banks(m)), *(m / ".nodes").iterdir()]:
        columns = {c["file"] for c in json.loads((bank / "schema.json").read_text())["columns"]}
        found |= {re.sub("@.*::Particle", "@P::Particle", n) for n in os.listdir(bank) if n not in columns}
    found |= {n for n in os.listdir(m / ".event/0") if "::" not in n} - found
    tables = "".join(re.findall(r"^\|.*", (ROOT / "docs/manual.md").read_text(), re.MULTILINE))
    names = {n.split("/")[0] for n in re.findall(r"`([^`]+)`", tables)}
    assert len(found) > 20 and {n.removeprefix(".hipofs/") for n in found} <= names


def test_the_manual_has_every_exit_status_and_errno():
    text = (ROOT / "docs/manual.md").read_text()
    sources = "".join(p.read_text() for p in (ROOT / "cmd/hipofs").glob("*.go"))
    statuses = set(re.findall(r"\tstatus[A-Z]\w+ += (\d+)", sources))
    assert {"1", "7", "126", "130"} <= statuses
    for status in statuses:
        assert re.search(rf"^\|.*\b{status}\b.*\|", text, re.MULTILINE), status
    for errno in re.findall(r"syscall\.(E[A-Z]+)", (ROOT / "fs/errno.go").read_text()):
        assert f"({errno})" in text, errno


def test_the_demo_shows_a_column_and_leaves_no_mount(tmp_path):
    said = run("make", "demo", cwd=ROOT, env=os.environ | {"MAKEFLAGS": "", "TMPDIR": str(tmp_path)}, timeout=300).stdout
    assert "float32 (24,)" in said and "REC::Particle" in said and "MC::Particle" in said
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text() and os.listdir(tmp_path) == []


def test_the_old_way_and_the_new_print_the_same(run5042, hipofs, env):
    """docs/moving.md: the Python blocks of a section, by hipopy, oxihipo and hipofs."""
    if find_spec("hipopy") is None:
        pytest.skip("hipopy is not here")
    page = (ROOT / "docs" / "moving.md").read_text()
    m = Mount(hipofs, run5042 / "mnt", env)
    m.point.mkdir()
    env |= {"PATH": f"{hipofs.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "python")}
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
    assert compared == 18


def test_make_alone_lists_what_one_can_ask_for():
    said = run("make", cwd=ROOT, env=os.environ | {"MAKEFLAGS": ""}).stdout
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(targets) > 15
    for target in targets:
        assert f"make {target} " in said and f"`make {target}`" in told, target


def test_the_figures_of_the_readme_are_of_the_last_bench():
    told = re.search(r"^<!-- speed.*?^<!-- end", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert len(re.findall(r"[\d.]+ (?:s|GB/s|KB) \|", told)) > 10 and "?" not in told, told
