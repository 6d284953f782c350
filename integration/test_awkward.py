"""form.json makes awkward arrays of the files, equal to what oxihipo reads; the computed columns equal NumPy's."""
from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import awkward as ak
import numpy as np
import oxihipo
import pytest

from harness import banks, data, load, mounted
from writer import event, structure, write

REAL = ["clas12_recon_proton_80MeV.hipo", "java_ntuple.hipo", "cpp_golden_lz4.hipo", "oxihipo_percolumn.hipo",
        "codecs/tag03_gzip_perchunk.hipo", "codecs/tag08_zstd_percolumn.hipo"]


def from_files(bank: Path) -> ak.Array:
    """A bank as an awkward array, the way the README says."""
    form = (bank / "form.json").read_text()
    files = {name: np.load(bank / name, mmap_mode="r") for name in os.listdir(bank) if name.endswith(".npy")}
    entries = len(files["offsets.npy"]) - 1
    return ak.from_buffers(form, entries, files, buffer_key="{form_key}")


@pytest.mark.parametrize("name", REAL)
def test_from_buffers_equals_oxihipo(name, mount):
    path = data(name)
    m = mount(path)
    chain = oxihipo.open(str(path))
    assert banks(m.point) == set(chain.keys())
    rows = 0
    for bank in chain.keys():
        got, want = from_files(m / bank), chain.arrays(bank)
        assert got.type == want.type, bank
        assert ak.array_equal(got, want, equal_nan=True, dtype_exact=True), bank
        rows += len(ak.flatten(got, axis=1))
    assert rows > 0


def test_form_json_names_the_files(mount):
    """The form's keys are the names of the files, and the computed columns are not in it."""
    m = mount(data("codecs/small.hipo"))
    form = json.loads((m / "SM::part/form.json").read_text())
    assert (form["class"], form["offsets"], form["form_key"]) == ("ListOffsetArray", "i64", "offsets.npy")
    record = form["content"]
    assert record["class"] == "RecordArray" and record["fields"] == ["pid", "p", "q", "s", "w"]
    assert record["contents"][0]["form_key"] == "pid.npy" and record["contents"][0]["primitive"] == "int32"
    assert (record["contents"][1]["class"], record["contents"][1]["size"]) == ("RegularArray", 3)
    assert record["contents"][1]["content"]["form_key"] == "p.npy"


@pytest.mark.parametrize("name", REAL)
def test_entry_is_the_entry_of_each_row(name, mount):
    path = data(name)
    m = mount(path)
    for bank, offsets, _ in oxihipo.open(str(path)).read_columns([(b, []) for b in banks(m.point)]):
        got = load(m / bank / "@entry.npy")
        assert got.dtype.str == "<i8"
        np.testing.assert_array_equal(got, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def join(pindex: np.ndarray, offsets: np.ndarray, particles: np.ndarray) -> list[int]:
    """The row of the particle bank that each row points to, event by event; -1 where it points nowhere."""
    out = []
    for e in range(len(offsets) - 1):
        first, n = int(particles[e]), int(particles[e + 1] - particles[e])
        for p in pindex[offsets[e]:offsets[e + 1]]:
            out.append(first + int(p) if 0 <= p < n else -1)
    return out


def test_pointers_equal_a_join_done_event_by_event(dst, hipofs, env):
    pointing = [b for b, (_, cols) in dst.banks.items() if "pindex" in cols and f"{b.rpartition('::')[0]}::Particle" in dst.banks]
    loose = 0
    with mounted(hipofs, env, dst.sources) as m:
        for bank in dst.banks:
            names = {n for n in os.listdir(m / bank) if n.startswith("@")}
            target = f"{bank.rpartition('::')[0]}::Particle"
            assert names == {"@entry.npy"} | ({f"@{target}.npy"} if bank in pointing else set()), bank
        for bank in pointing:
            offsets, cols = dst.banks[bank]
            target = f"{bank.rpartition('::')[0]}::Particle"
            got = load(m / bank / f"@{target}.npy")
            assert got.dtype.str == "<i8"
            want = join(cols["pindex"], offsets, dst.banks[target][0])
            np.testing.assert_array_equal(got, want)
            loose += want.count(-1)
    assert loose > 0 and len(pointing) >= 6 or not dst.sources[0].name.startswith("dst")


def test_pointers_of_every_kind_of_pindex(mount, tmp_path):
    """Written out by hand: negative and too large ones, other integer types, events without particles."""
    particle = lambda n: structure(300, 1, 11, bytes(n))
    track = lambda fmt, item, *p: structure(300, item, 11, struct.pack(f"<{len(p)}{fmt}", *p))
    write(tmp_path / "p.hipo", [
        "{P::Particle/300/1}{q/B}", "{P::S/300/2}{pindex/S}", "{P::L/300/3}{x/B,pindex/L}", "{P::B/300/4}{pindex/B}",
        "{P::F/300/5}{pindex/F}", "{P::N/300/6}{pindex/S#2}", "{Q::S/300/7}{pindex/S}", "{A::P::Particle/300/8}{q/B}",
        "{A::P::I/300/9}{pindex/I}", "{Plain/300/10}{pindex/S}",
    ], [
        [event(particle(2), track("h", 2, 1, 0, 2, -1)), event(track("h", 2, 0))],
        [event(track("h", 2, 2, 1), particle(3), track("b", 4, 0, -128)),
         event(particle(1), structure(300, 3, 11, bytes(2) + struct.pack("<2q", 0, 1 << 32)),
               structure(300, 8, 11, bytes(2)), structure(300, 9, 11, struct.pack("<2i", 1, -2)))],
    ])
    m = mount(tmp_path / "p.hipo")
    for bank, name, want in (
        ("P::S", "@P::Particle.npy", [1, 0, -1, -1, -1, 4, 3]),
        ("P::B", "@P::Particle.npy", [2, -1]),
        ("P::L", "@P::Particle.npy", [5, -1]),
        ("A::P::I", "@A::P::Particle.npy", [1, -1]),
    ):
        assert load(m / bank / name).tolist() == want, bank
        assert {n for n in os.listdir(m / bank) if n.startswith("@")} == {"@entry.npy", name}
    for bank in ("P::F", "P::N", "Q::S", "Plain", "P::Particle"):
        assert {n for n in os.listdir(m / bank) if n.startswith("@")} == {"@entry.npy"}, bank
    assert load(m / "P::S/@entry.npy").tolist() == [0, 0, 0, 0, 1, 2, 2]
