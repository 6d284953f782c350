"""Readers that others wrote, in many languages, see the arrays of a mount as NumPy does, to the bit.

Each client of clients/ is called with the mount, a folder and banks. For each file of these banks it says name, type, shape
and the sum of the values in order, in double precision, and writes the values, as its language holds them, into the folder.
`scripts/setup.sh clients` gets what they need; a client whose language is not here is skipped.
"""
from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from harness import CASES, ROOT, columns, data, digest, environment, golden, mounted, run

HERE = ROOT / "integration" / "clients"
BUILD = ROOT / "build" / "clients"
FILES = ("clas12_recon_proton_80MeV.hipo", "codecs/tag10_lz4_percolumn.hipo")
BANKS = ["MC::Particle", "MC::True", "RUN::config", "CODEC::cov", "CODEC::hits", "CODEC::rare", "TEST::types", "REC::Particle"]
RAN: dict[str, str] = {}    # language: client
SKIPPED: dict[str, str] = {}


class Client(NamedTuple):
    """How a client is built and called, and which commands, files and Python modules it is skipped without."""
    name: str
    language: str
    argv: list[str | Path]
    build: list[str | Path] = []
    needs: list[str | Path] = []
    whole: bool = True    # it reads every file of a bank, not the columns alone

    def missing(self) -> str:
        for what in self.needs:
            if isinstance(what, Path):
                there = what.exists()
            elif what.startswith("import "):
                there = find_spec(what.removeprefix("import ")) is not None
            else:
                there = shutil.which(what) is not None
            if not there:
                return f"{what} is not here; scripts/setup.sh clients gets it, or says why not"
        return ""


def python(library: str) -> Client:
    return Client(f"python-{library}", "Python", [sys.executable, HERE / f"python/with_{library}.py"],
                  needs=[f"import {library}"], whole=library == "numpy")


CXX = ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
JARS = BUILD / "java"
CLIENTS = [
    *map(python, ("numpy", "awkward", "pandas", "polars", "duckdb")),
    Client("root", "ROOT", [sys.executable, HERE / "root/with_rdataframe.py"], needs=["import ROOT"], whole=False),
    Client("cpp", "C++", [BUILD / "mapped"], [*CXX, "-o", BUILD / "mapped", HERE / "cpp/mapped.cc"], ["c++"]),
    Client("cpp-xtensor", "C++", [BUILD / "with_xtensor"],
           [*CXX, "-O0", "-o", BUILD / "with_xtensor", HERE / "cpp/with_xtensor.cc"], ["c++", Path("/usr/include/xtensor/xnpy.hpp")]),
    Client("rust", "Rust", [BUILD / "rust/debug/columns"],
           ["cargo", "build", "--quiet", "--locked", "--offline", "--target-dir", BUILD / "rust",
            "--manifest-path", HERE / "rust/Cargo.toml"], ["cargo", BUILD / "rust.stamp"]),
    Client("java", "Java", ["java", "-cp", JARS / "*", HERE / "java/Columns.java"], needs=["java", BUILD / "java.stamp"]),
    Client("javascript", "JavaScript", ["node", BUILD / "javascript/columns.js"],
           ["cp", HERE / "javascript/columns.js", BUILD / "javascript"], ["node", BUILD / "javascript.stamp"]),
    Client("go", "Go", [BUILD / "go"], ["go", "build", "-C", HERE / "go", "-o", BUILD / "go", "."], ["go", BUILD / "go.stamp"]),
    Client("r", "R", ["Rscript", "--vanilla", HERE / "r/columns.R"], needs=["Rscript"]),
    Client("julia", "Julia", ["julia", "--startup-file=no", HERE / "julia/columns.jl"], needs=["julia"]),
    Client("shell", "shell", [HERE / "shell/columns.sh"], needs=["od", "dd", "split", "cmp", "sha256sum"]),
]


@pytest.fixture(scope="module")
def mnt(hipofs, tmp_path_factory):
    """A mount of three files, of every type, with columns of several values a row and a bank without rows."""
    sources = [*map(data, FILES), CASES / "types_signed_extremes.hipo"]
    with mounted(hipofs, environment(tmp_path_factory.mktemp("home")), sources) as m:
        yield m


@pytest.fixture(scope="module")
def expected(mnt) -> dict[str, np.ndarray]:
    """Every array of the banks, by its name below the mount."""
    return {f"{bank}/{path.name}": np.load(path) for bank in BANKS for path in (mnt / bank).glob("*.npy")}


def test_numpy_sees_what_an_independent_decoder_saw(expected):
    checked = 0
    for row in (r for name in FILES for r in golden()[name] if r.bank in BANKS and r.rows):
        array = expected[f"{row.bank}/{row.column}.npy"]
        assert (array.dtype.str, array.shape, digest(array)) == (row.dtype, row.shape, row.content), row
        checked += 1
    assert checked > 50 and {a.dtype.str for a in expected.values()} == {"|i1", "<i2", "<i4", "<i8", "<f4", "<f8"}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.name)
def test_a_client_sees_what_numpy_sees(client, mnt, expected, tmp_path):
    if why := client.missing():
        SKIPPED[client.language] = why
        pytest.skip(why)
    BUILD.mkdir(parents=True, exist_ok=True)
    if client.build:
        run(*client.build, timeout=300)
    said = run(*client.argv, mnt, tmp_path, *BANKS, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}).stdout
    seen = set()
    for line in said.splitlines():
        name, dtype, shape, total = line.rsplit(" ", 3)
        array = expected[name]
        assert (np.dtype(dtype), shape) == (array.dtype, "x".join(map(str, array.shape))), line
        assert (tmp_path / name.removesuffix(".npy")).read_bytes() == array.tobytes(), f"{name}: other values"
        if total != "-":
            np.testing.assert_equal(float(total), np.cumsum(array.ravel(), dtype="f8")[-1] if array.size else 0.0, line)
        seen.add(name)
    want = expected if client.whole else {f"{bank}/{c}.npy" for bank in BANKS for c in columns(mnt / bank)}
    assert seen >= set(want), f"not read: {set(want) - seen}"
    RAN[client.language] = client.name


def test_od_shows_the_floats_to_the_last_bit(mnt, expected):
    path = mnt / "MC::Particle/px.npy"
    array = expected["MC::Particle/px.npy"]
    header = path.stat().st_size - array.nbytes
    said = run("od", "-A", "n", "-v", "-t", "f4", "-j", str(header), path).stdout.split()
    assert np.array(said, "f4").tobytes() == array.tobytes()


def test_seven_languages_were_run():
    if os.environ.get("HIPOFS_CLIENTS") != "required":
        pytest.skip("only where HIPOFS_CLIENTS=required")
    missing = ", ".join(f"{language}: {why}" for language, why in SKIPPED.items() if language not in RAN)
    assert len(RAN) >= 7, f"only {', '.join(RAN)} were run; {missing}"
