#!/usr/bin/env python3
"""Batch jobs that are killed at random instants, over and over, and what the next start finds.

    jobs.py [--count N] [--seed N] [--slurm]

Needs build/hipofs (make build). The job scripts of packaging/slurm run in turn, as an ordinary user: an array that indexes
files, an analysis, and two workers on one mount, which keep columns in a cache folder. Slurm is stood in for (standin/),
unless --slurm says that it is there, as scripts/slurm.sh makes it; then it is scancel that ends the job.
At a random instant either all processes of the job are killed, as scancel does in the end, or one of them, as the kernel
does that runs out of memory. Then nobody cleans up: no mount and no process of the job may be left, and the next start finds
indexes and columns as kills.py wants them.
"""
from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import oxihipo  # noqa: F401, before the user changes, who may not read it

from harness import NOBODY, PATIENCE, ROOT, run, wait_ended
from kills import READER, Tally, Target

#: Reads all columns of the mount of a job.
ANALYSIS = "import os, sys\nsys.argv.insert(1, os.environ['HIPOFS_MNT'])\n" + READER


class Jobs(Target):
    """The job scripts at work on a chain in folders that outlive them."""

    def __init__(self, binary: Path, folder: Path, seed: int, slurm: bool = False):
        super().__init__(binary, folder, seed)
        self.folder, self.slurm = folder, slurm
        scripts = folder / "bin"
        shutil.copytree(ROOT / "packaging" / "slurm", scripts)
        if not slurm:
            shutil.copytree(ROOT / "integration" / "standin", scripts, dirs_exist_ok=True)
        shutil.copy(binary, scripts / "hipofs")
        self.binary = self.mount.binary = scripts / "hipofs"
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        reader = [python, "-S", "-c", ANALYSIS, "1", *self.expected]
        self.scripts = {
            "an array of indexing": ["--array=0-3", scripts / "index.sh", *self.sources],
            "an analysis": [scripts / "analysis.sh", *self.sources, "--", *reader],
            "two workers": ["--cpus-per-task=2", scripts / "node.sh", *self.sources, "--", *reader],
        }
        self.env |= {"PATH": f"{scripts}:{os.environ['PATH']}", "TMPDIR": str(folder), "HIPOFS_MEMORY": "1M",
                     "HIPOFS_INDEX_DIR": str(self.index)}
        self.marks = 0

    def works(self) -> list[str]:
        return list(self.scripts)

    def options_of(self, work: str) -> list[str]:
        return super().options_of("keeping columns" if work == "two workers" else "mounted")

    def strike(self, work: str, phase: str | None) -> bool:
        self.marks += 1
        mark = f"JOB_MARK={os.getpid()}.{self.marks}."
        env = self.env | dict([mark.split("=")])
        if work == "two workers":
            env |= {"HIPOFS_" + name[2:].replace("-", "_").upper(): value for name, value in (o.split("=") for o in self.cache_options)}
        began = time.monotonic()
        p = subprocess.Popen(["sbatch", "--wait", f"--job-name={mark}", *self.scripts[work]], env=env, cwd=self.folder,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.slurm:  # it begins when Slurm says so, and sbatch looks but now and then whether it has ended
            while not self.processes(p.pid, mark):
                assert p.poll() is None, "the job has not begun"
            began = time.monotonic()
        end = began + (PATIENCE if phase is None else self.rng.random() * self.longest[phase])
        while time.monotonic() < end and p.poll() is None and (not self.slurm or self.processes(p.pid, mark)):
            time.sleep(0.002)
        killed = phase is not None and p.poll() is None and self.slay(p.pid, mark, all_of_them=phase.endswith("cancelled"))
        for how in ("cancelled", "one process"):
            self.took(f"{work}, {how}", began)
        p.wait(PATIENCE)
        assert phase or p.returncode == 0, f"{work} ends with {p.returncode}"
        self.tally.wrong += [f"{work}: process {pid} is left" for pid in processes(mark) if not wait_ended(pid)]
        table = Path("/proc/self/mountinfo").read_text()
        if str(self.folder) in table or " hipofs-run " in table:
            self.tally.wrong.append(f"{work}: a mount is left")
        for out in self.folder.glob("slurm-*.out"):
            out.unlink()
        return killed

    def processes(self, sbatch: int, mark: str) -> list[int]:
        """The processes of a job, without those of Slurm that only wait for it."""
        return [pid for pid in processes(mark) if pid != sbatch]

    def slay(self, sbatch: int, mark: str, all_of_them: bool) -> bool:
        """Kill the processes of a job, or one; sbatch is none of them. Whether there were any."""
        killed = False
        if self.slurm and all_of_them:
            killed = bool(self.processes(sbatch, mark))
            run("scancel", f"--name={mark}", env=self.env)
            return killed
        while pids := self.processes(sbatch, mark):
            for pid in pids if all_of_them else [self.rng.choice(pids)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed = True
            if killed and not all_of_them:
                break
            for pid in pids:
                wait_ended(pid)
        return killed

    def look(self, work: str) -> None:
        super().look(work)
        if self.cache.exists():
            done = run(self.binary, "cache", "verify", "--cache-dir", self.cache, env=self.env, ok=False)
            if done.returncode:
                self.tally.wrong.append(f"after a kill of {work}: {done.stdout} {done.stderr}")


def processes(mark: str) -> list[int]:
    """Every process that has the mark in its environment."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path("/proc", entry, "environ").read_bytes():
                found.append(int(entry))
    return found


def become_ordinary() -> None:
    """The user that root becomes; nobody else changes."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.umask(0o077)


def kill(binary: Path, folder: Path, seed: int, count: int, slurm: bool = False) -> Tally:
    """Kill jobs so many times in an empty folder, as an ordinary user, for whom root has opened /dev/fuse."""
    jobs = Jobs(binary, folder, seed, slurm)
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), become_ordinary) as user:
        return user.submit(jobs.kill, count).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--slurm", action="store_true")
    a = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # distributions ship /dev/fuse open to all
            stack.callback(os.chmod, "/dev/fuse", stat.S_IMODE(os.stat("/dev/fuse").st_mode))
            os.chmod("/dev/fuse", 0o666)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hipofs-"))
        tally = kill(ROOT / "build" / "hipofs", Path(folder), a.seed, a.count, a.slurm)
    print(f"seed {a.seed}", tally, *tally.wrong, sep="\n")
    sys.path.insert(0, str(ROOT / "scripts"))
    from record import record
    target, by = ("slurm", "jobs of Slurm") if a.slurm else ("jobs", "jobs")
    record(target, f"{by} killed at random instants, what is left of them, then every byte compared", str(tally), len(tally.wrong))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
