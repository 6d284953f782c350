"""Views: what .entries, .where and .event show is what NumPy slices and masks out of the whole arrays."""
from __future__ import annotations

import json
import random
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

import writer
from harness import PATIENCE, banks, columns, data, errno_of, golden, load, mounted, run

ENOENT = 2
EVENTS, RECORDS = 5, 200


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """200 small records of five events: three rows of A::Particle in each, B::x in every fiftieth record's."""
    path = tmp_path / "run.hipo"
    batches = []
    for r in range(RECORDS):
        events = []
        for e in range(EVENTS):
            x = np.arange(3, dtype="<i4") + 3 * (EVENTS * r + e)
            parts = [writer.structure(100, 1, 11, x.tobytes() + x.astype("<f4").tobytes())]
            if r % 50 == 0:
                parts.append(writer.structure(100, 2, 11, np.array([1], "<i2").tobytes()))
            events.append(writer.event(*parts, tag=e))
        batches.append(events)
    writer.write(path, ["{A::Particle/100/1}{x/I,y/F}", "{A::x/100/2}{pindex/S}"], batches)
    return path


def whole(tree: Path) -> dict:
    """Every bank of a tree: offsets, and its columns by name."""
    found = {}
    for bank in sorted(banks(tree)):
        folder = tree / bank
        found[bank] = load(folder / "offsets.npy"), {c: load(folder / f"{c}.npy") for c in columns(folder) if not c.startswith("@") and c != "offsets"}
    return found


def check(tree: Path, banks_of_all: dict, entries: np.ndarray) -> None:
    """The tree has those entries of the whole, no more and no less."""
    assert np.array_equal(load(tree / ".hipofs" / "entries.npy"), entries)
    for bank, (offsets, content) in banks_of_all.items():
        counts = np.diff(offsets)[entries]
        mine = load(tree / bank / "offsets.npy")
        assert mine[0] == 0 and np.array_equal(np.diff(mine), counts), bank
        assert np.array_equal(load(tree / bank / "@entry.npy"), np.repeat(np.arange(len(entries)), counts)), bank
        keep = np.zeros(offsets[-1], bool)
        for e in entries:
            keep[offsets[e]:offsets[e + 1]] = True
        for name, values in content.items():
            assert load(tree / bank / f"{name}.npy").tobytes() == values[keep].tobytes(), f"{bank}/{name}"


@pytest.mark.parametrize("name", sorted(f for f in golden() if "?" not in f))
def test_views_are_slices_and_masks(hipofs, env, name):
    dice = random.Random(name)
    with mounted(hipofs, env, [data(name)], "--index", "lazy") as early, mounted(hipofs, env, [data(name)]) as m:
        every = whole(Path(m))
        tags, record_tags = load(m / ".hipofs" / "event_tags.npy"), load(m / ".hipofs" / "record_tags.npy")
        n = len(tags)
        filled = [b for b, (offsets, _) in every.items() if offsets[-1] > 0]
        cut = sorted(dice.randrange(n + 3) for _ in range(2))
        middle = np.arange(n)[cut[0]:cut[1]]
        cases = {f".entries/{cut[0]}:{cut[1]}": middle, f".entries/:{cut[1]}": np.arange(n)[:cut[1]], f".entries/{cut[0]}:": np.arange(n)[cut[0]:]}
        if n:
            event = dice.randrange(n)
            tag, record_tag = tags[event], record_tags[event]
            cases[f".event/{event}"] = np.array([event])
            cases[f".where/tag={tag}"] = np.flatnonzero(tags == tag)
            cases[f".where/record_tag={record_tag}"] = np.flatnonzero(record_tags == record_tag)
        if filled:
            bank = dice.choice(filled)
            has = np.diff(every[bank][0]) > 0
            if not set("+,%") & set(bank):
                cases[f".where/require={bank}"] = np.flatnonzero(has)
                cases[f".entries/{cut[0]}:{cut[1]}/.where/require={bank}/.entries/1:4"] = middle[has[middle]][1:4]
        few = {b: every[b] for b in dice.sample(filled, min(3, len(filled)))}
        few |= {b: every[b] for b in list(every)[:1]}
        for path, entries in cases.items():
            for mount in (early, m):  # without counts, and with them
                check(mount / path, few, entries)


def test_only_records_with_entries_are_decoded(hipofs, env, source):
    for path, most in {".entries/500:510": 2, ".entries/503:511": 3, ".event/77": 1, ".entries/0:50/.where/tag=3": 10}.items():
        with mounted(hipofs, env, [source], "--index", "lazy", "--no-index") as m:
            for bank in ("A::Particle", "A::x"):
                for column in columns(m / path / bank):
                    load(m / path / bank / f"{column}.npy")
            assert m.decoded() <= most, path


def test_flags_show_the_same(hipofs, env, source):
    with mounted(hipofs, env, [source]) as m:
        all_x, tags = load(m / "A::Particle" / "x.npy").reshape(-1, 3), load(m / ".hipofs" / "event_tags.npy")
    with mounted(hipofs, env, [source], "--entries", "10:400", "--tag", "1+2", "--require", "A::x") as m:
        want = [e for e in range(10, 400) if tags[e] in (1, 2) and e // EVENTS % 50 == 0]
        assert load(m / ".hipofs" / "entries.npy").tolist() == want
        assert np.array_equal(load(m / "A::Particle" / "x.npy").reshape(-1, 3), all_x[want])
        assert load(m / "A::x" / "@A::Particle.npy").tolist() == [3 * i + 1 for i in range(len(want))]
        assert load(m / ".entries" / "1:2" / ".hipofs" / "entries.npy").tolist() == want[1:2]
    listed = run(hipofs, "ls", source, "--entries", "0:10", env=env).stdout
    assert "10 entries" in listed
    for wrong in (("--entries", "5:1"), ("--tag", "x"), ("--require", "NO::Bank")):
        done = run(hipofs, "ls", source, *wrong, env=env, ok=False)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_an_event_can_be_read_by_people(hipofs, env, source):
    with mounted(hipofs, env, [source]) as m:
        event = json.loads((m / ".event" / "251" / "event.json").read_text())
        assert event["entry"] == 251 and event["record"] == 50 and event["tag"] == 1 and event["file"].endswith("run.hipo")
        assert event["banks"] == [{"name": "A::Particle", "rows": [{"x": 753, "y": 753}, {"x": 754, "y": 754}, {"x": 755, "y": 755}]},
                                  {"name": "A::x", "rows": [{"pindex": 1}]}]
        assert json.loads((m / ".entries" / "200:" / ".event" / "51" / "event.json").read_text()) == event


def test_wrong_names_are_not_there_and_the_log_says_why_once(hipofs, env, source, tmp_path):
    log = tmp_path / "log"
    with mounted(hipofs, env, [source], "--log-file", log) as m:
        for name in (".entries/5:1", ".entries/0x1:2", ".entries/7", ".where/px=1", ".where/tag=a", ".where/require=NO::Bank", ".where/require=A::x,,tag=1"):
            for _ in range(3):
                assert errno_of((m / name).stat) == ENOENT, name
        for name in ("1000", "-1", "a", "1:2"):
            assert errno_of((m / ".event" / name).stat) == ENOENT
        assert list((m / ".where").iterdir()) == list((m / ".entries").iterdir()) == list((m / ".event").iterdir()) == []
    lines = [line for line in log.read_text().splitlines() if "NO::Bank" in line]
    assert len(lines) == 1 and "no bank is called NO::Bank" in lines[0]


def test_names_are_percent_encoded(hipofs, env, tmp_path):
    path = tmp_path / "odd,name+1.hipo"
    x = np.arange(2, dtype="<i4")
    writer.write(path, ["{A+b,c/100/1}{x/I}"], [[writer.event(writer.structure(100, 1, 11, x.tobytes())), writer.event()]])
    with mounted(hipofs, env, [path]) as m:
        assert load(m / ".where" / "require=A%2Bb%2Cc" / ".hipofs" / "entries.npy").tolist() == [0]
        assert len(load(m / ".where" / "file=odd%2C*" / ".hipofs" / "entries.npy")) == 2
        assert len(load(m / ".where" / "file=other*" / ".hipofs" / "entries.npy")) == 0


def test_many_readers_of_many_views(hipofs, env, source):
    with mounted(hipofs, env, [source], "--index", "lazy", "--memory", "1M") as m:
        wrong = []

        def read(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(40):
                a = dice.randrange(RECORDS * EVENTS)
                b = dice.randrange(a, RECORDS * EVENTS)
                x = load(m / ".entries" / f"{a}:{b}" / ".where" / "tag=2" / "A::Particle" / "x.npy")
                want = np.array([3 * e + i for e in range(a, b) if e % EVENTS == 2 for i in range(3)], "<i4")
                if not np.array_equal(x, want):
                    wrong.append((a, b))

        threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
        assert not wrong and not any(t.is_alive() for t in threads)


def test_tar_of_a_view(hipofs, env, source, tmp_path):
    archive = tmp_path / "view.tar"
    with mounted(hipofs, env, [source]) as m:
        run("tar", "cf", archive, "-C", m / ".where" / "tag=4" / ".entries" / "10:20", ".")
        want = (m / ".where" / "tag=4" / ".entries" / "10:20" / "A::Particle" / "x.npy").read_bytes()
    with tarfile.open(archive) as tar:
        assert tar.extractfile("./A::Particle/x.npy").read() == want
        assert len(want) == 128 + 10 * 3 * 4


def test_a_thousand_views_cost_little(hipofs, env, source):
    """Views that nobody has open are forgotten: ten times as many take no more memory."""
    with mounted(hipofs, env, [source], "--memory", "8M") as m:
        def look(count: int) -> int:
            for i in range(count):
                load(m / ".entries" / f"{i % 990}:{i % 990 + 1 + i // 990}" / "A::Particle" / "x.npy")
            return m.json("stats.json")["resident_bytes"]
        look(1000)
        first = look(2000)
        assert look(8000) < first + (24 << 20)
