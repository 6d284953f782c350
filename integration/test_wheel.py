"""The wheel: what is in it, and that it works where nothing else is installed."""
from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import ROOT, run

# Of every minor version that can be found, one; the oldest and the newest will do.
FOUND = {m.group(1): p for p in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True)
           if (m := re.match(r"(3\.\d+)\.", p.parts[-3])) and int(m.group(1)[2:]) >= 10}
FOUND |= {v: Path(p) for v in ("3.10", "3.11", "3.12", "3.13", "3.14") if v not in FOUND and (p := shutil.which(f"python{v}"))}
FOUND.setdefault(f"3.{sys.version_info.minor}", Path(sys.executable))
PYTHONS = {v: FOUND[v] for v in (min(FOUND, key=lambda v: int(v[2:])), max(FOUND, key=lambda v: int(v[2:])))}


@pytest.fixture(scope="module")
def wheel(hipofs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this machine, built as pip builds it, around a command that is built already."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
        "--wheel-dir", folder, ROOT / "python", env=os.environ | {"HIPOFS_BINARY": str(hipofs), "SOURCE_DATE_EPOCH": "1700000000"}, timeout=300)
    found, = folder.glob("*.whl")
    return found


def test_what_is_in_the_wheel(wheel: Path):
    version = (ROOT / "cmd" / "hipofs" / "VERSION").read_text().strip().replace("-dev", ".dev0")
    name, got, tag = wheel.name.split("-", 2)
    assert (name, got) == ("hipofs", version)
    assert tag.startswith("py3-none-manylinux_2_17_") and ".musllinux_1_1_" in tag
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        info = f"hipofs-{version}.dist-info"
        about = email.message_from_bytes(z.read(f"{info}/METADATA"))
        licences = z.read(f"{info}/licenses/THIRD-PARTY-LICENSES").decode()
        assert z.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        command = z.getinfo(f"hipofs-{version}.data/scripts/hipofs")
        assert {i.date_time[0] for i in z.infolist()} == {2023}, "its times are not those of the commit"
    assert command.external_attr >> 16 & 0o111 == 0o111
    assert not [n for n in names if "__pycache__" in n or n.endswith((".so", ".go"))]
    modules = {p.name for p in (ROOT / "python" / "hipofs_ak").iterdir() if p.is_file()}
    assert {n.removeprefix("hipofs_ak/") for n in names if n.startswith("hipofs_ak/")} == modules

    assert about["License-Expression"] == "MIT" and (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert sorted(about.get_all("License-File")) == ["LICENSE", "THIRD-PARTY-LICENSES"]
    assert about["Requires-Python"] == ">=3.10"
    needed = [r for r in about.get_all("Requires-Dist") if "extra ==" not in r]
    assert len(needed) == 1 and needed[0].startswith("numpy"), needed
    from hipofs_ak._need import EXTRAS
    assert set(EXTRAS.values()) | {"all"} == set(about.get_all("Provides-Extra"))
    linked = run("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/hipofs", cwd=ROOT)
    for module in filter(None, set(linked.stdout.splitlines())):
        assert module in licences


@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_where_nothing_else_is_installed(wheel: Path, version: str, tmp_path: Path, env: dict[str, str]):
    subprocess.run([PYTHONS[version], "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", wheel, timeout=300)
    installed = run(sys.executable, "-m", "pip", "--python", python, "list", "--format=freeze", "--disable-pip-version-check")
    assert {line.partition("==")[0] for line in installed.stdout.split()} == {"hipofs", "numpy"}

    hipofs = tmp_path / "venv" / "bin" / "hipofs"
    assert (ROOT / "cmd" / "hipofs" / "VERSION").read_text().strip() in run(hipofs, "version", env=env).stdout
    assert ">>> px[3:6].tolist()\n[1.5, 2.5, 3.5]\n" in run(hipofs, "demo", env=env).stdout
    said = run(python, "-W", "error", "-m", "hipofs_ak", env=env, cwd=tmp_path).stdout
    assert ">>> px[offsets[3]:offsets[4]].tolist()\n[1.5, 2.5, 3.5]\n" in said
    assert said.endswith("ImportError: awkward is not installed: pip install 'hipofs[awkward]'\n")
    assert run(python, "-c", "import hipofs_ak; print(hipofs_ak.__version__)").stdout.strip() in wheel.name
