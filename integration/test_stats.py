"""What a mount tells of itself is what happened: numbers that are known beforehand, and names that nobody can misread."""
from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

import writer
from harness import PATIENCE, data, mounted, records, run

ROWS, EVENTS = 3, 50


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four records of 50 events, each with three rows of two banks; each record inflates to over 1 MiB with a third bank."""
    path = tmp_path / "run.hipo"
    schemas = ["{A::a/100/1}{x/I,y/F}", "{B::b/100/2}{z/D}", "{C::big/100/3}{v/L}"]
    batches = []
    for r in range(4):
        events = []
        for e in range(EVENTS):
            x = np.arange(ROWS, dtype="<i4") + 1000 * r + 10 * e
            events.append(writer.event(
                writer.structure(100, 1, 11, x.tobytes() + x.astype("<f4").tobytes()),
                writer.structure(100, 2, 11, x.astype("<f8").tobytes()),
                writer.structure(100, 3, 11, np.zeros(3000, "<i8").tobytes())))
        batches.append(events)
    writer.write(path, schemas, batches)
    return path


def metrics(m) -> dict[str, float]:
    """The numbers of .hipofs/metrics, parsed as Prometheus' text format says."""
    found, kinds = {}, {}
    for line in (m / ".hipofs" / "metrics").read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif not line.startswith("#"):
            match = re.fullmatch(r"([a-z_:][a-z0-9_:]*)(\{[^}]*\})? (\S+)", line)
            assert match, f"not a line of metrics: {line!r}"
            assert kinds[match[1]] == ("counter" if match[1].endswith("_total") else "gauge"), line
            found[match[1]] = float(match[3])
    return found


def wait_until(holds) -> None:
    """Look until holds() is true; each look is an answer of the mount."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never happened"


def test_numbers_of_a_known_sequence(hipofs, env, source):
    run(hipofs, "index", source, env=env)
    rows = 4 * EVENTS * ROWS
    with mounted(hipofs, env, source, "--threads=1") as m:
        before = m.json("stats.json")
        for key in ("records_decoded", "bytes_inflated", "bytes_served", "cache_hits", "cache_misses", "cache_evictions", "errors"):
            assert before[key] == 0, key
        x = m / "A::a" / "x.npy"
        assert os.stat(x).st_size == 128 + 4 * rows
        assert m.json("stats.json")["records_decoded"] == 0, "a size needs no decode"
        content = x.read_bytes()
        expected = np.concatenate([np.arange(ROWS) + 1000 * r + 10 * e for r in range(4) for e in range(EVENTS)])
        np.testing.assert_array_equal(np.frombuffer(content[128:], "<i4"), expected)
        s = m.json("stats.json")
        found = records(source)
        assert s["records_decoded"] == len(found) == 4
        assert s["bytes_read"] == sum(r.length for r in found)
        assert s["bytes_inflated"] == sum(r.data_length + 4 * r.events for r in found)
        assert s["bytes_served"] == len(content) == 128 + 4 * rows
        assert (s["cache_hits"], s["cache_misses"]) == (0, 4), "each record's chunk was waited for, once"
        assert s["decode_seconds"] > 0 and s["wait_seconds"] > 0 and s["decodes_in_flight"] == 0
        # The other column of the bank came with it.
        np.testing.assert_array_equal(np.load(m / "A::a" / "y.npy"), expected.astype("<f4"))
        s = m.json("stats.json")
        assert (s["cache_hits"], s["cache_misses"], s["records_decoded"]) == (4, 4, 4)
        # The kernel has the first column by now.
        x.read_bytes()
        assert m.json("stats.json")["bytes_served"] == s["bytes_served"] == 2 * (128 + 4 * rows)

        assert s["version"] == (m / ".hipofs" / "version").read_text().strip()
        assert s["pid"] == m.pid and s["files"] == s["files_counted"] == 1
        assert s["mounted"] < s["time"]
        assert abs(s["open_descriptors"] - len(os.listdir(f"/proc/{m.pid}/fd"))) <= 1
        told = metrics(m)
        for key, name in (("bytes_served", "bytes_served_total"), ("cache_hits", "cache_hits_total"), ("cache_misses", "cache_misses_total"),
                          ("records_decoded", "records_decoded_total"), ("bytes_read", "source_bytes_read_total"),
                          ("cache_bytes", "cache_bytes"), ("cache_budget", "cache_budget_bytes"), ("files", "files")):
            assert told[f"hipofs_{name}"] == s[key], key
        assert told["hipofs_info"] == 1


def test_evictions_are_counted(hipofs, env, source):
    """A budget that holds one record's chunk of the large column: four chunks of 1.2 MB, none of which stays once it is read."""
    with mounted(hipofs, env, source, "--memory=4M", "--threads=1", "--index=lazy") as m:
        content = np.load(m / "C::big" / "v.npy")
        assert content.nbytes == 4 * EVENTS * 3000 * 8
        s = m.json("stats.json")
        assert s["cache_bytes"] <= s["cache_budget"] <= 4 << 20
        assert s["cache_bytes_evicted"] >= content.nbytes - s["cache_budget"]
        assert 0 < s["cache_evictions"]


def test_progress_from_waiting_to_done(hipofs, env, source):
    total = sum(r.length for r in records(source))
    with mounted(hipofs, env, [source, source], "--index=lazy", "--no-index") as m:
        p = m.json("progress.json")
        assert p["counting"] == {"state": "waiting", "files": 2, "files_done": 0, "bytes": 2 * total, "bytes_done": 0,
                                 "bytes_per_second": 0, "seconds_left": None}
        assert p["prefetch"]["state"] == "none"
        os.stat(m / "A::a" / "x.npy")
        p = m.json("progress.json")["counting"]
        assert (p["state"], p["files_done"], p["bytes_done"], p["seconds_left"]) == ("done", 2, 2 * total, 0)
        assert p["bytes_per_second"] > 0


def test_prefetched_columns_cost_no_decode(hipofs, env, source, tmp_path):
    run(hipofs, "index", source, env=env)
    log = tmp_path / "log"
    with mounted(hipofs, env, source, "--prefetch=A::a,B::*/z,N::none", f"--log-file={log}") as m:
        wait_until(lambda: m.json("progress.json")["prefetch"]["state"] == "done")
        p = m.json("progress.json")["prefetch"]
        rows = 4 * EVENTS * ROWS
        # offsets, x and y of A::a, z of B::b.
        assert p == {"state": "done", "columns": 4, "columns_left_out": 0,
                     "bytes": 4 * 4 * EVENTS + 4 * rows + 4 * rows + 8 * rows, "bytes_done": p["bytes"]}
        decoded = m.decoded()
        assert decoded == 4
        for name in ("A::a/x.npy", "A::a/y.npy", "B::b/z.npy", "A::a/offsets.npy", "A::a/@entry.npy"):
            np.load(m / name)
        s = m.json("stats.json")
        assert s["records_decoded"] == decoded and s["cache_misses"] == 0
    said = log.read_text()
    assert said.count("no column is called N::none") == 1 and said.count("msg=prefetched") == 1


def test_reads_are_no_events_of_the_log(hipofs, env, source, tmp_path):
    log = tmp_path / "log"
    with mounted(hipofs, env, source, f"--log-file={log}", "--log-level=debug") as m:
        for _ in range(20):
            for size in (4096, 100_000, 1 << 20, 16 << 20):
                fd = os.open(m / "C::big/v.npy", os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the next read is the mount's to answer
                while os.read(fd, size):
                    pass
                os.close(fd)
        assert m.json("stats.json")["bytes_served"] > 20 * 4 << 20
    said = [re.search(r'msg=("[^"]*"|\S+)', line)[1] for line in log.read_text().splitlines()]
    assert len(said) == len(set(said)) and "mounted" in said, said


def test_stats_command(hipofs, env, source, tmp_path):
    with mounted(hipofs, env, source) as m:
        (m / "A::a" / "x.npy").read_bytes()
        told = run(hipofs, "stats", m.point, env=env).stdout
        served = m.json("stats.json")["bytes_served"]
        assert re.search(r"^served to readers +2\.5 kB$", told, re.M) and served == 2528, told
        assert "counting: done, 1 of 1 file\n" in told
        as_json = run(hipofs, "stats", "--json", m.point, env=env).stdout
        assert json.loads(as_json)["bytes_served"] == served
        # Once a second, also where it is no terminal, until it is interrupted.
        watch = subprocess.Popen([hipofs, "stats", "--watch", m.point], env=env, stdout=subprocess.PIPE, text=True)
        lines = [watch.stdout.readline()]
        while sum(line.startswith("counting: ") for line in lines) < 2:
            lines.append(watch.stdout.readline())
        watch.send_signal(2)
        rest, _ = watch.communicate(timeout=PATIENCE)
        assert watch.returncode == 0
        assert "served to readers" in lines[2] and "/s" not in lines[2]
        assert any(re.fullmatch(r"served to readers +2\.5 kB +0 B/s\n", line) for line in lines), lines
        assert "\x1b" not in "".join(lines) + rest
    plain = tmp_path / "plain"
    plain.mkdir()
    told = run(hipofs, "stats", plain, env=env, ok=False)
    assert (told.returncode, told.stdout, told.stderr) == (7, "", f"hipofs: {plain}: nothing is mounted here\n")


HOSTILE = "X::\x1b[2J\x1b]0;owned\x07\n\r\u202e"


def test_names_from_a_file_cannot_steer_a_terminal_or_break_a_log(hipofs, env, tmp_path):
    """Two layouts for one id: an error that names both banks, in the log, in stats and on the terminal."""
    path = tmp_path / "hostile.hipo"
    writer.write(path, [f"{{{HOSTILE}/100/1}}{{x/I}}", "{Y::y/100/1}{x/F,y/F}"],
                 [[writer.event(writer.structure(100, 1, 11, bytes(8)))]])
    log = tmp_path / "log"
    with mounted(hipofs, env, path, f"--log-file={log}", f"--prefetch={HOSTILE}") as m:
        shown = next(n for n in os.listdir(m.point) if n.startswith("X::") and not n.endswith(".arrow"))
        assert urllib.parse.unquote(shown) == HOSTILE
        with pytest.raises(OSError):
            (m / shown / "x.npy").read_bytes()
        errors = m.json("errors.json")
        assert any(HOSTILE in e["message"] for e in errors), errors
        told = run(hipofs, "stats", m.point, env=env).stdout
        assert re.search(r"^errors +[1-9]", told, re.M)
        (m / ".hipofs" / "metrics").read_text()
    lines = log.read_bytes().decode().split("\n")
    assert lines.pop() == "" and all(line.startswith("time=") for line in lines), lines
    assert any("level=ERROR" in line and "owned" in line for line in lines), lines
    assert not [c for line in lines for c in line if not c.isprintable()]


def test_only_who_may_read_the_columns_reads_what_the_mount_tells(hipofs, env, source):
    source.chmod(0o400)
    with mounted(hipofs, env, source) as m:
        for name in ("stats.json", "metrics", "errors.json", "progress.json"):
            st = os.stat(m / ".hipofs" / name)
            assert (oct(st.st_mode & 0o777), st.st_size) == ("0o400", 0), name


def test_real_file(hipofs, env):
    with mounted(hipofs, env, data("clas12_recon_proton_80MeV.hipo")) as m:
        for bank in ("REC::Particle", "REC::Event"):
            for column in sorted((m / bank).glob("[!@]*.npy")):
                np.load(column)
        told = metrics(m)
        assert told["hipofs_errors"] == 0 and told["hipofs_bytes_served_total"] == m.json("stats.json")["bytes_served"] > 0
