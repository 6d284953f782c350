"""The command refuses what cannot be mounted: one sentence, and the exit status of its cause."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import CASES, data, mounts
from writer import event, structure, write


def sentence(done) -> str:
    """Standard error, which is one line from hipofs."""
    line, = done.stderr.splitlines()
    assert line.startswith("hipofs: ") and "\x1b" not in line
    return line


@pytest.fixture
def point(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    assert not mounts(path)


def test_unknown_option_is_wrong_usage(command, point):
    done = command("--no-such-option", data("codecs/small.hipo"), point)
    assert done.returncode == 2 and "--no-such-option" in done.stderr


@pytest.mark.parametrize("value", ["--memory=much", "--on-error=shrug", "--index=sometimes", "--threads=-1", "--names=latin"])
def test_an_option_with_a_bad_value_is_wrong_usage(value, command, point):
    done = command(value, data("codecs/small.hipo"), point)
    assert done.returncode == 2 and value.split("=")[0][2:] in done.stderr


def test_a_last_argument_that_is_a_hipo_file_asks_for_the_mount_point(command):
    done = command(data("codecs/small.hipo"), data("codecs/tiny.hipo"))
    assert done.returncode == 2 and "where is the mount point?" in sentence(done)


def test_no_arguments_is_wrong_usage(command):
    done = command()
    assert done.returncode == 2 and done.stdout == "" and done.stderr


def test_a_missing_mount_point(command, tmp_path):
    done = command(data("codecs/small.hipo"), tmp_path / "absent")
    assert done.returncode == 7 and str(tmp_path / "absent") in sentence(done)


def test_a_mount_point_that_is_a_file(command, tmp_path):
    (tmp_path / "file").write_text("")
    done = command(data("codecs/small.hipo"), tmp_path / "file")
    assert done.returncode == 7 and str(tmp_path / "file") in sentence(done)


def test_a_mount_point_that_is_not_empty(command, point):
    (point / "x").write_text("")
    done = command(data("codecs/small.hipo"), point)
    assert done.returncode == 7 and str(point) in sentence(done)


def test_a_missing_source(command, point, tmp_path):
    done = command(tmp_path / "absent.hipo", point)
    assert done.returncode == 3 and "absent.hipo" in sentence(done)


def test_an_empty_folder(command, point, tmp_path):
    (tmp_path / "empty").mkdir()
    done = command(tmp_path / "empty", point)
    assert done.returncode == 3 and str(tmp_path / "empty") in sentence(done)


def test_a_pattern_without_match(command, point, tmp_path):
    done = command(str(tmp_path / "run.*.hipo"), point)
    assert done.returncode == 3 and "run.*.hipo" in sentence(done)


@pytest.mark.parametrize("name, content, says", [
    ("text.hipo", b"hello, this is a text file and not HIPO at all\n" * 4, "not"),
    ("evio.hipo", bytes.fromhex("4556494f") + bytes(60), "EVIO"),
    ("zero.hipo", b"", "empty"),
])
def test_what_is_not_hipo_is_called_by_its_name(name, content, says, command, point, tmp_path):
    (tmp_path / name).write_bytes(content)
    done = command(tmp_path / name, point)
    line = sentence(done)
    assert done.returncode == 3 and name in line and says.lower() in line.lower()


def test_an_older_version_is_named(command, point, tmp_path):
    old = bytearray(data("codecs/small.hipo").read_bytes())
    assert old[20] == 6
    old[20] = 5
    (tmp_path / "old.hipo").write_bytes(old)
    done = command(tmp_path / "old.hipo", point)
    assert done.returncode == 3 and "version 5" in sentence(done)


def test_one_bad_file_refuses_the_chain_and_skip_leaves_it_out(command, mount, point):
    good, bad = data("codecs/small.hipo"), CASES / "empty_file.hipo"
    done = command(good, bad, point)
    assert done.returncode == 3 and "empty_file.hipo" in sentence(done)
    m = mount([good, bad], "--on-error=skip")
    assert "empty_file.hipo" in m.said
    served, left_out = m.json("files.json")
    assert served["entries"] == 24 and "left_out" not in served and left_out["left_out"]


def test_every_file_bad_leaves_nothing_to_mount(command, point):
    done = command("--on-error=skip", CASES / "empty_file.hipo", point)
    assert done.returncode == 3


def conflict(folder: Path, *schemas: str) -> list[Path]:
    paths = [folder / f"{i}.hipo" for i in range(len(schemas))]
    for path, schema in zip(paths, schemas):
        write(path, [schema, "{Same/2/1}{v/I}"], [[event(structure(2, 1, 11, bytes(4)))]])
    return paths


@pytest.mark.parametrize("a, b", [
    ("{B/1/1}{x/I}", "{B/1/1}{x/F}"),
    ("{B/1/1}{x/I}", "{B/1/2}{x/I}"),
    ("{B/1/1}{x/I}", "{B/1/1}{x/I,y/I}"),
    ("{B/1/1}{x/I,y/I}", "{B/1/1}{y/I,x/I}"),
    ("{B/1/1}{x/I#2}", "{B/1/1}{x/I#3}"),
    ("{B/1/1}{x/I}", "{C/1/1}{x/D}"),
])
def test_a_conflict_of_dictionaries_names_both_files(a, b, command, mount, point, tmp_path):
    paths = conflict(tmp_path, a, b)
    done = command(*paths, point)
    line = sentence(done)
    assert done.returncode == 4 and "0.hipo" in line and "1.hipo" in line and "B" in line
    m = mount(paths, "--banks=Same")
    assert os.listdir(m / "Same") and len((m / "Same/v.npy").read_bytes()) % 64 == 8


def test_one_id_under_two_names_is_served_under_both(mount, tmp_path):
    paths = conflict(tmp_path, "{B/1/1}{x/I}", "{C/1/1}{x/I}")
    m = mount(paths)
    assert {"B", "C", "Same"} <= set(os.listdir(m))


def test_ls_shows_banks_and_columns(command):
    done = command("ls", data("cpp_golden_lz4.hipo"))
    assert done.returncode == 0
    assert "REC::Particle" in done.stdout and "px" in done.stdout and "24" in done.stdout


def test_help_and_version(command):
    for args in (["help"], ["--help"], ["help", "umount"], ["version"]):
        done = command(*args)
        assert done.returncode == 0 and done.stdout and done.stderr == "", args
    assert "Exit status" in command("--help").stdout
