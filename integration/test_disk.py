"""Columns as files in a cache folder: the next mount, the real path, passthrough, and what goes wrong with folders."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from harness import PATIENCE, Mount, data, errno_of, golden, mounted, run, wait_ended, walk

REALPATH = "user.hipofs.realpath"
RECON = "clas12_recon_proton_80MeV.hipo"
READABLE = sorted(f for f in golden() if not f.endswith("?salvage"))


def realpath(path: Path) -> Path:
    return Path(os.fsdecode(os.getxattr(path, REALPATH)))


def columns(tree: Path) -> dict[str, bytes]:
    """Every .npy file of a mount by its path, read to its end."""
    return {str(p.relative_to(tree)): p.read_bytes() for p in walk(tree) if p.suffix == ".npy"}


def rows(m: Mount, column: str) -> int:
    return np.load((m / column).parent / "offsets.npy")[-1]


def tier(m: Mount) -> dict:
    return m.json("stats.json")["tier"]


def passes_through() -> bool:
    """Whether this kernel lets this process pass files through."""
    release = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
    return os.geteuid() == 0 and release >= (6, 9)


def child(code: str, *args, **kw) -> subprocess.Popen:
    """A process that runs Python code, and is talked to through pipes."""
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **kw)


# ---------------------------------------------------------------- the same bytes, without decoding

@pytest.mark.parametrize("name", READABLE)
def test_every_column_is_the_same_with_a_cache_folder_and_in_the_next_mount(name, mount, tmp_path):
    without = mount(data(name))
    want = columns(without.point)
    without.umount()
    first = mount(data(name), f"--cache-dir={tmp_path}/cache")
    assert columns(first.point) == want
    first.umount()
    second = mount(data(name), f"--cache-dir={tmp_path}/cache")
    assert columns(second.point) == want
    assert second.decoded() == 0
    stats = second.json("stats.json")  # before rows() opens offsets again
    kept = [p for p in want if p == ".hipofs/event_tags.npy" or not p.startswith(".hipofs/") and rows(second, p)]
    assert (stats["tier"]["opens"], stats["tier"]["made"], stats["tier"]["bad"]) == (len(kept), 0, 0)
    assert second.json("errors.json") == []


def test_the_next_mount_decodes_nothing_and_the_kernel_reads_by_itself(dst, mount, tmp_path):
    content = dst.content()
    for again in (False, True):
        m = mount(dst.sources, f"--cache-dir={tmp_path}/cache")
        for name, want in content.items():
            for mode in (None, "r"):
                got = np.load(m / name, mmap_mode=mode)
                np.testing.assert_array_equal(got, want, name)
                del got
        stats = m.json("stats.json")
        if again:
            assert m.decoded() == 0 and stats["bytes_served"] == 0
            opens = stats["tier"]["opens"]  # more than one by an np.load that maps
            assert opens >= 2 * len(content) and stats["tier"]["made"] == 0
            if passes_through():
                assert stats["passthrough"] == {"on": True, "opens": opens, "reads": 0}
        m.umount()


def test_a_mount_without_a_cache_folder_says_so(mount):
    m = mount(data(RECON))
    assert errno_of(os.getxattr, m / "REC::Particle/px.npy", REALPATH) == errno.ENODATA
    assert "links" not in os.listdir(m / ".hipofs")
    assert errno_of(os.readlink, m / ".hipofs/links/REC::Particle/px.npy") == errno.ENOENT
    stats = m.json("stats.json")
    assert stats["tier"] is None
    assert not stats["passthrough"]["on"] and "--cache-dir" in stats["passthrough"]["why"]


def test_other_views_and_other_files_have_files_of_their_own(mount, tmp_path):
    a, b = tmp_path / "a.hipo", tmp_path / "b.hipo"
    shutil.copyfile(data("codecs/small.hipo"), a)
    shutil.copyfile(data("codecs/small.hipo"), b)
    paths = set()
    for sources in ([a], [b], [a, b], [b, a]):
        m = mount(sources, f"--cache-dir={tmp_path}/cache")
        for tree in (m.point, *(m / f".files/{s.name}" for s in sources if len(sources) > 1)):
            path = realpath(tree / "SM::part/pid.npy")
            assert path.read_bytes() == (tree / "SM::part/pid.npy").read_bytes()
            paths.add(path)
        m.umount()
    assert len(paths) == 2 + 2 * 3
    # Nothing of a file's names is in a path.
    for path in (tmp_path / "cache").rglob("*"):
        assert not any(word in path.name.lower() for word in ("pid", "part", "small", "hipo")) or path.name == "CACHEDIR.TAG"


# ---------------------------------------------------------------- the real path

def test_links_and_the_attribute_are_one_plain_file_that_outlives_the_process(dst, mount, tmp_path):
    m = mount(dst.sources, f"--cache-dir={tmp_path}/cache")
    content = dst.content()
    name = max(content, key=lambda n: content[n].nbytes)
    path = realpath(m / name)
    link = m / ".hipofs/links" / name
    assert os.readlink(link) == str(path) and os.lstat(link).st_size == len(str(path))
    assert path.is_relative_to(tmp_path / "cache") and not path.is_symlink() and path.stat().st_nlink == 1
    assert os.stat(path).st_mode & 0o777 == 0o400
    assert path.read_bytes() == (m / name).read_bytes()
    assert os.listdir(m / ".hipofs/links") == [] == os.listdir(link.parent)
    assert os.listxattr(m / name) == []
    for other in ("offsets.npy", "@entry.npy"):
        linked = link.parent / other
        assert Path(os.readlink(linked)).read_bytes() == (m / Path(name).parent / other).read_bytes()
    assert errno_of(os.readlink, link.parent / "no.npy") == errno.ENOENT
    before = tier(m)["made"]
    for folder, _, names in os.walk(m / ".hipofs"):  # what a coloured ls or find does
        for n in names:
            os.lstat(os.path.join(folder, n))
    assert tier(m)["made"] == before

    # Whoever has mapped it reads on when the process is killed; so does who was passed through to it.
    mapped = [path, link] + ([m / name] if passes_through() else [])
    for file in mapped:
        reader = child("import sys, mmap, hashlib\n"
                       "f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
                       "print('mapped', flush=True); sys.stdin.readline()\n"
                       "print(hashlib.sha256(m[-int(sys.argv[2]):]).hexdigest())\n", file, content[name].nbytes)
        assert reader.stdout.readline() == "mapped\n"
        mapped[mapped.index(file)] = reader
    pid = m.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(pid)
    import hashlib
    for reader in mapped:
        out, err = reader.communicate("go\n", timeout=PATIENCE)
        assert (reader.returncode, err) == (0, ""), "a reader died with the process"
        assert out.strip() == hashlib.sha256(content[name].tobytes()).hexdigest()
    m.discard()


def test_a_path_that_has_gone_is_made_again(mount, tmp_path):
    m = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    link = m / ".hipofs/links/MC::True/trackE.npy"
    want = link.read_bytes()
    path = Path(os.readlink(link))
    path.unlink()
    assert errno_of(os.stat, path) == errno.ENOENT
    assert link.read_bytes() == want and Path(os.readlink(link)) == path
    path.unlink()
    assert realpath(m / "MC::True/trackE.npy").read_bytes() == want


def test_a_column_larger_than_the_folder_says_what_to_do(dst, mount, tmp_path):
    content = dst.content()
    name = max(content, key=lambda n: content[n].nbytes)
    size = content[name].nbytes
    m = mount(dst.sources, f"--cache-dir={tmp_path}/cache", f"--cache-size={size // 2}", f"--log-file={tmp_path}/log")
    assert errno_of(os.getxattr, m / name, REALPATH) == errno.EFBIG
    assert errno_of(os.readlink, m / ".hipofs/links" / name) == errno.EFBIG
    for _ in range(2):
        np.testing.assert_array_equal(np.load(m / name), content[name])
    log = (tmp_path / "log").read_text()
    assert log.count("--cache-size") == 1, log


def test_whoever_waits_for_a_path_can_be_interrupted(mount, tmp_path):
    m = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    held = realpath(m / "MC::True/pid.npy")
    with open(tmp_path / "cache/lock", "r+b") as lock:  # another process is making every other column, and hangs
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 0, 0))
        # One system call; os.getxattr asks for the length first.
        reader = child("import ctypes, os, sys, signal\n"
                       "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))\n"
                       "libc, room = ctypes.CDLL(None), ctypes.create_string_buffer(4096)\n"
                       "print('asks', flush=True)\n"
                       f"libc.getxattr(sys.argv[1].encode(), {REALPATH!r}.encode(), room, 4096)\n", m / "MC::True/trackE.npy")
        assert reader.stdout.readline() == "asks\n"
        waits(reader.pid)
        reader.send_signal(signal.SIGINT)
        _, err = reader.communicate(timeout=PATIENCE)
        assert reader.returncode == 42, err
        assert realpath(m / "MC::True/pid.npy") == held, "what is there needs nobody's leave"
        assert (m / "MC::True/trackE.npy").read_bytes(), "readers do not wait for other processes"
    assert realpath(m / "MC::True/trackE.npy").read_bytes() == (m / "MC::True/trackE.npy").read_bytes()


def waits(pid: int) -> None:
    """Return when a process waits for the answer of a FUSE server; the kernel tells where it sleeps."""
    while Path(f"/proc/{pid}/wchan").read_text() != "request_wait_answer":
        assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z", "it has ended"
        os.sched_yield()


# ---------------------------------------------------------------- passthrough

def test_a_file_changes_its_way_only_while_nobody_has_it_open(mount, tmp_path):
    m = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    path = m / "MC::True/trackE.npy"

    def opens() -> tuple[int, int]:
        stats = m.json("stats.json")["passthrough"]
        return stats["opens"], stats["reads"]

    early = open(path, "rb")
    want = early.read(100)
    finished = realpath(path)
    late = open(path, "rb")  # the file is there, and the kernel has pages of its own
    assert late.read() == finished.read_bytes() and late.read(0) == b"" and early.read() == finished.read_bytes()[100:]
    assert want == finished.read_bytes()[:100] and opens() == (0, 0)
    early.close()
    late.close()
    expected = (1, 0) if passes_through() else (0, 0)
    for _ in range(1000):  # the kernel tells of a close when it has time
        through = open(path, "rb")
        assert through.read(100) == want
        if opens() == expected:
            break
        through.close()
        time.sleep(0.01)
    assert opens() == expected
    shutil.rmtree(finished.parent)  # the finished file has gone: who has it open reads on, and others with him
    other = open(path, "rb")
    assert other.read() == want + through.read()
    through.close()
    other.close()
    after = opens()
    assert after[1] == 0
    with open(path, "rb") as f:  # from memory again
        assert f.read(100) == want
    assert opens() == after


def test_opening_while_files_come_and_go_never_fails(mount, tmp_path):
    m = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    names = [f"MC::True/{c}.npy" for c in ("trackE", "pid", "totEdep")]
    want = {n: (m / n).read_bytes() for n in names}
    failures: list[str] = []
    stop = threading.Event()

    def reads(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[str, int]] = []
        try:
            for _ in range(300):
                name = rng.choice(names)
                if rng.random() < 0.2:
                    with contextlib.suppress(OSError):  # its folder may be removed while it is made
                        realpath(m / name)
                fd = os.open(m / name, os.O_RDONLY)
                held.append((name, fd))
                if os.pread(fd, 1 << 20, 0) != want[name]:
                    failures.append(f"{name}: other bytes")
                if len(held) > rng.randrange(4):
                    os.close(held.pop(rng.randrange(len(held)))[1])
        except OSError as e:
            failures.append(str(e))
        finally:
            for _, fd in held:
                os.close(fd)

    def removes() -> None:
        while not stop.is_set():
            for set_ in (tmp_path / "cache").glob("?" * 32):
                shutil.rmtree(set_, ignore_errors=True)

    remover = threading.Thread(target=removes)
    readers = [threading.Thread(target=reads, args=(seed,)) for seed in range(6)]
    for t in (remover, *readers):
        t.start()
    for t in readers:
        t.join()
    stop.set()
    remover.join()
    assert not failures, failures[:5]


def test_an_ordinary_user_has_files_and_no_passthrough(user):
    cache = user.folder / "home/columns"
    want = None
    for again in (False, True):
        done = user.run(user.binary, f"--cache-dir={cache}", user.source, user.point)
        assert done.returncode == 0, done.stderr
        column = user.point / "REC::Particle/px.npy"
        got = user.run("cat", column, text=False).stdout
        assert got == (want or got) and len(got) > 128
        want = got
        stats = json.loads(user.run("cat", user.point / ".hipofs/stats.json").stdout)
        assert not stats["passthrough"]["on"] and "CAP_SYS_ADMIN" in stats["passthrough"]["why"]
        if again:
            assert stats["records_decoded"] == 0 and stats["tier"]["opens"] == 1
        link = user.run("cat", user.point / ".hipofs/links/REC::Particle/px.npy", text=False)
        assert link.stdout == want, link.stderr
        assert user.run(user.binary, "umount", user.point).returncode == 0
    for path in (cache, *cache.rglob("*")):
        assert os.lstat(path).st_mode & 0o077 == 0, path


# ---------------------------------------------------------------- many at once

def test_eight_processes_that_read_one_bank_decode_it_once(dst, mount, tmp_path):
    content = dst.content()
    bank = max({n.split("/")[0] for n in content}, key=lambda b: sum(n.startswith(b + "/") for n in content))
    names = [n for n in content if n.startswith(bank + "/")]
    for n in names:
        (tmp_path / "oracle" / n).parent.mkdir(parents=True, exist_ok=True)
        content[n].tofile(tmp_path / "oracle" / n)
    m = mount(dst.sources, f"--cache-dir={tmp_path}/cache")
    readers = [child("import sys, numpy as np\n"
                     "sys.stdin.readline()\n"
                     "for n in sys.argv[3:]:\n"
                     "    a = np.load(f'{sys.argv[1]}/{n}')\n"
                     "    assert a.tobytes() == open(f'{sys.argv[2]}/{n}', 'rb').read(), n\n",
                     m, tmp_path / "oracle", *names[i:], *names[:i]) for i in range(8)]
    for r in readers:
        r.stdin.write("go\n")
        r.stdin.flush()
    for r in readers:
        _, err = r.communicate(timeout=PATIENCE)
        assert r.returncode == 0, err
    # Of a split record, each column is decoded by itself.
    assert m.decoded() <= dst.records * (1 if dst.sources[0].name.startswith("dst") else len(names) + 1)


def test_sixteen_mounts_with_one_folder_make_a_column_once(dst, hipofs, env, tmp_path):
    content = dst.content()
    names = sorted(content)[:3]
    run(hipofs, "index", "-q", *dst.sources, env=env)
    with contextlib.ExitStack() as stack:
        # They start together, in a folder that is not there yet.
        all_ = [Mount(hipofs, tmp_path / f"mnt{i}", env) for i in range(16)]
        for m in all_:
            m.point.mkdir()
            stack.callback(m.discard)
        starts = [threading.Thread(target=m.start, args=(dst.sources, (f"--cache-dir={tmp_path}/cache",))) for m in all_]
        for t in starts:
            t.start()
        for t in starts:
            t.join()
        asks = [child("import os, sys\n"
                      "sys.stdin.readline()\n"
                      f"print([os.getxattr(p, {REALPATH!r}).decode() for p in sys.argv[1:]])\n", *(m / n for n in names)) for m in all_]
        for a in asks:
            a.stdin.write("go\n")
            a.stdin.flush()
        answers = set()
        for a in asks:
            out, err = a.communicate(timeout=PATIENCE)
            assert a.returncode == 0, err
            answers.add(out)
        assert len(answers) == 1
        assert sum(tier(m)["made"] for m in all_) == len(names)
        # Columns of one bank come with one decode, in the process that makes the first of them.
        assert sum(m.decoded() for m in all_) <= len(names) * dst.records
        for m in all_:
            for n in names:
                np.testing.assert_array_equal(np.load(m / n), content[n])
            m.umount()


def test_a_small_folder_stays_small_and_every_byte_right(dst, mount, tmp_path):
    content = dst.content()
    largest = max(a.nbytes for a in content.values())
    limit = largest * 3 // 2 + (64 << 10)
    m = mount(dst.sources, f"--cache-dir={tmp_path}/cache", f"--cache-size={limit}")
    for name in [*content, *reversed(content)]:
        np.testing.assert_array_equal(np.load(m / name), content[name], name)
    m.umount()
    assert sum(p.stat().st_blocks * 512 for p in (tmp_path / "cache").rglob("*") if p.is_file()) <= limit + (64 << 10)
    again = mount(dst.sources, f"--cache-dir={tmp_path}/cache", f"--cache-size={limit}")
    for name in content:
        np.testing.assert_array_equal(np.load(again / name), content[name], name)
    assert tier(again)["bad"] == 0


# ---------------------------------------------------------------- what goes wrong

@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", disk)
    yield disk
    run("umount", "-l", disk)


def test_a_full_disk_costs_nobody_a_byte(dst, mount, small_disk, tmp_path):
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    content = dst.content()
    m = mount(dst.sources, f"--cache-dir={small_disk}/cache", f"--log-file={tmp_path}/log")
    reader = child("import sys, numpy as np\n"
                   "for n in sys.argv[2:]:\n"
                   "    for mode in ('r', None): print(n, np.load(f'{sys.argv[1]}/{n}', mmap_mode=mode).tobytes()[-1:], flush=True)\n",
                   m, *content)
    _, err = reader.communicate(timeout=2 * PATIENCE)
    assert (reader.returncode, err) == (0, ""), "SIGBUS, or worse"
    for name, want in content.items():
        np.testing.assert_array_equal(np.load(m / name), want, name)
    large = max(content, key=lambda n: content[n].nbytes)
    assert content[large].nbytes > 1 << 20
    assert errno_of(os.getxattr, m / large, REALPATH) == errno.ENOSPC
    assert errno_of(os.readlink, m / ".hipofs/links" / large) == errno.ENOSPC
    (small_disk / "filler").unlink()
    assert realpath(m / large).read_bytes()[-content[large].nbytes:] == content[large].tobytes()
    m.umount()
    assert 1 <= (tmp_path / "log").read_text().count("columns are not kept there: no space left") <= 2


def test_a_folder_that_becomes_read_only_or_vanishes(mount, small_disk, tmp_path):
    want = data(RECON)
    m = mount(want, f"--cache-dir={small_disk}/cache", f"--log-file={tmp_path}/log")
    kept = realpath(m / "MC::True/trackE.npy")
    run("mount", "-o", "remount,ro", small_disk)
    assert (m / "MC::True/trackE.npy").read_bytes() == kept.read_bytes()
    assert (m / "MC::True/pid.npy").read_bytes()[:6] == b"\x93NUMPY"
    assert errno_of(os.getxattr, m / "MC::True/pid.npy", REALPATH) == errno.EROFS
    run("mount", "-o", "remount,rw", small_disk)
    shutil.rmtree(small_disk / "cache")
    for name in ("trackE", "pid", "totEdep"):
        assert (m / f"MC::True/{name}.npy").read_bytes()[:6] == b"\x93NUMPY"
    assert errno_of(os.getxattr, m / "MC::True/pid.npy", REALPATH) != 0
    m.umount()
    assert not (small_disk / "cache").exists()


def test_twenty_kills_leave_a_folder_that_the_next_mount_goes_by(mount, tmp_path):
    """The process is killed when so many files have been made, read by another mount at once."""
    cache = tmp_path / "cache"
    source = data(RECON)
    plain = mount(source)
    want = columns(plain.point)
    plain.umount()
    rng = random.Random(5)
    names = sorted(want)
    for _ in range(20):
        m = mount(source, f"--cache-dir={cache}", "--cache-size=256K", f"--threads={rng.choice((1, 2, 8))}")
        rng.shuffle(names)
        asked = names[:250]
        reader = child("import sys\n"
                       "for n in sys.stdin.read().split('\\n'):\n"
                       "    with open(f'{sys.argv[1]}/{n}', 'rb') as f: f.read()\n"
                       "    print(n, flush=True)\n", m)
        reader.stdin.write("\n".join(asked))
        reader.stdin.close()
        for _ in range(rng.randrange(1, 240)):
            reader.stdout.readline()
        pid = m.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_ended(pid)
        reader.kill()
        reader.wait()
        reader.stdout.close()
        reader.stderr.close()
        m.discard()
        after = mount(source, f"--cache-dir={cache}", "--cache-size=256K")
        assert not list(cache.glob("*/draft-*")), "what was begun by the killed process is still there"
        for name in asked:
            assert (after / name).read_bytes() == want[name], name
        assert tier(after)["bad"] == 0
        after.umount()


def test_flipped_bytes_are_never_served(mount, tmp_path):
    m = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    want = {n: b for n, b in columns(m.point).items() if n.startswith("MC::True/")}
    paths = {n: realpath(m / n) for n in want}
    m.umount()
    for n, path in paths.items():
        path.chmod(0o600)
        with open(path, "r+b") as f:
            f.seek(random.Random(n).randrange(len(want[n])))
            b = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([b[0] ^ 1]))
    again = mount(data(RECON), f"--cache-dir={tmp_path}/cache")
    for n in want:
        assert (again / n).read_bytes() == want[n], n
        assert realpath(again / n).read_bytes() == want[n], n
    assert tier(again)["bad"] == len(want)
