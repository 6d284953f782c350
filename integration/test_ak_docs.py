"""What the documentation of hipofs_ak says is so: types, examples, the manual, and the table of oxihipo's names."""
from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import hipofs_ak as hf
import numpy as np
import pytest

import oxihiponames
from harness import ROOT, data, run
from writer import event, structure, write

PYTHON = ROOT / "python"
RECON = "clas12_recon_proton_80MeV.hipo"


def test_every_type_is_right():
    run(sys.executable, "-m", "mypy", "--config-file", PYTHON / "pyproject.toml", PYTHON / "hipofs_ak",
        "--cache-dir", ROOT / "build" / "mypy", cwd=PYTHON, timeout=300)
    assert (PYTHON / "hipofs_ak" / "py.typed").exists()
    for name, thing in public():  # a signature says what it takes
        kinds = {p.kind for p in inspect.signature(thing).parameters.values()} if inspect.isfunction(thing) else set()
        assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}, name


def public() -> list[tuple[str, object]]:
    """Functions, classes and their methods, by name."""
    found: list[tuple[str, object]] = []
    for name in hf.__all__:
        thing = getattr(hf, name)
        if not callable(thing) or name in ("Chain", "OxihipoError"):  # which are others by another name
            continue
        found.append((name, thing))
        if inspect.isclass(thing):
            found += [(f"{name}.{m}", f) for m, f in vars(thing).items() if inspect.isfunction(f) and not m.startswith("_")]
    return found


def test_every_example_works(program, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST)
    examples, without = 0, []
    for name, thing in [("hipofs_ak", hf), *public()]:
        tests = [t for t in finder.find(thing, name, globs={"source": str(data(RECON))}) if t.examples]
        if not tests:
            without.append(name)
        for test in tests:
            said: list[str] = []
            result = runner.run(test, out=said.append)
            assert result.failed == 0, "".join(said)
            examples += result.attempted
    assert not without, f"without an example: {', '.join(without)}"
    assert examples > 100


@pytest.fixture
def run5042(tmp_path: Path) -> Path:
    """A folder with the run of two files that the manual speaks of."""
    particle = np.dtype("<i4"), *[np.dtype("<f4")] * 3
    calorimeter = np.dtype("<i2"), np.dtype("<f4")

    def bank(item: int, types: tuple[np.dtype, ...], *columns: list[float]) -> bytes:
        return structure(300, item, 11, b"".join(np.array(c, t).tobytes() for c, t in zip(columns, types)))

    (tmp_path / "run5042").mkdir()
    schemas = ["{REC::Particle/300/31}{pid/I,px/F,py/F,pz/F}", "{REC::Calorimeter/300/32}{pindex/S,energy/F}"]
    write(tmp_path / "run5042/a.hipo", schemas, [[
        event(bank(31, particle, [11, 211], [1, 3], [0, 4], [0, 0]), bank(32, calorimeter, [1, 1, 0], [0.25, 0.5, 4])),
        event(bank(31, particle, [11], [3.5], [0], [1]))]])
    write(tmp_path / "run5042/b.hipo", schemas, [[
        event(bank(31, particle, [22], [8], [6], [0]), bank(32, calorimeter, [0, 5], [16, 32]))]])
    return tmp_path


def test_every_block_of_the_manual_works(run5042, program):
    page = (ROOT / "docs" / "python.md").read_text()
    for link in re.findall(r"\]\(([^):]*)\)", page):
        assert (ROOT / "docs" / link).exists(), link
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh"] + ["python"] * 8, "the first one, of pip, is what test_wheel.py does"
    whole = "".join(f"def block{n}():\n{re.sub('^', '    ', text, flags=re.MULTILINE)}\n    pass\nblock{n}()\n"
                    for n, (_, text) in enumerate(blocks[1:]))
    said = run(sys.executable, "-W", "error", "-c", whole, cwd=run5042, env=os.environ | {"PYTHONPATH": str(PYTHON)}).stdout
    for line in ("<hipofs_ak.File: 3 events, 2 file(s)>", "3 * var * {", "\n4.5\n", "\n5.0 2\n", "\n[3.5]\n", "52.75 [Accessed(", "2 of 3 events",
                 "[['e-', 'pi+'], ['e-'], ['gamma']]", "[[4, 0.75], [0], [16]]", "SkimSummary(events=2", "[2 1]", "[[211, 211, 11], [], [22, None]]"):
        assert line in said, said


def test_the_table_of_oxihipos_names_is_what_the_packages_say():
    page = (ROOT / "docs" / "oxihipo.md").read_text()
    assert page == oxihiponames.page(), "integration/oxihiponames.py >docs/oxihipo.md writes it"
    assert "| no |" in page and page.count("| same |") > 40


# A program that does all that oxihipo does, and does not know by which package.
SCRIPT = """
import hashlib
import sys

import awkward as ak
import numpy as np

import LIBRARY as hf


def told(array):
    form, length, buffers = ak.to_buffers(ak.to_packed(array))
    content = b"".join(np.asarray(buffers[name]).tobytes() for name in sorted(buffers))
    return array.type, hashlib.sha256(content).hexdigest()[:16]


def with_rows(array):
    return array[ak.num(array) > 0]


def tried(call):
    try:
        return call()
    except (KeyError, ValueError, TypeError, OSError) as e:
        return next(kind.__name__ for kind in (KeyError, ValueError, TypeError, OSError) if isinstance(e, kind))


for name in sys.argv[1:]:
    print("==", name)
    with hf.open(name) as f:
        print(len(f), f.num_entries, f.file_count, f.files, f.record_count, f.record_spans())
        print(f.keys(), f.keys(recursive=True), f.keys(filter_name="*::*art*"), f.typenames(), f.bank_ids)
        print(sorted(f.config.items()), sorted(f.tag_names.items()), hf.event_tags(name).tolist())
        print(list(f) == f.keys(), all(b in f for b in f), "no bank" in f)
        for bank in f.keys()[:12]:
            f.show(bank)
            for library in ("ak", "np", "pd", "arrow"):
                print(bank, library, type(f.arrays(bank, library=library)).__name__)
            print(told(f.arrays(bank)), told(f.arrays(bank, entry_start=1, entry_stop=7)), f[bank].keys(), f[bank].typenames())
            print(f.arrays(bank, library="arrow").schema)
            print(f.arrays(bank, library="pd"))
            print(told(f.arrays(bank, entries=[3, 0, 3, len(f) + 5])))
            print(told(with_rows(f.filtered(require=[bank]).arrays(bank))))
            column = f[bank].keys()[0]
            values, offsets, inner_len = f.numpy(bank, column)
            print(values.dtype, values.tolist()[:50], offsets.dtype, offsets.tolist()[:50], inner_len)
            print(told(f.array(bank, column)), told(f[bank][column]), told(f[bank, column]), told(f[f"{bank}/{column}"]))
            print(told(f[bank, [column]]))
            if inner_len == 1:
                print(told(f.arrays(bank, [column], cut=f"{column} > 3")))
                print(told(f.arrays(bank, cut=f"ak.any({column} > 3, axis=1)")))
            print(sum(len(c) for c in f.iterate(bank, step_size=50)))
            print(sum(len(c) for c, r in f.iterate(bank, step_size="1 kB", report=True)))
            print(tried(lambda: f.arrays(bank, ["no column"])), tried(lambda: f.arrays(bank, library="csv")))
            print(tried(lambda: f.arrays(bank, cut="no_such_name > 3")), tried(lambda: f.composite(bank)))
        print(told(f.arrays()), told(f.arrays(f.keys()[:2])), told(f.arrays(filter_name="*::*")))
        if f.keys():
            print(f.map_reduce(len, f.keys()[0], step_size=40, workers=1))
            print(len(hf.numpy(name, f.keys()[0], f.columns(f.keys()[0])[0]).values), told(hf.arrays(name, f.keys()[0])))
            print(sum(len(c) for c in hf.iterate(name, f.keys()[0])))
        for tags in ({"event_tag": [0]}, {"event_tag_any": 3}, {"record_tag": [0]}, {"event_tag": [1, 2], "record_tag": [0, 1]}):
            print(tags, [told(f.filtered(**tags).arrays(b)) for b in f.keys()[:2]])
        for key in ("no bank", "no bank/px"):
            print(tried(lambda: f[key]), tried(lambda: f.arrays(key)))
        print(tried(lambda: f.filtered(event_tag="no such tag")), tried(lambda: next(iter(f.iterate(step_size="5 parsecs")))))
    print(tried(lambda: len(f)))
"""

# Files that oxihipo reads right: it takes no HREC file and no version 3 of columns, and old_java.hipo has other numbers there.
FILES = [RECON, "cpp_golden_lz4.hipo", "java_ntuple.hipo", "java_histograms_nodict.hipo", "oxihipo_none.hipo", "oxihipo_percolumn.hipo",
         *(f"codecs/{name}.hipo" for name in (
             "tag00_none_perchunk", "tag01_lz4_perchunk", "tag02_lz4hc_perchunk", "tag03_gzip_perchunk", "tag04_zstd_perchunk",
             "tag05_zstd_perbank", "tag06_lz4hc_perbank", "tag07_lz4hc_percolumn", "tag08_zstd_percolumn", "tag09_lz4_perbank",
             "tag10_lz4_percolumn", "tag11_gzip_perbank", "tag12_gzip_percolumn", "tag13_none_perbank", "tag14_none_percolumn",
             "big_endian", "cpp_tags", "empty_record", "java_config", "meta", "record_tags", "user_header"))]


def test_the_same_program_by_oxihipo_and_by_hipofs_ak(program):
    paths = [str(data(name)) for name in FILES]
    own = os.environ | {"PYTHONPATH": str(PYTHON)}
    theirs, ours = (subprocess.Popen([sys.executable, "-W", "error", "-c", SCRIPT.replace("LIBRARY", library), *paths], env=own,
                                     stdout=subprocess.PIPE, text=True) for library in ("oxihipo", "hipofs_ak"))
    got, want = ours.communicate(timeout=250)[0].splitlines(), theirs.communicate(timeout=250)[0].splitlines()
    assert (theirs.returncode, ours.returncode) == (0, 0)
    for n, (a, b) in enumerate(zip(got, want)):
        assert a == b, f"line {n}"
    assert len(got) == len(want) and sum(line.startswith("==") for line in got) == len(FILES)


def test_the_demonstration_shows_the_arrays_of_a_file(program):
    said = run(sys.executable, "-W", "error", "-m", "hipofs_ak", env=os.environ | {"PYTHONPATH": str(PYTHON)}).stdout
    assert ">>> px[offsets[3]:offsets[4]].tolist()\n[1.5, 2.5, 3.5]\n" in said
    assert "[{'pid': 41, 'px': 1.5}, {'pid': 42, 'px': 2.5}, {'pid': 43, 'px': 3.5}]" in said


def test_a_notebook_shows_banks_and_columns(program):
    with hf.open(data("cpp_golden_lz4.hipo")) as f:
        shown = f._repr_html_()
        assert shown.count("<details>") == 2 and "<td>px</td><td>float32</td>" in shown and "cpp_golden_lz4.hipo" in shown
        assert "<b>REC::Particle</b> 300/31" in f["REC::Particle"]._repr_html_()
    assert "closed" in f._repr_html_()


def test_names_are_no_markup(program, tmp_path: Path):
    path = tmp_path / "<script>.hipo"
    write(path, ["{A<b>/300/31}{x&y/I}"], [[event(structure(300, 31, 11, np.int32(5).tobytes()))]])
    with hf.open(path) as f:
        for shown in (f._repr_html_(), f["A<b>"]._repr_html_()):
            assert "A&lt;b&gt;" in shown and "x&amp;y" in shown and "<script>" not in shown
