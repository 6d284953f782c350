"""What leaves a File is what oxihipo writes and reads: Parquet, Dask on a cluster, HIPO files, ROOT."""
from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import awkward as ak
import hipofs_ak as hf
import numpy as np
import oxihipo
import pyarrow.parquet as pq
import pytest

from harness import data, run
from hipofs_ak import _out

RECON = "clas12_recon_proton_80MeV.hipo"


@pytest.fixture(scope="module")
def file(program, dst):
    """The generated chain, of which a record has more entries than a step, and the last step less."""
    with hf.open([str(s) for s in dst.sources]) as f:
        yield f


@pytest.fixture(scope="module")
def chain(dst):
    return oxihipo.open([str(s) for s in dst.sources])


def equal(got, want) -> bool:
    """Whether two tables are the same, where nan is nan."""
    return got.schema.equals(want.schema) and ak.array_equal(ak.from_arrow(got), ak.from_arrow(want), equal_nan=True)


def same(ours: Path, theirs: Path) -> None:
    assert equal(pq.read_table(ours), pq.read_table(theirs))


@pytest.mark.parametrize("how", [
    {"banks": "REC::Particle"}, {"banks": "REC::Particle", "columns": ["pid", "px"], "cut": "pid == 11"},
    {"banks": ["REC::Event", "REC::Particle"], "compression": "snappy"}, {"filter_name": "REC::*/p*", "entry_start": 1500},
    {"banks": "REC::Particle", "columns": ["px"], "entry_stop": 2500, "compression": None},
])
def test_parquet_is_what_oxihipo_writes(file, chain, how, tmp_path: Path):
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    assert file.to_parquet(ours, **how) == chain.to_parquet(theirs, **how) == 1
    same(ours, theirs)
    assert pq.read_metadata(ours).row_group(0).column(0).compression == str(how.get("compression", "zstd") or "uncompressed").upper()


def test_parquet_in_steps(file, chain, tmp_path: Path):
    chain.to_parquet(tmp_path / "whole.parquet", "REC::Particle", ["px", "pid"], cut="pid == 11")
    groups = file.to_parquet(tmp_path / "steps.parquet", "REC::Particle", ["px", "pid"], cut="pid == 11", step_size=3000)
    assert groups == pq.read_metadata(tmp_path / "steps.parquet").num_row_groups == -(-len(file) // 3000)
    same(tmp_path / "steps.parquet", tmp_path / "whole.parquet")
    assert file.to_parquet(tmp_path / "bytes.parquet", "REC::Particle", step_size="1 MB") > 1
    none = tmp_path / "none.parquet"
    file.to_parquet(none, "REC::Particle", ["px"], entry_stop=0, step_size=10)
    assert pq.read_table(none).num_rows == 0 and pq.read_table(none).schema.names == ["px"]


def test_array_columns_in_arrow_and_parquet(program, tmp_path: Path):
    path = data("codecs/tag00_none_perchunk.hipo")
    with hf.open(path) as f:
        assert any("[" in t for t in f.typenames().values())
        for bank in f.keys():
            assert equal(f.to_arrow(bank), oxihipo.open(str(path)).arrays(bank, library="arrow")), bank
            f.to_parquet(tmp_path / "ours.parquet", bank)
            oxihipo.open(str(path)).to_parquet(tmp_path / "theirs.parquet", bank)
            same(tmp_path / "ours.parquet", tmp_path / "theirs.parquet")


def test_parquet_that_fails_leaves_what_was_there(file, tmp_path: Path):
    out = tmp_path / "out.parquet"
    out.write_bytes(b"before")
    with pytest.raises(KeyError):
        file.to_parquet(out, "REC::Nope")
    with pytest.raises(ValueError):
        file.to_parquet(out, "REC::Particle", cut="px ==")
    with pytest.raises(hf.CorruptFileError), hf.open(data("codecs/corrupt_record.hipo")) as damaged:
        damaged.to_parquet(out, damaged.keys()[0], step_size=1)
    with pytest.raises(OSError):
        file.to_parquet(tmp_path / "no" / "such" / "folder.parquet", "REC::Event")
    assert os.listdir(tmp_path) == ["out.parquet"] and out.read_bytes() == b"before"


# ---------------------------------------------------------------- Dask

def test_dask_reads_the_columns_that_are_used_and_no_others(file, chain):
    import dask_awkward as dak

    p = file.to_dask("REC::Particle", step_size=1234)
    assert p.divisions == (*range(0, len(file), 1234), len(file))
    assert set(*dak.report_necessary_columns(p.px + p.py).values()) == {"px", "py"}
    want = chain.arrays("REC::Particle")
    assert ak.array_equal(p.compute(scheduler="synchronous"), want, equal_nan=True)
    assert ak.array_equal(p.px[p.pid == 11].compute(scheduler="threads"), want.px[want.pid == 11])
    assert ak.array_equal(p.partitions[1].px.compute(scheduler="synchronous"), want.px[1234:2468])
    assert dak.count(p.px).compute(scheduler="synchronous") == ak.count(want.px)  # needs no px
    many = file.to_dask(["REC::Particle", "REC::Calorimeter"], step_size=5000)
    used = many["REC::Calorimeter"].energy
    assert set(*dak.report_necessary_columns(used).values()) == {"REC::Calorimeter.energy"}
    assert ak.array_equal(used.compute(scheduler="synchronous"), chain.array("REC::Calorimeter", "energy"))
    cut = file.to_dask("REC::Particle", ["px"], cut="ak.any(pid == 11, axis=1)", step_size=999)
    assert not cut.known_divisions
    assert ak.array_equal(cut.compute(scheduler="synchronous"), chain.arrays("REC::Particle", ["px"], cut="ak.any(pid == 11, axis=1)"))
    some = file.filtered(require=["REC::Track"]).to_dask("REC::Track", ["chi2"], step_size=400)
    assert ak.array_equal(some.compute(scheduler="synchronous").chi2, chain.array("REC::Track", "chi2")[ak.num(chain.array("REC::Track", "chi2")) > 0])
    with pytest.raises(ValueError):
        file.to_dask("REC::Particle", entry_start=len(file))
    with pytest.raises(KeyError):
        file.to_dask("REC::Nope")


# Says what the workers of a cluster read, how many mounts there were for it, and what was left afterwards.
CLUSTER = """
import os, sys
import dask_awkward as dak, distributed, hipofs_ak as hf

def mounts():
    return sum(line.split()[1].startswith(os.environ["TMPDIR"]) for line in open("/proc/self/mounts"))

if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster), hf.open(sys.argv[1:]) as f:
            p = f.to_dask("REC::Particle", step_size=1000)
            print(int(dak.sum(p.pid).compute()))
            print(mounts())
    print(mounts())
"""


def test_a_cluster_whose_workers_open_for_themselves(file, chain, dst, tmp_path: Path):
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    own = {"PYTHONPATH": str(Path(hf.__file__).parent.parent), "TMPDIR": str(tmp_path)}
    done = run(sys.executable, script, *dst.sources, env=os.environ | own, cwd=tmp_path)
    pid, during, after = done.stdout.split()
    assert int(pid) == ak.sum(chain.array("REC::Particle", "pid"))
    assert 2 <= int(during) <= 3 and after == "0", "one for the program, one for each worker that read; none after them"


# ---------------------------------------------------------------- HIPO files

def test_skim_writes_what_the_file_shows(file, chain, tmp_path: Path):
    for n, (view, compression) in enumerate([
        (file, None), (file.view(".entries/100:300"), "lz4percolumn"), (file.view(".entries/100:300"), "zstd+percolumn"),
        (file.view(".entries/100:").view(".entries/5:200"), "none"), (file.filtered(require=["REC::Track", "REC::Cherenkov"]), "lz4"),
        (file.view(".entries/100:900").filtered(require=["REC::Cherenkov"]), "lz4hc+perbank"), (file.filtered(event_tag=[]), "lz4"),
    ]):
        out = tmp_path / f"{n}.hipo"
        summary = view.skim(out, compression)
        written = oxihipo.open(str(out))
        assert summary == (len(view), written.record_count, out.stat().st_size)
        assert len(written) == len(view)
        if len(view):
            banks = ["RUN::config", "REC::Particle", "REC::Calorimeter", "REC::Cherenkov"]
            assert ak.array_equal(written.arrays(banks), view.arrays(banks), equal_nan=True)
    out = tmp_path / "banks.hipo"
    hf.skim(file.sources, out, banks="REC::P*")
    assert set(oxihipo.open(str(out)).keys()) >= {"REC::Particle"}
    assert ak.sum(ak.num(oxihipo.open(str(out)).array("REC::Particle", "px"))) == ak.sum(ak.num(chain.array("REC::Particle", "px")))
    with pytest.raises(FileExistsError):
        file.skim(out)
    assert file.view(".entries/0:10").skim(out, force=True).events == 10


def test_skim_filters_by_tags(program, tmp_path: Path):
    path = data("codecs/cpp_tags.hipo")
    with hf.open(path) as f:
        tags, record_tags = f.event_tags(), np.repeat([r["record_tag"] for r in f._records()], [r["events"] for r in f._records()])
        some = int(tags[0])
        for n, (view, kept) in enumerate([
            (f.filtered(event_tag=[some]), tags == some), (f.filtered(event_tag_any=3), tags & 3 != 0),
            (f.filtered(event_tag_any=3).filtered(event_tag=[1, some]), (tags & 3 != 0) & np.isin(tags, [1, some])),
            (f.filtered(record_tag=[int(record_tags[-1])]), record_tags == record_tags[-1]),
        ]):
            assert view.skim(tmp_path / f"{n}.hipo").events == np.count_nonzero(kept) == len(view)
            np.testing.assert_array_equal(oxihipo.open(str(tmp_path / f"{n}.hipo")).event_tags(), tags[kept])


def test_skim_of_a_mount(mount, program, tmp_path: Path):
    m = mount(data(RECON), "--entries", "10:60")
    with hf.open(m.point) as f:
        assert f.skim(tmp_path / "out.hipo").events == 50
        want = oxihipo.open(str(data(RECON))).arrays("MC::Particle", entry_start=10, entry_stop=60)
        assert ak.array_equal(oxihipo.open(str(tmp_path / "out.hipo")).arrays("MC::Particle"), want)


def test_skim_refuses_what_it_cannot_do(file, tmp_path: Path):
    out = tmp_path / "out.hipo"
    with pytest.raises(ValueError, match="range"):
        file.filtered(require=["REC::Track"]).view(".entries/0:10").skim(out)
    with pytest.raises(ValueError, match=r"oxihipo\.skim"):
        file.skim(out, tags=np.zeros(len(file), "u4"))
    with pytest.raises(ValueError, match="codec"):
        file.skim(out, "zip")
    with pytest.raises(hf.HipoError):
        file.skim(tmp_path / "no" / "such" / "folder.hipo")
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------- ROOT

def test_columns_by_names_that_cpp_allows():
    assert list(_out.rdf_columns(ak.Array([{"px": 1, "2": 2}]), "REC::Particle")) == ["REC_Particle_px", "REC_Particle_2"]
    assert list(_out.rdf_columns(ak.Array([{"3": {"x y": 1}}]), None)) == ["_3_x_y"]
    with pytest.raises(ValueError, match="A_b_c"):
        _out.rdf_columns(ak.Array([{"A::b": {"c": 1}, "A": {"b:c": 2}}]), None)
    with pytest.raises(ValueError, match="nothing"):
        _out.rdf_columns(ak.Array([{}]), None)


def test_root_reads_the_arrays_or_is_said_to_be_missing(file, chain):
    if importlib.util.find_spec("ROOT") is None:
        for wanted in (lambda: file.rdataframe("REC::Particle"), lambda: file.iterate_rdataframe("REC::Particle")):
            with pytest.raises(ImportError, match=r"^ROOT is not installed: pip install 'hipofs\[root\]'$"):
                wanted()
        return
    with warnings.catch_warnings(action="ignore"):
        import ROOT  # noqa: F401  (says of its wheel that it is of alpha quality)
    px = chain.array("REC::Particle", "px")
    df = file.rdataframe("REC::Particle", ["px"])
    assert df.Count().GetValue() == len(px)
    assert df.Define("n", "REC_Particle_px.size()").Sum("n").GetValue() == ak.sum(ak.num(px))
    steps = [(d.Count().GetValue(), r.entry_start) for d, r in file.iterate_rdataframe("REC::Particle", ["px"], step_size=9000, report=True)]
    assert steps == [(9000, 0), (9000, 9000), (len(px) - 18000, 18000)]
