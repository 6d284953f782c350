"""hipofs_ak reads what oxihipo reads, by the same names; and says what is wrong with what cannot be read."""
from __future__ import annotations

import json
import os

import awkward as ak
import hipofs_ak as hf
import numpy as np
import oxihipo
import pytest

from harness import CASES, data, run

NAME = "clas12_recon_proton_80MeV.hipo"


@pytest.fixture(scope="module")
def file(program):
    with hf.open(data(NAME)) as f:
        yield f


@pytest.fixture(scope="module")
def chain():
    return oxihipo.open(str(data(NAME)))


def test_what_there_is_is_what_oxihipo_says(file, chain):
    assert len(file) == file.num_entries == len(chain)
    assert (file.files, file.file_count, file.record_count) == (chain.files, chain.file_count, chain.record_count)
    assert file.keys() == list(file) == chain.keys()
    assert file.keys(recursive=True) == chain.keys(True)
    assert file.keys(filter_name=["REC::*", "MC::P*"]) == chain.keys(filter_name=["REC::*", "MC::P*"])
    assert file.typenames() == chain.typenames()
    assert file.bank_ids == chain.bank_ids
    assert file.record_spans() == chain.record_spans()
    assert "MC::Particle" in file and "MC::Particles" not in file
    assert file["MC::Particle"].keys() == chain["MC::Particle"].keys()
    assert file["MC::Particle"].typenames() == chain["MC::Particle"].typenames()


def test_every_bank_is_oxihipos(file, chain):
    everything = file.arrays()
    for bank in file.keys():
        got, want = file.arrays(bank), chain.arrays(bank)
        assert got.type == want.type, bank
        assert ak.array_equal(got, want, equal_nan=True, dtype_exact=True), bank
        assert ak.array_equal(ak.materialize(everything[bank]), want, equal_nan=True, dtype_exact=True), bank


def test_a_column_is_a_view_of_the_file(file, chain):
    values, offsets, inner_len = file.numpy("MC::Particle", "px")
    want = chain.numpy("MC::Particle", "px")
    np.testing.assert_array_equal(values, want.values)
    np.testing.assert_array_equal(offsets, want.offsets)
    assert (inner_len, values.dtype, offsets.dtype) == (1, np.float32, np.int64)
    assert not values.flags.owndata and not values.flags.writeable
    array = file.array("MC::Particle", "px")
    assert np.shares_memory(ak.to_numpy(array.layout.content.data), array.layout.content.data)
    assert ak.array_equal(array, file["MC::Particle/px"].array())
    assert ak.array_equal(array, file["MC::Particle", "px"])
    assert ak.array_equal(array, file["MC::Particle"]["px"])


def test_what_is_not_there_is_named_with_its_neighbours(file):
    with pytest.raises(KeyError, match="no bank 'MC::Particl' in .*80MeV.hipo; the nearest are MC::Particle"):
        file.array("MC::Particl", "px")
    assert file.arrays("MC::Particle", "px").fields == ["px"]
    with pytest.raises(KeyError, match="no column 'pxx' in MC::Particle; the nearest are px"):
        file.arrays("MC::Particle", ["px", "pxx"])
    with pytest.raises(FileNotFoundError):
        hf.open("no such.hipo")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        hf.open(str(data(NAME).parent / "none*.hipo"))


def test_damage_is_an_error_with_its_place(program):
    with hf.open(data("codecs/corrupt_record.hipo")) as f:
        with pytest.raises(hf.CorruptFileError, match="record 1 at byte 1172: LZ4 data is damaged") as e:
            f.arrays("SM::part")
        assert (e.value.file, e.value.record, e.value.byte) == (str(data("codecs/corrupt_record.hipo")), 1, 1172)


def test_show_prints_what_oxihipo_prints(file, chain, capsys):
    file.show()
    got = capsys.readouterr().out
    chain.show()
    assert got == capsys.readouterr().out
    file.show("MC::Particle", rows=True)
    assert capsys.readouterr().out.startswith("MC::Particle  (8 columns, 99 rows in 99 entries)\n    pid ")


def test_what_has_rows(file, chain):
    counts = {bank: np.diff(chain.read_columns([(bank, [])])[0][1]) for bank in chain}
    assert file.keys(nonempty=True) == [b for b, n in counts.items() if n.any()]
    for bank, of in file.occupancy().items():
        n = counts[bank]
        assert of == (n.sum(), np.count_nonzero(n), n.max()), bank


def test_selections_are_those_of_oxihipo(file, chain):
    for how in ({"filter_name": "MC::P*"}, {"filter_name": ["MC::Particle/p*", "RUN::config"]}, {"banks": ["MC::Particle", "MC::Event"]},
                {"banks": []}, {"banks": "MC::Particle", "columns": ["py", "pid"]}, {"filter_name": "no::*"}):
        got, want = file.arrays(**how), chain.arrays(**how)
        assert got.type == want.type and ak.array_equal(got, want, equal_nan=True), how
    (bank, offsets, columns), = file.read_columns([("MC::Particle", ["pz"])], 3, 50)
    want = chain.read_columns([("MC::Particle", ["pz"])], 3, 50)[0]
    assert bank == want[0] and columns[0][0] == want[2][0][0] and columns[0][2] == 1
    np.testing.assert_array_equal(offsets, want[1])
    np.testing.assert_array_equal(columns[0][1], want[2][0][1])
    for wrong in ({"banks": "MC::Particle", "filter_name": "*"}, {"banks": ["MC::Particle"], "columns": ["px"]}):
        with pytest.raises(TypeError):
            file.arrays(**wrong)
    for wrong in ({"library": "cupy"}, {"how": 3}, {"entries": [1], "entry_start": 0}, {"entries": [-1]}, {"entries": [[1]]}, {"entries": [True]}, {"entries": [0.5]},
                  {"virtual": True, "library": "np"}, {"virtual": False, "access_log": []}, {"access_log": ()}):
        with pytest.raises(ValueError):
            file.arrays("MC::Particle", **wrong)


def test_nothing_is_read_before_it_is_used(file):
    log = []
    everything = file.arrays(access_log=log)
    assert log == [] and len(everything) == len(file) and set(everything.fields) == set(file.keys())
    particles = everything["MC::Particle"]
    assert log == []
    assert ak.sum(particles.px) == pytest.approx(7.92)
    assert [a.branch for a in log] == ["MC::Particle", "MC::Particle/px"]
    ak.sum(particles.px)
    assert len(log) == 2, "it is read once"
    one = file.arrays("MC::Particle", ["px", "py"], virtual=True, access_log=log, entry_start=5, entry_stop=9)
    assert ak.array_equal(ak.materialize(one), file.arrays("MC::Particle", ["px", "py"])[5:9])


def test_how_says_what_container_the_parts_come_in(file):
    px, py = file.arrays("MC::Particle", ["px", "py"], how=tuple)
    assert ak.array_equal(px, file.array("MC::Particle", "px")) and ak.array_equal(py, file.array("MC::Particle", "py"))
    assert list(file.arrays(["MC::Particle", "MC::Event"], how=dict)) == ["MC::Particle", "MC::Event"]
    assert isinstance(file.arrays("MC::Particle", how=list, library="np"), list)
    assert len(file.arrays("MC::Particle", how=tuple, library="pd")) == len(file.arrays("MC::Particle", how=tuple, library="arrow")) == 8
    assert file.arrays("MC::Particle", how="zip").type == file.arrays("MC::Particle").type


def test_aliases_are_columns_made_of_others(file):
    p = file.arrays("MC::Particle")
    aliases = {"pt": "np.hypot(px, py)", "p": "np.sqrt(pt**2 + pz**2)", "heavy": "pid > 2000", "py": "py * 1000", "n": "ak.num(pid)"}
    got = file.arrays("MC::Particle", ["p", "pid", "heavy", "py", "n"], aliases=aliases, cut="heavy & (p > 0.05)")
    assert got.fields == ["p", "pid", "heavy", "py", "n"]
    want = np.sqrt(np.hypot(p.px, p.py * 1000) ** 2 + p.pz**2)  # an alias that is called as a column stands for it
    assert ak.array_equal(got.p, want[(p.pid > 2000) & (want > 0.05)])
    assert ak.array_equal(got.py, p.py[(p.pid > 2000) & (want > 0.05)] * 1000) and ak.all(got.n == 1)
    for aliases in ({"a": "b", "b": "a"}, {"a": "nothing"}, {"a": "ak.flatten(px)"}, {"a": "'text'"}):
        with pytest.raises(ValueError):
            file.arrays("MC::Particle", ["a"], aliases=aliases)


HOSTILE = [
    "__import__('os').system('touch {0}')", "().__class__.__bases__[0].__subclasses__()", "open('{0}', 'w')", "eval('1')", "px.__class__",
    "ak.from_parquet('{0}')", "ak.to_parquet(px, '{0}')", "np.fromfile('{0}')", "np.save('{0}', 1)", "np.lib.format.open_memmap('{0}', 'w+')",
    "ak.np.save('{0}', 1)", "np.frompyfunc(abs, 1, 1)", "[x for x in px]", "lambda: 1", "px if px else py", "(px := py)", "f'{{px}}'", "'text'",
    "px and py", "not px", "0 < px < 1", "px @ py", "px in py", "px is py", "9**9**9**9", "1 << 99999999", "10**50 * px", "{{'a': 1}}", "*px",
    "ak.sum(**px)", "ak.sum(px).real", "px.tolist()", "numpy.ctypeslib", "ak.ak.sum(px)", "(" * 300 + "px" + ")" * 300, "-" * 5000 + "px", "px" + "+px" * 3000, "",
    "px; py", "px\npy", "\0", "px[__import__('os')]", "print(px)", "ak.sum", "px()", "abs", "await px", "yield px", "ak.Array([1])", "ak.behavior",
]


@pytest.mark.parametrize("cut", HOSTILE)
def test_a_cut_is_no_python(file, tmp_path, cut):
    target = tmp_path / "written"
    with pytest.raises(ValueError):
        file.arrays("MC::Particle", cut=cut.format(target) if "{" in cut else cut)
    assert not target.exists()


def test_cuts_that_are_wrong_say_so(file):
    for cut, says in (("pxx > 0", "no column 'pxx'; the nearest are px"), ("px + 1", "must evaluate to booleans, got float"),
                      ("px > 'a'", "could not evaluate"), ("ak.firsts(px) > 0", "missing values"), ("3 > 2", "no value for each"),
                      ("ak.flatten(px) > 0", "no value for each"), ("(px > 0) and (py > 0)", "there are &, |, ~")):
        with pytest.raises(ValueError, match=says):
            file.arrays("MC::Particle", cut=cut)
    with pytest.raises(ValueError, match="exactly one bank"):
        file.arrays(["MC::Particle", "MC::Event"], cut="px > 0")


def test_steps_are_exact(file, chain):
    whole = chain.arrays("MC::Particle")
    for step in (1, 7, 100, 101, 5000):
        chunks = list(file.iterate("MC::Particle", step_size=step))
        assert [len(c) for c in chunks] == [step] * (101 // step) + ([101 % step] if 101 % step else [])
        assert ak.array_equal(ak.concatenate(chunks), whole, equal_nan=True)
    chunks = list(file.iterate("MC::Particle", ["px"], step_size="200 B", entry_start=10, entry_stop=-10, cut="px > 0", report=True))
    assert len(chunks) > 2 and chunks[0][1][:2] == (10, chunks[1][1].entry_start) and chunks[-1][1].entry_stop == 91
    assert {r.file_path for _, r in chunks} == set(file.files)
    assert ak.array_equal(ak.concatenate([c for c, _ in chunks]), chain.arrays("MC::Particle", ["px"], cut="px > 0")[10:91])
    for wrong in (0, -1, "0 MB", "a lot", "5 apples"):
        with pytest.raises(ValueError):
            file.iterate("MC::Particle", step_size=wrong)
    with pytest.raises(TypeError):
        file.iterate("MC::Particle", step_size=True)


def test_steps_end_with_their_file(program):
    paths = [data("codecs/small.hipo"), data("codecs/meta.hipo")]
    found = [(len(chunk), r.entry_start, r.entry_stop, r.file_path) for chunk, r in hf.iterate(paths, "SM::part", step_size=20, report=True)]
    assert found == [(20, 0, 20, str(paths[0])), (4, 20, 24, str(paths[0])), (20, 24, 44, str(paths[1])), (4, 44, 48, str(paths[1]))]
    with hf.open(paths) as f:
        odd = f.filtered(event_tag=[1])
        parts = [(r.entry_start, r.entry_stop, r.file_path) for _, r in odd.iterate("SM::part", step_size=1000, report=True)]
        tags = oxihipo.open([str(p) for p in paths]).event_tags()
        here = int((tags[:24] == 1).sum())
        assert parts == [(0, here, str(paths[0])), (here, int((tags == 1).sum()), str(paths[1]))]


def test_a_step_goes_when_it_is_dropped(file):
    """What is mapped is one step, and no descriptor stays open."""
    import gc
    descriptors = len(os.listdir("/proc/self/fd"))

    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum(".npy" in line for line in maps)

    gc.collect()
    before = mappings()
    seen = []
    for chunk in file.iterate("MC::Particle", step_size=10):
        seen.append(mappings() - before)
    del chunk
    assert max(seen) <= 2 * 9
    assert mappings() == before and len(os.listdir("/proc/self/fd")) == descriptors


def rows_of(chunk) -> int:
    return int(ak.sum(ak.num(chunk.px)))


def positions(chunk) -> list[int]:
    return ak.to_list(ak.flatten(chunk.pid))


def test_map_reduce_is_in_order_in_whatever_process(file, chain):
    want = chain.arrays("MC::Particle")
    assert file.map_reduce(rows_of, "MC::Particle", step_size=30, workers=1) == rows_of(want)
    assert file.map_reduce(positions, "MC::Particle", step_size=13, workers=2) == positions(want)
    assert file.map_reduce(rows_of, "MC::Particle", entry_start=5, entry_stop=5, initial=7) == 7
    with pytest.raises(ValueError, match="no entries"):
        file.map_reduce(rows_of, "MC::Particle", entry_start=5, entry_stop=5)


def test_views_that_are_none_are_refused(file):
    assert file.filtered().keys() == file.keys() and len(file.filtered(record_tag=[])) == 0
    for path in ("", "/etc", "../..", ".where/..", ".entries/0:5/../..", ".entries/5:0", ".where/px=1", ".entries"):
        with pytest.raises(ValueError, match="no view"):
            file.view(path)
    for wrong in ({"event_tag": -1}, {"event_tag": 1 << 32}, {"event_tag_any": 1 << 32}, {"event_tag_any": -1},
                  {"event_tag": list(range(999))}, {"require": ["MC::None"]}, {"event_tag": "named"}):
        with pytest.raises(hf.HipoError):
            file.filtered(**wrong)
    for wrong in ({"event_tag": True}, {"event_tag_any": [True]}, {"record_tag": [0.5]}):
        with pytest.raises(TypeError):
            file.filtered(**wrong)


def test_one_event(file, chain):
    for entry in (0, 2, -1):
        event = file.event(entry)
        want = chain.arrays("MC::Particle")[entry].to_list()
        got = event.banks.get("MC::Particle", [])
        assert event.entry == range(101)[entry] and [r["pid"] for r in got] == [r["pid"] for r in want]
        np.testing.assert_allclose([r["px"] for r in got], [r["px"] for r in want], rtol=1e-6)
    assert file.event(101) is None and file.event(-102) is None
    some = file.filtered(require=["MC::Particle"])
    assert some.event(0).entry == int(np.flatnonzero(ak.num(chain.arrays("MC::Particle")))[0])


def test_plain_files_of_a_cache_folder_are_mapped(program, tmp_path):
    with hf.open(data("codecs/tag10_lz4_percolumn.hipo"), cache_dir=tmp_path) as f:
        bank = f.keys()[0]
        part = f.arrays(bank, entry_stop=2)
        whole = f.arrays(bank)
        with open("/proc/self/maps") as maps:
            assert sum(str(tmp_path) in line for line in maps) == len(f.columns(bank)) + 1
    assert ak.array_equal(whole[:2], part, equal_nan=True)
    assert ak.array_equal(whole, oxihipo.open(str(data("codecs/tag10_lz4_percolumn.hipo"))).arrays(bank), equal_nan=True)


def test_what_is_damaged_can_be_left_out(program):
    with pytest.warns(hf.HipoWarning, match="LZ4 data is damaged.*8 events"):
        f = hf.open(data("codecs/corrupt_record.hipo"), salvage=True)
    with f:
        assert len(f) == len(f.arrays("SM::part")) == 16
    sound, damaged, gone = data("codecs/small.hipo"), data("codecs/corrupt_record.hipo"), data("codecs/small.hipo").parent / "gone.hipo"
    with pytest.warns(hf.HipoWarning), hf.open([sound, damaged, gone, sound], salvage=True) as f:
        assert f.files == [str(sound), str(damaged), str(sound)] and len(f) == f.num_entries_total == 64
        assert [(r.entry_start, r.entry_stop, r.file_path) for _, r in f.iterate("SM::part", report=True)] == [
            (0, 24, str(sound)), (24, 40, str(damaged)), (40, 64, str(sound))]
        odd = f.filtered(event_tag=[1])
        assert sum(len(chunk) for chunk in odd.iterate("SM::part", step_size=3)) == len(odd) > 0


def test_what_is_not_hipo_is_called_by_its_name(program, tmp_path):
    (tmp_path / "a.hipo").write_bytes(b"")
    for source, error, says in ((tmp_path / "a.hipo", hf.CorruptFileError, "a.hipo"), (tmp_path / "b", FileNotFoundError, "b"),
                                ([], FileNotFoundError, "empty list"), (CASES / "truncated_last_record.hipo", hf.CorruptFileError, "truncated"),
                                ([data("codecs/small.hipo"), CASES / "chain_a.hipo"], ValueError, "differs between files")):
        with pytest.raises(error, match=says):
            hf.open(source)


def test_an_export_is_read_as_a_mount_is(hipofs, program, tmp_path):
    run(hipofs, "export", "-q", data("codecs/small.hipo"), tmp_path / "out")
    with hf.open(tmp_path / "out") as f:
        chain = oxihipo.open(str(data("codecs/small.hipo")))
        for bank in chain:
            assert ak.array_equal(f.arrays(bank), chain.arrays(bank), equal_nan=True, dtype_exact=True)
        assert [len(c) for c in f.iterate("SM::part", step_size=20)] == [20, 4]


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with whatever in its header."""
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def test_a_folder_that_only_looks_like_a_mount_is_no_danger(program, tmp_path):
    """Each file that is not one of hipofs is refused before anything of it is mapped."""
    bank = tmp_path / "B"
    bank.mkdir()
    (tmp_path / ".hipofs").mkdir()
    column = {"name": "x", "type": "I", "length": 1, "dtype": "<i4", "file": "x.npy"}
    (tmp_path / ".hipofs/dictionary.json").write_text(json.dumps([{"name": "B", "folder": "B", "group": 1, "item": 1, "columns": [column]}]))
    (tmp_path / ".hipofs/files.json").write_text("[]")
    plain = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }"
    (tmp_path / ".hipofs/entries.npy").write_bytes(npy(plain.replace("3", "2"), bytes(16)))
    (bank / "offsets.npy").write_bytes(npy(plain, np.array([0, 1, 2]).tobytes()))
    (bank / "x.npy").write_bytes(npy(plain.replace("3", "2"), bytes(16)))
    with hf.open(tmp_path) as f:
        assert f.arrays("B").x.to_list() == [[0], [0]]
        for content in (b"", b"x" * 200, npy(plain), npy(plain, bytes(23)), npy(plain, bytes(25)), npy(plain, bytes(24), b"\x02\x00"),
                        npy(plain.replace("<i8", "|O"), bytes(24)), npy(plain.replace("'<i8'", "[('a', '<i8')]"), bytes(24)),
                        npy(plain.replace("False", "True"), bytes(24)), npy(plain.replace("(3,)", "(-1,)")), npy(plain.replace("(3,)", "(1, 1, 3)"), bytes(24)),
                        npy(plain.replace("(3,)", "(1000000000000000000,)")), npy(plain.replace("(3,)", "(2305843009213693952, 8)")), npy("__import__('os')"),
                        npy(plain.replace("3", "1"), bytes(8))):
            (bank / "x.npy").write_bytes(content)
            with pytest.raises(hf.HipoError):
                f.numpy("B", "x")
        for offsets in ([0], [0, 1], [0, 5, 9]):
            (bank / "offsets.npy").write_bytes(npy(plain.replace("3", str(len(offsets))), np.array(offsets).tobytes()))
            with pytest.raises(hf.HipoError):
                f.numpy("B", "x")
    (tmp_path / ".hipofs/dictionary.json").write_text("{")
    with pytest.raises(hf.HipoError, match="no JSON"):
        hf.open(tmp_path).keys()
