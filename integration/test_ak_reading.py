"""hipofs_ak reads what oxihipo reads, by the same names; and says what is wrong with what cannot be read."""
from __future__ import annotations

import awkward as ak
import hipofs_ak as hf
import numpy as np
import oxihipo
import pytest

from harness import data

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
