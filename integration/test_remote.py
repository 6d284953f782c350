"""Files that servers have are mounted as local ones are, whatever the server does."""
from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from harness import ROOT, data, environment, mounted

RECON = "clas12_recon_proton_80MeV.hipo"
CODECS = ["codecs/tag01_lz4_perchunk.hipo", "codecs/tag05_zstd_perbank.hipo", "codecs/tag08_zstd_percolumn.hipo",
          "codecs/tag13_none_perbank.hipo"]


class Web:
    """A server of webserver.py."""

    def __init__(self, port: int):
        self.base = f"http://127.0.0.1:{port}"

    def __call__(self, fault: str, name: str) -> str:
        return f"{self.base}/{fault}/{name}"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.base + path) as answer:
            return answer.read()

    def seen(self) -> list[dict]:
        """What was asked for since the last look."""
        return json.loads(self.get("/.seen"))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the servers serve."""
    folder = tmp_path_factory.mktemp("served")
    for name in [RECON, *CODECS]:
        shutil.copy(data(name), folder / Path(name).name)
    return folder


@pytest.fixture(scope="module")
def web(files):
    with subprocess.Popen([sys.executable, ROOT / "integration" / "webserver.py", files], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield Web(int(server.stdout.readline()))
        server.stdin.close()


@pytest.fixture(scope="module")
def local(hipofs, files, tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """Every array of each file as a mount of the local file has it."""
    env = environment(tmp_path_factory.mktemp("home"))
    out = {}
    for f in sorted(files.iterdir()):
        with mounted(hipofs, env, f) as m:
            out[f.name] = arrays(m)
    return out


def arrays(m) -> dict[str, bytes]:
    """The bytes of every array with rows."""
    populated = Path(m / ".hipofs/populated")
    return {f"{bank.name}/{f.name}": f.read_bytes() for bank in populated.iterdir() for f in bank.iterdir() if f.suffix == ".npy"}


@pytest.mark.parametrize("fault", ["plain", "failing", "breaking", "resetting", "slow", "moved"])
def test_values_are_those_of_the_local_mount(fault, web, local, mount):
    name = "tag08_zstd_percolumn.hipo" if fault == "slow" else RECON
    m = mount(web(fault, name))
    assert arrays(m) == local[name]


@pytest.mark.parametrize("name", [Path(c).name for c in CODECS])
def test_every_layout_with_and_without_an_index(name, web, local, mount):
    for _ in range(2):
        m = mount(web("plain", name))
        assert arrays(m) == local[name]
        m.umount()
    assert "no index" not in m.said


def test_what_counting_will_cost_is_said_before_it_starts(web, mount):
    web.seen()
    m = mount(web("plain", RECON))
    assert m.said == "hipofs: no index of 1 file on a server: counting rows, when they are first asked for, fetches 0.329 MB\n"
    size = (data(RECON)).stat().st_size
    assert sum(r["length"] for r in web.seen()) < size - 200_000, "records were fetched before anybody asked"


@pytest.mark.parametrize("fault,what", [
    ("whole", "this server sends whole files alone, not ranges of them; download the file, then mount the copy"),
    ("packed", "the server compresses what it sends, so that no range of the file itself can be had; "
               "download the file, then mount the copy"),
    ("shifted", "the server sends bytes 1 to 65536 where 0 to 65535 were asked for"),
    ("round", "it is redirected more than ten times"),
    ("closed", "the server answers 403 Forbidden (AccessDenied)"),
    ("login", "the server answers 401 Unauthorized"),
])
def test_a_server_that_cannot_be_read_from_is_refused_in_a_sentence(fault, what, web, command, tmp_path):
    (point := tmp_path / "mnt").mkdir()
    done = command(web(fault, RECON), point)
    assert (done.returncode, done.stderr) == (3, f"hipofs: {web(fault, RECON)}: {what}\n")


def test_a_file_that_changes_is_stale_and_mounts_again(web, local, mount):
    name, column, want = RECON, "MC::Particle/px.npy", local[RECON]
    m = mount(web("plain", name))
    assert (m / column).stat().st_size == len(want[column])
    m.umount()
    m = mount(web("plain", name))  # by the index
    web.get("/.etag/two")
    try:
        with pytest.raises(OSError) as e:
            (m / column).read_bytes()
        assert e.value.errno == errno.ESTALE
        m.umount()
        m = mount(web("plain", name))
        assert "no index" in m.said
        assert (m / column).read_bytes() == want[column]
    finally:
        web.get("/.etag/one")


def test_secrets_are_neither_printed_nor_kept(web, local, mount, env, tmp_path):
    address = web("login", RECON).replace("://", "://user:s3cr3t@") + "?token=s3cr3t"
    m = mount(address, "--log-file", str(tmp_path / "log"), "--cache-dir", str(tmp_path / "columns"))
    os.getxattr(m / "MC::Header/run.npy", "user.hipofs.realpath")
    for f in ["files.json", "config.json", "stats.json", "errors.json"]:
        assert "s3cr3t" not in Path(m / ".hipofs" / f).read_text(), f
    assert m.json("files.json")[0]["name"] == web("login", RECON)
    m.umount()
    kept = [f for top in (tmp_path / "columns", Path(env["HOME"]), tmp_path / "log") for f in ([top] if top.is_file() else top.rglob("*"))
            if f.is_file()]
    assert len(kept) >= 4
    for f in kept:
        assert b"s3cr3t" not in f.read_bytes(), f


def test_a_server_that_fails_for_good_is_an_error_and_no_hang(web, mount):
    m = mount(web("broken", RECON))
    with pytest.raises(OSError):
        (m / "MC::Header/run.npy").read_bytes()
    fault, = m.json("errors.json")
    assert "the server answers 500 Internal Server Error" in fault["message"]
