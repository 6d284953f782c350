"""The job scripts of packaging/slurm, with Slurm stood in for, and what is left of jobs that are killed."""
from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

import jobs
from harness import GOLDEN_LZ4, PATIENCE, ROOT, Mount, data, digest, golden, load, run

SCRIPTS = ROOT / "packaging" / "slurm"


@pytest.fixture
def farm(tmp_path: Path):
    """farm(script, arguments, options) submits a job whose hipofs only tells what it is called with: its status and output."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hipofs").write_text('#!/bin/bash\nprintf "%s|" "$@"; echo\n'
                                         'while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    (tmp_path / "bin/hipofs").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{ROOT / 'integration/standin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}

    def submit(script: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        for out in tmp_path.glob("slurm-*.out"):
            out.unlink()
        done = run("sbatch", "--wait", *options, SCRIPTS / script, *arguments, ok=False, env=env, cwd=tmp_path)
        return done.returncode, "".join(p.read_text() for p in sorted(tmp_path.glob("slurm-*.out")))

    return submit


@pytest.mark.parametrize("array,slices", [("0-3", 4), ("5-7", 3), ("0-8:4", 3), ("0", 1), ("1-20", 20)])
def test_the_tasks_of_an_array_share_out_every_file_once(farm, array, slices):
    files = [f"run 5042/{n}.hipo" for n in range(10)]
    status, said = farm("index.sh", *files, options=(f"--array={array}",))
    lines = [line.split("|")[:-1] for line in said.splitlines()]
    assert status == 0 and len(lines) == min(slices, len(files))
    assert all(line[:3] == ["index", "--threads", "2"] for line in lines)
    assert sorted(f for line in lines for f in line[3:]) == files


@pytest.mark.parametrize("array,files", [("0,2", ["a.hipo"]), ("0-3", [])])
def test_an_array_that_would_leave_files_out_is_refused(farm, array, files):
    status, said = farm("index.sh", *files, options=(f"--array={array}",))
    assert status == 2 and "index|" not in said and "usage: sbatch" in said


def test_a_job_has_the_status_of_its_analysis(farm):
    assert farm("analysis.sh", "--memory", "1G", "a b.hipo", "--", "sh", "-c", "echo works; exit 7") == \
        (7, "run|--threads|2|--memory|1G|a b.hipo|--|sh|-c|echo works; exit 7|\nworks\n")


def test_every_processor_of_a_node_has_a_worker_on_one_mount(farm):
    status, said = farm("node.sh", "a b.hipo", "--", "sh", "-c", 'echo "worker $WORKER of $WORKERS"; exit $((WORKER * 5))', options=("--cpus-per-task=3",))
    assert said.count("run|a b.hipo|--|") == 1
    assert sorted(re.findall("^worker .*", said, re.MULTILINE)) == ["worker 0 of 3", "worker 1 of 3", "worker 2 of 3"]
    assert status == 5
    assert farm("node.sh", "--", "true")[0] == farm("node.sh", "a.hipo")[0] == 2


@pytest.mark.timeout(600)
def test_killed_jobs_leave_no_mount_no_process_and_no_broken_cache(hipofs, user):
    folder = user.folder / "jobs"
    folder.mkdir()
    tally = jobs.kill(hipofs, folder, seed=1, count=10)
    print(tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert {how.split(",")[0] for how in tally.kills} == {"an array of indexing", "an analysis", "two workers"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount for a test")
def test_a_device_that_a_container_has_mounted_is_served(hipofs, env, tmp_path):
    """As Apptainer does it for --fusemount "container:hipofs mount -f SOURCE MOUNTPOINT"."""
    device = os.open("/dev/fuse", os.O_RDWR)
    point = tmp_path / "mnt"
    point.mkdir()
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"apptainer", os.fsencode(point), b"fuse", 1, options.encode()) == 0, os.strerror(ctypes.get_errno())
    try:
        command = [hipofs, "mount", "-f", data(GOLDEN_LZ4), f"/dev/fd/{device}"]
        with subprocess.Popen(command, pass_fds=[device], env=env) as p:
            os.close(device)
            device = -1
            row, = (r for r in golden()[GOLDEN_LZ4] if (r.bank, r.column) == ("REC::Particle", "px"))
            assert digest(load(point / "REC::Particle/px.npy")) == row.content
            run("umount", point)
            assert p.wait(PATIENCE) == 0
    finally:
        if device >= 0:
            os.close(device)
        Mount(hipofs, point, env).discard()


def test_what_is_no_device_is_not_served(command, tmp_path):
    done = command("mount", "-f", data(GOLDEN_LZ4), "/dev/fd/0")
    assert done.returncode == 7 and "not an open /dev/fuse" in done.stderr
    assert command("mount", data(GOLDEN_LZ4), "/dev/fd/x").returncode == 7
