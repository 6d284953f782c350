"""What hipofs_ak mounts ends with who needs it, whatever that ends by; threads and forks read it at once."""
from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import awkward as ak
import hipofs_ak as hf
import numpy as np
import oxihipo
import pytest

from harness import ROOT, daemons, data, mounted, mounts, run, wait_ended, wait_unmounted

FILE = data("codecs/tag10_lz4_percolumn.hipo")
BANK = oxihipo.open(str(FILE)).keys()[0]

pytestmark = pytest.mark.usefixtures("program")


def digest(file: hf.File) -> str:
    """Of all values and offsets of all columns."""
    h = hashlib.sha256()
    for bank in file:
        for column in file.columns(bank):
            values, offsets, _ = file.numpy(bank, column)
            h.update(values.tobytes() + offsets.tobytes())
    return h.hexdigest()


def expected() -> str:
    h = hashlib.sha256()
    chain = oxihipo.open(str(FILE))
    for bank in chain:
        for column in chain.columns(bank):
            values, offsets, _ = chain.numpy(bank, column)
            h.update(values.tobytes() + offsets.tobytes())
    return h.hexdigest()


def server(point: str) -> int:
    pid, = daemons(point)
    return pid


def assert_gone(point: str, pid: int) -> None:
    wait_unmounted(Path(point))
    assert wait_ended(pid), "hipofs outlives who needed it"
    assert not os.path.exists(os.path.dirname(point))


# ---------------------------------------------------------------- in one process

def test_close_ends_the_mount_before_it_returns():
    with hf.open(FILE) as f:
        point = f.mount
        pid = server(point)
        assert len(mounts(point)) == 1
    assert not mounts(point) and not os.path.exists(f"/proc/{pid}") and not os.path.exists(os.path.dirname(point))
    f.close()
    with pytest.raises(ValueError, match="closed"):
        len(f)
    with pytest.raises(ValueError, match="closed"):
        f.arrays(BANK)


def test_collection_ends_the_mount():
    f = hf.open(FILE)
    point, pid = f.mount, server(f.mount)
    view = f.view(".entries/0:5")
    del f
    gc.collect()
    assert mounts(point), "a view needs the mount of its file"
    assert len(view) == 5
    del view
    gc.collect()
    assert not mounts(point)
    assert_gone(point, pid)


def test_arrays_outlive_their_file():
    want = oxihipo.open(str(FILE)).arrays(BANK)
    with hf.open(FILE) as f:
        point, pid = f.mount, server(f.mount)
        array, everything = f.arrays(BANK), f.arrays()
        used = everything[BANK][f.columns(BANK)[0]]
        assert ak.array_equal(ak.materialize(used), want[f.columns(BANK)[0]])
    assert not mounts(point) and os.path.exists(f"/proc/{pid}")
    assert ak.array_equal(array, want, equal_nan=True)  # no page of it was touched while the mount was there
    with pytest.raises(ValueError, match="closed"):
        ak.materialize(everything)
    del array, everything, used
    gc.collect()
    assert_gone(point, pid)


def test_a_lazy_array_needs_no_file_in_hand():
    everything = hf.open(FILE).arrays()
    gc.collect()
    assert ak.array_equal(ak.materialize(everything[BANK]), oxihipo.open(str(FILE)).arrays(BANK), equal_nan=True)


def test_views_do_not_end_the_mount_of_their_file():
    with hf.open(FILE) as f:
        with f.filtered(require=[BANK]) as some:
            assert len(some) <= len(f)
        with pytest.raises(ValueError, match="closed"):
            len(some)
        assert len(f.arrays(BANK)) == len(f)
        some = f.view(".entries/0:3")
    with pytest.raises(ValueError, match="closed"):
        len(some)


def test_more_columns_than_descriptors_at_once():
    """A mapping keeps no descriptor, before Python 3.13 either."""
    with hf.open(data("clas12_recon_proton_80MeV.hipo")) as f:
        before = len(os.listdir("/proc/self/fd"))
        everything = ak.materialize(f.arrays())
        assert len(os.listdir("/proc/self/fd")) == before
        assert sum(len(everything[b].fields) for b in everything.fields) > 1024


def test_more_files_than_a_command_line_has_room_for(monkeypatch, tmp_path):
    monkeypatch.setattr("hipofs_ak._mount.TOO_LONG", 100)
    copies = [tmp_path / name for name in ("a b.hipo", "a,#b.hipo", "@c.hipo", "*.hipo")]
    for copy in copies:
        copy.write_bytes(FILE.read_bytes())
    with hf.open(copies) as f:
        assert f.files == [str(c) for c in copies] and len(f) == 4 * len(oxihipo.open(str(FILE)))
    (tmp_path / "a #b.hipo").write_bytes(FILE.read_bytes())
    with pytest.raises(ValueError, match="rename it"):
        hf.open([*copies, tmp_path / "a #b.hipo"])


# ---------------------------------------------------------------- however a process ends

def child(code: str, *arguments: str, **kw) -> subprocess.Popen:
    """A process that has opened FILE as f, and says on its standard output where it is mounted."""
    start = ("import os, signal, sys, hipofs_ak as hf\n"
             "f = hf.open(sys.argv[1])\n"
             "array = f.numpy(sys.argv[2], f.columns(sys.argv[2])[0])\n"
             "print(f.mount, flush=True)\n"
             "sys.stdin.readline()\n")
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", start + code, str(FILE), BANK, *arguments], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, **kw)


ENDS = {
    "returns": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "at once": ("os._exit(4)", 4),
    "raises": ("1 / 0", 1),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "becomes another program": ("os.execv('/bin/true', ['true'])", 0),
}


def test_a_mount_ends_with_its_process_however_that_ends():
    children = {how: child(code) for how, (code, _) in ENDS.items()}
    points = {how: c.stdout.readline().strip() for how, c in children.items()}
    pids = {how: server(point) for how, point in points.items()}
    for how, c in children.items():
        _, said = c.communicate("\n")
        assert c.returncode == ENDS[how][1], (how, said)
        assert said == "" or how == "raises", (how, said)
    for how, point in points.items():
        wait_unmounted(Path(point))
        assert wait_ended(pids[how]), how
        assert not os.path.exists(point) or not os.listdir(point), how


def test_what_a_killed_hipofs_leaves_is_taken_away():
    c = child("")
    point = c.stdout.readline().strip()
    os.kill(server(point), signal.SIGKILL)
    _, said = c.communicate("\n")
    assert (c.returncode, said) == (0, "")
    assert not mounts(point) and not os.path.exists(os.path.dirname(point))


def test_a_killed_hipofs_is_an_error_and_not_a_hang():
    f = hf.open(FILE)
    point, pid = f.mount, server(f.mount)
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(pid)
    with pytest.raises(OSError, match="has ended; open the files again") as e:
        f.arrays(BANK)
    assert e.value.errno == errno.ENOTCONN and isinstance(e.value, hf.HipoError)
    f.close()
    assert not mounts(point) and not os.path.exists(os.path.dirname(point))


def test_what_is_left_when_both_are_killed_goes_with_the_next_open():
    c = child("")
    point = c.stdout.readline().strip()
    pid = server(point)
    for victim in (c.pid, pid):
        os.kill(victim, signal.SIGKILL)
    c.communicate()
    assert wait_ended(pid)
    hf.open(FILE).close()
    assert not mounts(point) and not os.path.exists(os.path.dirname(point))


def test_the_next_open_leaves_alone_what_is_in_use():
    with hf.open(FILE) as f:
        hf.open(FILE).close()
        assert digest(f) == expected()


def test_a_terminals_interrupt_is_for_python_alone():
    c = child("print(len(f.arrays(sys.argv[2])))", start_new_session=True)
    point = c.stdout.readline().strip()
    os.killpg(c.pid, signal.SIGWINCH)  # the group has Python alone in it
    assert os.getpgid(server(point)) != c.pid
    out, said = c.communicate("\n")
    assert (c.returncode, said) == (0, "")
    assert int(out) == len(oxihipo.open(str(FILE)))


# ---------------------------------------------------------------- threads and forks

def test_sixteen_threads_read_the_same():
    found, want = [], expected()
    with hf.open(FILE) as f:
        threads = [threading.Thread(target=lambda: found.append(digest(f))) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert found == [want] * 16


def test_four_threads_open_and_close():
    found, want = [], expected()

    def work() -> None:
        for _ in range(3):
            with hf.open(FILE) as f:
                found.append(digest(f))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [want] * 12


def fork(work) -> int:
    """A child that ends with 0 if work returns True, and says what was wrong otherwise."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if work() else 2
        os._exit(status)
    return pid


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_eight_forks_read_the_same_and_leave_the_mount():
    want = expected()
    with hf.open(FILE) as f:
        point = f.mount
        mapped = f.arrays(BANK)
        same = oxihipo.open(str(FILE)).arrays(BANK)
        pids = [fork(lambda: digest(f) == want and f.mount == point and ak.array_equal(mapped, same, equal_nan=True))
                for _ in range(8)]
        assert [status(pid) for pid in pids] == [0] * 8
        # Python's own way out, with what is registered to run then
        pid = os.fork()
        if pid == 0:
            f.close()
            f._tree.mount._finalizer()
            os._exit(0)
        assert status(pid) == 0
        assert mounts(point) and digest(f) == want


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_outlives_its_parent():
    """It reads on of what was mapped, and mounts for itself what it opens after that."""
    want = expected()
    f = hf.open(FILE)
    mapped, same = f.arrays(BANK), oxihipo.open(str(FILE)).arrays(BANK)
    point, pid = f.mount, server(f.mount)
    read, write = os.pipe()

    def work() -> bool:
        os.close(write)
        os.read(read, 1)  # the parent has closed it
        good = ak.array_equal(mapped, same, equal_nan=True) and digest(f) == want and f.mount != point
        f.close()
        return good

    clone = fork(work)
    os.close(read)
    f.close()
    assert not mounts(point)
    os.close(write)
    assert status(clone) == 0
    del mapped
    gc.collect()
    assert wait_ended(pid)


# ---------------------------------------------------------------- pickles

def test_a_pickle_opens_for_itself(tmp_path):
    code = ("import pickle, sys; f, g = pickle.load(sys.stdin.buffer)\n"
            "print(f.mount, len(f), len(g), list(g.event_tags()) == list(f.event_tags(entry_stop=7)))")
    with hf.open([FILE, FILE], memory="64M") as f:
        g = f.filtered(require=[BANK]).view(".entries/0:7")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], input=pickle.dumps((f, g)), capture_output=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, check=True)
        point, entries, some, same = done.stdout.decode().split()
        assert point != f.mount and (int(entries), int(some), same) == (len(f), len(g), "True")
        assert pickle.loads(pickle.dumps(f)).options == f.options == {"memory": "64M"}


def test_a_mount_that_was_there_stays(hipofs, program):
    with mounted(hipofs, dict(os.environ), FILE) as m:
        with hf.open(m.point) as f:
            assert f.mount == str(m.point) and f.sources == f.files == [str(FILE)]
            assert digest(f) == digest(pickle.loads(pickle.dumps(f))) == expected()
            with pytest.raises(ValueError, match="mounted already"):
                hf.open(m.point, memory="1G")
        assert mounts(m.point)
