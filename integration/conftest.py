"""Builds hipofs once, and lends mounts that end with the test."""
from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import oxihipo
import pytest

from harness import ROOT, SHARED, Mount, User, data, environment, mounted, python, records, run


def _build(*flags: str, name: str) -> Path:
    out = ROOT / "build" / name
    run("go", "build", *flags, "-o", out, "./cmd/hipofs", cwd=ROOT, timeout=600)
    return out


@pytest.fixture(scope="session")
def hipofs() -> Path:
    """The command, built from this checkout."""
    return _build(name="hipofs")


@pytest.fixture(scope="session")
def hipofs_race() -> Path:
    """The command with the race detector."""
    return _build("-race", name="hipofs-race")


@pytest.fixture(scope="module")
def program(hipofs: Path, tmp_path_factory: pytest.TempPathFactory):
    """hipofs_ak finds the command, and caches and settings that begin empty, while a module's tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("HIPOFS_")]:
            patch.delenv(name)
        for name, value in (environment(tmp_path_factory.mktemp("home")) | {"HIPOFS": str(hipofs)}).items():
            patch.setenv(name, value)
        yield hipofs


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment whose caches and settings begin empty."""
    home = tmp_path / "home"
    home.mkdir()
    return environment(home)


@pytest.fixture
def mount(hipofs: Path, env: dict[str, str]):
    """mount(sources, *options) mounts until the test ends, or until .umount()."""
    with contextlib.ExitStack() as stack:
        yield lambda sources, *options, **kw: stack.enter_context(mounted(hipofs, env, sources, *options, **kw))


@pytest.fixture
def command(hipofs: Path, env: dict[str, str]):
    """command(*args) runs hipofs to its end, whatever its status."""
    return lambda *args, **kw: run(hipofs, *args, ok=False, **({"env": env} | kw))


@pytest.fixture
def user(hipofs):
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # distributions ship /dev/fuse open to all
            mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
            stack.callback(os.chmod, "/dev/fuse", mode)
            os.chmod("/dev/fuse", 0o666)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hipofs-")))
        u = User(folder, hipofs)
        stack.callback(Mount(u.binary, u.point, u.env).discard)
        yield u


class DST(NamedTuple):
    """A generated chain and what is in it, decoded by oxihipo."""
    sources: list[Path]
    records: int
    largest: int                                                   # inflated bytes of its largest record
    banks: dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]     # bank: offsets, column: content

    def content(self) -> dict[str, np.ndarray]:
        """The content of each column with rows, by its path below the mount."""
        return {f"{bank}/{c}.npy": a for bank, (_, cols) in self.banks.items() for c, a in cols.items() if len(a)}


@pytest.fixture(scope="session")
def dst(tmp_path_factory: pytest.TempPathFactory) -> DST:
    """A CLAS12-like chain of several records; where ../shared has no writer for it, files of every codec."""
    writer = SHARED / "bench" / "mkdst.py"
    if writer.exists():
        sources = [tmp_path_factory.mktemp("dst") / "dst.hipo"]
        python(str(writer), sources[0], "--events", "20000", timeout=600)
    else:
        codecs = data("codecs/tag00_none_perchunk.hipo").parent
        sources = sorted(codecs.glob("tag0[0-4]*.hipo"))  # of a split record only what is asked for is decoded
    chain = oxihipo.open([str(s) for s in sources])
    columns = {bank: (offsets, {name: values.reshape(-1, n) if n > 1 else values for name, values, n in cols})
               for bank, offsets, cols in chain.read_columns([(bank, []) for bank in chain.keys()])}
    found = [r for s in sources for r in records(s)]
    return DST(sources, len(found), max(r.data_length for r in found), columns)


def pytest_report_header() -> list[str]:
    return [f"files: {data('clas12_recon_proton_80MeV.hipo').parent}",
            f"kernel: {os.uname().release}, {subprocess.run(['go', 'version'], capture_output=True, text=True).stdout.strip()}"]
