"""hipofs run: a command that alone sees the mount, and what is left when either side is killed."""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

from harness import GOLDEN_LZ4, NOBODY, PATIENCE, User, data, digest, golden, run, wait_ended

REFERENCE = [r for r in golden()[GOLDEN_LZ4] if r.bank == "REC::Particle"]
assert len(REFERENCE) == 6

READ = 'while cat "$HIPOFS_MNT"/*/*.npy >/dev/null; do :; done'  # until the mount is gone

# Tells each signal that it is sent, in words; ends with the line that it is told.
LISTEN = """
import os, select, signal, sys
told, tell = os.pipe()
os.set_blocking(tell, False)
for s in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "TSTP", "CONT", "WINCH"):
    signal.signal(getattr(signal, "SIG" + s), lambda n, frame: None)
signal.set_wakeup_fd(tell)
print("ready", os.getpid(), flush=True)
while True:
    for fd in select.select([0, told], [], [])[0]:
        if fd == told:
            for n in os.read(told, 100):
                print(signal.Signals(n).name, flush=True)
        elif not (line := os.read(0, 100)):
            sys.exit(9)
        elif line.strip():
            sys.exit(int(line))
"""


@pytest.fixture(params=["root", "user"])
def who(request, hipofs):
    """Who runs hipofs: root, who needs no user namespace, and an ordinary user."""
    if request.param == "user":
        yield request.getfixturevalue("user")
        return
    if os.geteuid() != 0:
        pytest.skip("only root can be root")
    with tempfile.TemporaryDirectory(prefix="hipofs-") as folder:
        yield User(Path(folder), hipofs, ordinary=False)


def start(who: User, *command, **kw) -> subprocess.Popen[str]:
    """hipofs run with pipes, in a session without a terminal."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kw
    return subprocess.Popen([*who.prefix, who.binary, "run", who.source, "--", *map(str, command)], text=True, bufsize=0,
                            env=who.env, cwd=who.folder, start_new_session=True, **options)


def line(stream) -> str:
    """The next line, waited for no longer than anything may take."""
    got = ""
    while not got.endswith("\n"):
        assert select.select([stream], [], [], PATIENCE)[0], f"nothing follows {got!r}"
        c = os.read(stream if isinstance(stream, int) else stream.fileno(), 1).decode()
        assert c, f"ended after {got!r}"
        got += c
    return got.rstrip("\r\n")


def processes(folder: Path) -> list[int]:
    """Every process with the folder in its command line or environment."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if any(os.fsencode(folder) in Path("/proc", entry, name).read_bytes() for name in ("cmdline", "environ")):
                found.append(int(entry))
    return found


def assert_nothing_is_left(who: User) -> None:
    """No process, in whatever state, and nothing in the host's table of mounts."""
    for pid in processes(who.folder):
        if not wait_ended(pid):
            state = re.search("^State:.*", Path(f"/proc/{pid}/status").read_text(), re.M)
            pytest.fail(f"process {pid} is left: {state and state[0]}")
    assert not processes(who.folder)
    assert " tmpfs hipofs-run " not in Path("/proc/self/mountinfo").read_text()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(c) for task in os.listdir(f"/proc/{pid}/task")
                for c in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return []


def descriptors(pid: int) -> dict[int, str]:
    found = {}
    for n in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # hipofs opens and closes some all the time
            found[int(n)] = os.readlink(f"/proc/{pid}/fd/{n}")
    return found


# ---------------------------------------------------------------- what the command finds

def test_values_are_those_of_the_reference(who):
    for r in REFERENCE:
        done = who.run(who.binary, "run", "run.hipo", "--", "sh", "-c", 'exec cat "$HIPOFS_MNT/$1"', "sh",
                       f"{r.bank}/{r.column}.npy", text=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert len(done.stdout) > 64
        content = np.frombuffer(done.stdout, np.uint8)[-r.rows * np.dtype(r.dtype).itemsize:] if r.rows else np.empty(0)
        assert digest(content) == r.content
    assert_nothing_is_left(who)


def test_numpy_reads_and_maps_inside(hipofs, env):
    script = """
import hashlib, json, os, numpy as np
from pathlib import Path
out = {}
for f in Path(os.environ["HIPOFS_MNT"]).glob("*/[!@o]*.npy"):
    plain, mapped = np.load(f), np.load(f, mmap_mode="r")
    assert plain.tobytes() == mapped.tobytes()
    out[f"{f.parent.name}/{f.stem}"] = [plain.dtype.str, list(plain.shape), hashlib.sha256(plain.tobytes()).hexdigest()]
print(json.dumps(out))
"""
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is closed")
    found = json.loads(run(hipofs, "run", data(GOLDEN_LZ4), "--", sys.executable, "-c", script, env=env).stdout)
    for r in REFERENCE:
        assert found[f"{r.bank}/{r.column}"] == [r.dtype, list(r.shape), r.content]


def test_the_command_is_its_user(who):
    same = ('id -u; id -g; umask; pwd; cat /proc/self/uid_map >/dev/null; grep -E "^(CapInh|CapPrm|CapEff|CapAmb|SigIgn|SigBlk)" '
            '/proc/self/status; ulimit -n; echo "$PPID" >/dev/null; env | grep -v -e HIPOFS_MNT -e "^_=" | sort')
    outside = who.run("sh", "-c", same)
    inside = who.run(who.binary, "run", "run.hipo", "--", "sh", "-c", same)
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout == outside.stdout
    own = who.run(who.binary, "run", "run.hipo", "--", "sh", "-c",
                  'stat -c "%a %u %g" "$HIPOFS_MNT" "$HIPOFS_MNT/REC::Particle/px.npy"; touch new; stat -c "%u %g" new').stdout
    uid, gid = (NOBODY, NOBODY) if who.prefix else (os.geteuid(), os.getegid())
    assert own.splitlines() == [f"500 {uid} {gid}", f"400 {uid} {gid}", f"{uid} {gid}"]
    assert os.stat(who.folder / "new").st_uid == uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give itself groups")
def test_supplementary_groups_still_open_doors(user):
    user.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--groups=4711"]
    (user.folder / "shared").write_text("for the group\n")
    os.chown(user.folder / "shared", 0, 4711)
    os.chmod(user.folder / "shared", 0o040)
    os.chown(user.source, 0, 4711)
    os.chmod(user.source, 0o040)
    done = user.run(user.binary, "run", user.source, "--", "sh", "-c", 'cat shared; wc -c <"$HIPOFS_MNT/REC::Particle/px.npy"')
    assert done.returncode == 0 and done.stdout.startswith("for the group\n"), done.stderr
    assert int(done.stdout.split()[-1]) > 64


def test_only_hipofs_has_the_device(who):
    r, w = os.pipe()
    with start(who, "bash", "-c", "cat <&%d & echo $! $$; cat; wait" % r, pass_fds=[r]) as p:
        child, command = map(int, line(p.stdout).split())
        os.write(w, b"it runs\n")  # and no longer opens the libraries that it needs
        assert line(p.stdout) == "it runs"
        assert "/dev/fuse" in descriptors(p.pid).values()
        for pid in (command, child):
            links = descriptors(pid)
            assert "/dev/fuse" not in links.values()
            assert set(links) <= {0, 1, 2, r}, links
        assert r in descriptors(command), "what the shell has opened for the command stays open, under its number"
        os.close(r)
        os.close(w)
        p.stdin.close()
        assert p.wait(PATIENCE) == 0
    assert_nothing_is_left(who)


def test_nothing_of_it_is_seen_outside(who):
    """Also where mounts are shared with other namespaces, as systemd has it."""
    script = f"{' '.join(who.prefix)} {who.binary} run {who.source} -- cat /proc/self/mountinfo /proc/$$/mountinfo"
    argv = ["sh", "-c", script] if os.geteuid() else ["unshare", "-m", "--propagation", "shared", "sh", "-c", script]
    out = run(*argv, env=who.env).stdout
    assert out.count(" tmpfs hipofs-run ") == 1 and out.count(" /sys/fs/fuse/connections/") == 1, out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount for a test")
def test_what_is_mounted_outside_meanwhile_is_seen_inside(user, who):
    """An automounter mounts outside when somebody inside looks."""
    later, go, said = (user.folder / name for name in ("later", "go", "said"))
    later.mkdir()
    os.mkfifo(go)
    os.mkfifo(said)
    script = f"""{' '.join(who.prefix)} {user.binary} run {user.source} -- sh -c 'echo ready; read go; cat {later}/there' <{go} >{said} &
exec 3>{go} 4<{said}; read -r ready <&4; mount -t tmpfs -o mode=755 none {later}; echo it is >{later}/there; echo >&3; cat <&4; wait $!"""
    assert run("unshare", "-m", "--propagation", "shared", "sh", "-c", script, env=user.env, cwd=user.folder).stdout == "it is\n"


# ---------------------------------------------------------------- how it ends

@pytest.mark.parametrize("script,status", [
    ("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)])
def test_the_status_is_the_commands(who, script, status):
    done = who.run(who.binary, "run", who.source, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_what_the_command_leaves_running_sees_a_dead_mount(who):
    left = 'exec 5<&0; (read go <&5; LC_ALL=C ls "$HIPOFS_MNT" 2>&1; echo seen) & exit 3'
    with start(who, "bash", "-c", left) as p:
        assert p.wait(PATIENCE) == 3
        p.stdin.write("go\n")
        assert "Transport endpoint is not connected" in line(p.stdout)
        assert line(p.stdout) == "seen"
    assert_nothing_is_left(who)


def test_signals_reach_the_command(who):
    python = shutil.which("python3", path="/usr/bin:/bin") if who.prefix else sys.executable
    if not python:
        pytest.skip("no Python that every user may run")
    with start(who, python, "-c", LISTEN) as p:
        word, pid = line(p.stdout).split()
        assert word == "ready"
        for s in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "TSTP", "CONT"):
            os.kill(p.pid, getattr(signal, "SIG" + s))
            assert line(p.stdout) == "SIG" + s
        p.stdin.write("5\n")
        assert p.wait(PATIENCE) == 5
        assert p.stdout.read() == ""
    assert_nothing_is_left(who)


def test_a_stopped_command_does_not_stop_hipofs_where_nobody_would_wake_it(who):
    with start(who, "sh", "-c", "echo $$; cat") as p:
        command = int(line(p.stdout))
        os.kill(command, signal.SIGSTOP)
        os.kill(p.pid, signal.SIGCONT)
        p.stdin.write("it goes on\n")
        assert line(p.stdout) == "it goes on"
        p.stdin.close()
        assert p.wait(PATIENCE) == 0


# ---------------------------------------------------------------- on a terminal

class Terminal:
    """A shell with job control on a terminal of its own."""

    def __init__(self, argv: list, **kw):
        self.fd, inner = pty.openpty()
        attributes = termios.tcgetattr(inner)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(inner, termios.TCSANOW, attributes)

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen([str(a) for a in argv], stdin=inner, stdout=inner, stderr=inner, preexec_fn=own, **kw)
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self) -> str:
        return line(self.fd)

    def until(self, word: str) -> str:
        got = []
        while word not in (latest := self.line()):
            got.append(latest)
        return latest

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        os.close(self.fd)
        return status


@pytest.fixture
def root_or_open():
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is closed")


def test_ctrl_c_reaches_the_command_once(hipofs, env, root_or_open):
    t = Terminal([hipofs, "run", data(GOLDEN_LZ4), "--", sys.executable, "-c", LISTEN], env=env)
    t.until("ready")
    for key, name in (("\x03", "SIGINT"), ("\x1c", "SIGQUIT")):
        t.type(key)
        assert t.line() == name
        os.kill(t.process.pid, signal.SIGUSR1)  # whatever hipofs passes on comes before this
        assert t.line() == "SIGUSR1"
    t.type("6\n")
    assert t.end() == 6


def test_ctrl_z_stops_both_and_fg_wakes_both(hipofs, env, root_or_open):
    command = """
import os, sys
print("ready", flush=True)
print("read", sys.stdin.readline(), os.listdir(os.environ["HIPOFS_MNT"]), flush=True)
sys.exit(4)
"""  # one process: a shell that waits for its vfork could not stop
    script = """set -m
"$1" run "$2" -- "$3" -c "$4"
echo stopped $?
fg >/dev/null
echo ended $?"""
    t = Terminal(["bash", "--norc", "-c", script, "bash", hipofs, data(GOLDEN_LZ4), sys.executable, command], env=env)
    t.until("ready")
    t.type("\x1a")
    assert t.until("stopped ") in ("stopped 147", "stopped 148")
    t.type("on it goes\n")
    t.until("read on it goes")
    t.until("REC::Particle")
    assert t.until("ended ") == "ended 4"
    assert t.end() == 0


# ---------------------------------------------------------------- whoever is killed

@pytest.mark.parametrize("victim", ["hipofs", "command"])
def test_twenty_kills_leave_nothing(who, victim):
    """At instants spread over starting and mounting, and in every other case over the first reads and later ones. No
    result depends on which instant it is."""
    instants, killed = random.Random(5042), 0
    for n in range(20):
        with start(who, "sh", "-c", f"echo reads; {READ} & {READ}; wait", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
            if n % 2:
                assert line(p.stdout) == "reads"
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(instants.uniform(0, 0.06))
            if victim == "hipofs":
                targets, status = [p.pid], -signal.SIGKILL
            else:
                targets, status = children(p.pid), 128 + signal.SIGKILL
            for pid in targets:
                os.kill(pid, signal.SIGKILL)
            if targets:
                killed += 1
                assert p.wait(PATIENCE) == status
            else:  # the command is not there yet
                p.kill()
        assert_nothing_is_left(who)
    assert killed >= 10


def test_the_command_dies_with_hipofs_and_its_children_see_it(who):
    script = '(read go; LC_ALL=C cat "$HIPOFS_MNT"/*/px.npy 2>&1 >/dev/null; echo seen) <&5 & echo $$ $!; exec cat'
    with start(who, "bash", "-c", "exec 5<&0; " + script, stderr=subprocess.STDOUT) as p:
        command, child = map(int, line(p.stdout).split())
        p.kill()
        assert wait_ended(command), "it outlives hipofs"
        p.stdin.write("go\n")
        assert "Transport endpoint is not connected" in line(p.stdout)
        assert line(p.stdout) == "seen"
        assert wait_ended(child)
    assert_nothing_is_left(who)


# ---------------------------------------------------------------- narrow places

def owned(uid: int) -> Iterator[str]:
    """The processes of a user, other tests' included."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == uid:
                yield entry


def test_one_processor_and_few_processes(who):
    who.env["GOMAXPROCS"] = "1"
    uid = NOBODY if who.prefix else os.geteuid()
    threads = sum(len(os.listdir(f"/proc/{p}/task")) for p in owned(uid))
    done = run("prlimit", f"--nproc={threads + 40}", *who.prefix, who.binary, "run", who.source, "--", "sh", "-c", 'cat "$HIPOFS_MNT"/*/*.npy | wc -c',
               ok=False, env=who.env, cwd=who.folder)
    assert done.returncode == 0 and int(done.stdout) > 1000, done.stderr


def test_closed_standard_files_do_no_harm(who):
    done = who.run("sh", "-c", f"{who.binary} run {who.source} -- sh -c 'ls \"$HIPOFS_MNT\" >names' <&- >&- 2>&-")
    assert done.returncode == 0
    assert "REC::Particle" in (who.folder / "names").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can forbid namespaces for a test")
def test_forbidden_namespaces_are_told_with_the_remedy(hipofs, env):
    """A root without capabilities, in a namespace where further ones are forbidden."""
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    done = run("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", hipofs, "run", data(GOLDEN_LZ4), "--",
               "echo", "it runs", ok=False, env=env)
    assert (done.returncode, done.stdout) == (6, "")
    told = done.stderr
    assert told.count("\n") == 1, told
    assert "user.max_user_namespaces is 0" in told and "sysctl -w user.max_user_namespaces=" in told
    done = run("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", hipofs, "doctor", "--json", ok=False, env=env)
    found = json.loads(done.stdout)
    assert (done.returncode, found["mount"], found["run"]) == (6, False, False)
    check, = (c for c in found["checks"] if c["name"] == "hipofs run")
    assert check["state"] == "fail" and "sysctl -w user.max_user_namespaces=" in check["remedy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can close /dev/fuse")
def test_a_closed_device_is_told_with_the_remedy(user):
    os.chmod("/dev/fuse", 0o600)
    done = user.run(user.binary, "run", user.source, "--", "echo", "it runs")
    assert (done.returncode, done.stdout) == (6, "")
    told = done.stderr
    assert told.count("\n") == 1, told
    assert "/dev/fuse: permission denied" in told and "chmod 666 /dev/fuse" in told
    assert_nothing_is_left(user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can close /dev/fuse")
def test_the_doctor_says_what_an_ordinary_user_can_do(user):
    def doctor(*prefix) -> tuple[int, dict]:
        done = user.run(*prefix, user.binary, "doctor", "--json")
        assert not done.stderr
        return done.returncode, json.loads(done.stdout)

    def states(found: dict) -> dict[str, str]:
        return {c["name"]: c["state"] for c in found["checks"]}
    status, found = doctor()
    assert (status, found["mount"], found["run"]) == (0, True, True)
    assert states(found) | {"kernel": "ok"} == {
        "kernel": "ok", "/dev/fuse": "ok", "fusermount3": "ok", "allow_other": "ok", "hipofs run": "ok", "passthrough": "warn",
        "read-ahead": "warn", "index folder": "ok", "memory": "ok", "open files": "ok", "processors": "ok"}
    status, found = doctor("env", f"PATH={user.folder}")
    assert (status, found["mount"], found["run"], states(found)["fusermount3"]) == (0, False, True, "warn")
    status, found = doctor("setpriv", "--no-new-privs")
    assert (status, found["mount"], found["run"], states(found)["fusermount3"]) == (0, False, True, "warn")
    status, found = doctor("prlimit", "--nofile=512:512")
    assert (status, states(found)["open files"]) == (0, "warn")
    user.env["HIPOFS_INDEX_DIR"] = "/root/indexes"
    status, found = doctor()
    assert (status, states(found)["index folder"]) == (0, "warn")
    os.chmod("/dev/fuse", 0o600)
    status, found = doctor()
    assert (status, found["mount"], found["run"]) == (6, False, False)
    assert (states(found)["/dev/fuse"], states(found)["hipofs run"]) == ("fail", "fail")
