"""hipofs check finds what is damaged, and nothing else."""
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from damage import INDEX, checked, sweep
from harness import CASES, data, records
from layout import splits

DAMAGED = {"bomb_lz4", "corrupt_checksum", "corrupt_magic", "corrupt_record", "overrun_bank", "ragged_bank", "truncated"}
# Of the cases, those that cannot be read; their README says so.
BAD_CASES = {"empty_file", "header_only_56_bytes", "huge_event_count", "tape_stub", "truncated_last_record"}
MUTANTS = int(os.environ.get("HIPOFS_DAMAGE", "290"))


def test_every_damaged_file_is_found_and_every_other_passes(hipofs, env):
    files = [f for folder in (data("java_ntuple.hipo").parent, data("codecs/small.hipo").parent, CASES)
             for f in sorted(folder.glob("*.hipo"))]
    assert len(files) > 80
    for said in checked(hipofs, env, files):
        assert said["good"] == (Path(said["file"]).stem not in DAMAGED | BAD_CASES), said
        assert all(f["message"].startswith(said["file"]) for f in said["faults"])


def test_damage_is_counted_by_records(hipofs, env):
    for name, records, events in (("corrupt_record", 1, 8), ("corrupt_checksum", 1, 128), ("corrupt_magic", 0, 0), ("small", 0, 0)):
        said, = checked(hipofs, env, [data(f"codecs/{name}.hipo")])
        assert (said["damaged_records"], said["damaged_events"]) == (records, events), name


def test_a_changed_byte_is_found_by_the_index_and_often_without(hipofs):
    found = sweep(hipofs, MUTANTS, seed=5)
    assert [m for f in found for m in f.missed] == []
    assert all(f.with_index == f.mutants for f in found) and sum(f.mutants for f in found) == MUTANTS
    # A checksum covers nearly all of these, and nothing but lengths the plain ones.
    share = {f.file: f.without / f.mutants for f in found}
    for name in ("tag07_v3_lz4hc_percolumn", "tag11_gzip_perbank", "tag12_gzip_percolumn", "tag14_v3_none_percolumn"):
        assert share[name] > 0.7, share
    assert share["tag14_none_percolumn"] < 0.3, share


@pytest.fixture
def indexed(hipofs, env, command, tmp_path):
    """indexed(name) is a copy of a file that has its index beside it."""
    def make(name: str) -> Path:
        path = tmp_path / Path(name).name
        shutil.copyfile(data(name), path)
        assert command("index", "-q", "--beside", path).returncode == 0
        return path
    return make


def test_the_time_of_a_file_proves_nothing(indexed, hipofs, env):
    path = indexed("codecs/tag00_none_perchunk.hipo")
    before, content, index = path.stat(), bytearray(path.read_bytes()), Path(f"{path}{INDEX}").read_bytes()
    content[-2000] ^= 1  # a value: the format shows nothing
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    said, = checked(hipofs, env, [path])
    assert not said["good"] and "not those that were indexed" in said["faults"][0]["message"]
    os.utime(path)  # and it is no excuse for a file that it is younger than its index
    said, = checked(hipofs, env, [path])
    assert not said["good"]
    assert Path(f"{path}{INDEX}").read_bytes() == index, "the index was written"
    assert checked(hipofs, env, [path], "--no-index")[0]["good"]


def test_padding_behind_split_streams_is_compared(indexed, hipofs, env):
    path = indexed("codecs/tag09_lz4_perbank.hipo")
    content = path.read_bytes()
    for record in splits(path):
        last = max(s.off + s.length for s in record.streams)
        pad = (content[record.off + 23] & 3)  # bits 24 and 25 of the bit info, at byte 20
        for at in range(last, last + pad):
            path.write_bytes(content[:at] + b"\1" + content[at + 1:])
            said, = checked(hipofs, env, [path])
            assert not said["good"], f"byte {at}"
            break
        else:
            continue
        break
    else:
        pytest.fail("no record is padded")


def test_a_file_that_has_grown_or_shrunk_differs_from_its_index(indexed, hipofs, env):
    path = indexed("codecs/no_trailer.hipo")
    content = path.read_bytes()
    for change in (content + bytes(56), content[:1664], content[:1700]):  # zeros; a record less; one cut short
        path.write_bytes(change)
        said, = checked(hipofs, env, [path])
        assert not said["good"] and any("when it was indexed" in f["message"] for f in said["faults"]), said
    assert checked(hipofs, env, [path], "--no-index")[0]["good"] is False


def test_a_damaged_index_is_said_and_left_alone(indexed, hipofs, env):
    path = indexed("codecs/small.hipo")
    index = Path(f"{path}{INDEX}")
    index.write_bytes(index.read_bytes()[:-1])
    said, = checked(hipofs, env, [path])
    assert said["good"] and said["index"] == "" and "of no use" in said["notes"][0]
    assert index.exists()


def test_what_is_in_one_file_does_not_depend_on_the_others(hipofs, env, command, tmp_path):
    files = [data("codecs/small.hipo"), tmp_path / "gone.hipo", data("codecs/corrupt_record.hipo"), data("java_ntuple.hipo")]
    done = command("check", "--json", "-q", *files)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [s["good"] for s in said] == [True, False, False, True] and done.returncode == 3
    assert "no such file" in said[1]["faults"][0]["message"]


@pytest.mark.parametrize("name", ["codecs/plain.hipo", "codecs/tag01_lz4_perchunk.hipo", "codecs/tag07_lz4hc_percolumn.hipo"])
def test_salvage_gives_every_complete_record_before_a_cut(name, hipofs, env, command, tmp_path):
    content, whole = data(name).read_bytes(), records(data(name))
    cut, out = tmp_path / "cut.hipo", tmp_path / "saved.hipo"
    ends = [r.at + r.length for r in whole]
    places = sorted({at + d for at in [whole[0].at, *ends] for d in (-1, 0, 1, 40, 60)} | set(range(whole[0].at, ends[-1], len(content) // 12)))
    for at in places:
        if not whole[0].at <= at < len(content):
            continue
        # As a writer that was killed leaves it: the header has no trailer yet.
        cut.write_bytes((content[:40] + bytes(8) + content[48:])[:at])
        kept = [r for r in whole if r.at + r.length <= at]
        done = command("check", "-q", "--no-index", "--force", "--salvage", out, cut)
        # A cut between two records of a file without a trailer does not show.
        assert done.returncode == (0 if at in [whole[0].at, *ends] else 3), (at, done.stderr)
        assert f"{sum(r.events for r in kept)} event" in done.stderr, (at, done.stderr)
        if kept:
            saved = records(out)
            assert [content[r.at + 8:r.at + r.length] for r in kept] == [
                out.read_bytes()[s.at + 8:s.at + s.length] for s in saved], at  # all but the records' numbers
            assert checked(hipofs, env, [out], "--no-index")[0]["good"], at


def test_salvage_and_skip_leave_out_what_only_the_index_can_tell(hipofs, env, command, mount, tmp_path):
    """A bit of a value that is stored as it is."""
    source, out = tmp_path / "a.hipo", tmp_path / "saved.hipo"
    shutil.copyfile(data("codecs/tag00_none_perchunk.hipo"), source)
    whole, before = records(source), source.stat()
    command("index", "-q", source)
    bad = max(whole, key=lambda r: r.length)
    with open(source, "r+b") as f:
        f.seek(bad.at + bad.length - 9)
        b = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([b ^ 1]))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    good = sum(r.events for r in whole) - bad.events
    done = command("check", "-q", "--salvage", out, source)
    assert done.returncode == 3 and f"{good} event" in done.stderr and f"{bad.events} lost" in done.stderr, done.stderr
    m = mount(source, "--on-error=skip")
    files, = m.json("files.json")
    assert (files["entries"], files["lost_events"]) == (good, bad.events)
    assert "not those that were indexed" in m.json("errors.json")[0]["message"]
