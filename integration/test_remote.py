"""Files that servers have are mounted as local ones are, whatever the server does."""
from __future__ import annotations

import datetime
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from harness import ROOT, data, environment, load, mounted, records, run
from layout import splits

RECON = "clas12_recon_proton_80MeV.hipo"
CODECS = ["codecs/tag01_lz4_perchunk.hipo", "codecs/tag05_zstd_perbank.hipo", "codecs/tag08_zstd_percolumn.hipo",
          "codecs/tag13_none_perbank.hipo"]


#: of the generated file: columns in their order, group and item
BANKS = {"REC::Particle": (["pid", "px", "py", "pz", "vx", "vy", "vz", "vt", "charge", "beta", "chi2pid", "status"], 300, 31),
         "REC::Traj": (["pindex", "index", "detector", "layer", "x", "y", "z", "cx", "cy", "cz", "path"], 300, 40)}


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
def large(hipofs, dst, files) -> dict[str, Path]:
    """The first events of a CLAS12-like file, stored whole and by column, in records of a megabyte."""
    if "REC::Particle" not in dst.banks:
        pytest.skip("there is no writer of CLAS12-like files here")
    out = {}
    for name, codec in [("whole.hipo", "lz4"), ("columns.hipo", "lz4+percolumn")]:
        run(hipofs, "skim", "--entries", "0:6000", "--codec", codec, "--record-size", "1M", "-o", files / name, *dst.sources)
        out[name] = files / name
    return out


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


def test_a_column_costs_its_streams_and_nothing_else(web, large, mount, command, dst):
    address = web("plain", "columns.hipo")
    assert command("index", "-q", address).returncode == 0
    web.seen()
    m = mount(address)
    assert len(web.seen()) <= 2, "requests for a mount with an index"
    for bank, column in [("REC::Particle", "px"), ("REC::Traj", "path")]:
        spec, group, item = next((v for k, v in BANKS.items() if k == bank))
        streams = [(s.off, s.length) for r in splits(large["columns.hipo"]) for s in r.streams
                   if s.key == (group, item) and s.column == spec.index(column)]
        assert len(streams) > 10
        got = load(m / bank / f"{column}.npy")
        offsets, columns = dst.banks[bank]
        assert got.tobytes() == columns[column][:offsets[6000]].tobytes()
        assert sorted((r["first"], r["length"]) for r in web.seen()) == streams


def test_a_column_of_whole_records_costs_these_records(web, large, mount, command, dst):
    address = web("plain", "whole.hipo")
    assert command("index", "-q", address).returncode == 0
    m = mount(address)
    web.seen()
    got = load(m / "REC::Particle/px.npy")
    offsets, columns = dst.banks["REC::Particle"]
    assert got.tobytes() == columns["px"][:offsets[6000]].tobytes()
    stored = records(large["whole.hipo"])
    seen = web.seen()
    assert len(seen) <= len(stored)
    assert sum(r["length"] for r in seen) <= sum(r.length for r in stored)
    first = load(m / ".entries/0:10/REC::Traj/path.npy")
    assert len(first) == dst.banks["REC::Traj"][0][10]
    assert len(web.seen()) <= 1


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


def s3_environment(env: dict[str, str], endpoint: str, **more: str) -> dict[str, str]:
    env = {k: v for k, v in env.items() if not k.startswith("AWS_")}
    return env | {"AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"} | more


def test_signatures_are_right_and_credentials_are_found_and_kept_nowhere(web, local, hipofs, env):
    folder = Path(env["HOME"], ".aws")
    folder.mkdir()
    (folder / "credentials").write_text("[farm]\naws_access_key_id = id\naws_secret_access_key = key\n")
    by_profile = s3_environment(env, web.base, AWS_PROFILE="farm", AWS_REGION="eu-west-1")
    by_environment = s3_environment(env, web.base, AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="key", AWS_SESSION_TOKEN="hush")
    for e in (by_profile, by_environment):
        with mounted(hipofs, e, f"s3://bucket/{RECON}") as m:
            assert (m / "MC::Particle/px.npy").read_bytes() == local[RECON]["MC::Particle/px.npy"]
            assert (m / "MC::Particle/px.npy").stat().st_mode & 0o777 == 0o400
    for f in Path(by_environment["XDG_CACHE_HOME"]).rglob("*"):
        assert f.is_dir() or b"hush" not in f.read_bytes()
    wrong = s3_environment(env, web.base, AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="wrong")
    done = run(hipofs, "ls", f"s3://bucket/{RECON}", ok=False, env=wrong)
    assert (done.returncode, done.stderr) == (
        3, f"hipofs: s3://bucket/{RECON}: the server answers 403 Forbidden (SignatureDoesNotMatch)\n")


@pytest.fixture(scope="module")
def s3rver(files, tmp_path_factory):
    """The endpoint of a server of S3 that others wrote, with a bucket."""
    program = ROOT / "build/clients/s3/node_modules/.bin/s3rver"
    if not program.exists():
        pytest.skip("there is no s3rver: scripts/setup.sh clients")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = tmp_path_factory.mktemp("s3")
    with subprocess.Popen([program, "-d", folder, "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", "runs"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert any("listening" in line for line in iter(server.stdout.readline, "")), "s3rver has ended"
            endpoint = f"http://127.0.0.1:{port}"
            for key in ["dst/run 10+%.hipo", "dst/run 9+%.hipo", "dst/notes.txt", "dst/below/run.hipo"]:
                put(f"{endpoint}/runs/{urllib.parse.quote(key)}", (files / RECON).read_bytes())
            # It writes on, to a pipe that somebody must empty.
            threading.Thread(target=server.stdout.read, daemon=True).start()
            yield endpoint
        finally:
            server.kill()


def put(address: str, body: bytes) -> None:
    # It takes every signature of version 4 for right.
    where = "AWS4-HMAC-SHA256 Credential=S3RVER/20261130/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    ask = urllib.request.Request(address, body, {"Authorization": where, "x-amz-date": stamp, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"},
                                 method="PUT")
    urllib.request.urlopen(ask).close()


def test_a_folder_of_a_bucket_is_a_chain_in_natural_order(s3rver, local, hipofs, env):
    e = s3_environment(env, s3rver, AWS_ACCESS_KEY_ID="S3RVER", AWS_SECRET_ACCESS_KEY="S3RVER")
    for _ in range(2):
        with mounted(hipofs, e, "s3://runs/dst/") as m:
            assert [f["name"] for f in m.json("files.json")] == ["s3://runs/dst/run 9+%.hipo", "s3://runs/dst/run 10+%.hipo"]
            for f in Path(m / ".files").glob("run*"):
                assert (f / "MC::Particle/px.npy").read_bytes() == local[RECON]["MC::Particle/px.npy"]
            assert len(load(m / "MC::Particle/offsets.npy")) == 203
    for word, what in [("s3://runs/none/", "no *.hipo in this folder"), ("s3://runs/none.hipo", "the server answers 404 Not Found (NoSuchKey)"),
                       ("s3://nobucket/", "the server answers 404 Not Found (NoSuchBucket)")]:
        done = run(hipofs, "ls", word, ok=False, env=e)
        assert (done.returncode, done.stderr) == (3, f"hipofs: {word}: {what}\n")
