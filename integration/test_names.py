"""More than 500 names as a file may have them, and what the mount makes of them.

The encoding is written here a second time, from its description, so that it is not the code that says what is right.
"""
from __future__ import annotations

import hashlib
import json
import os
import re

import pytest

from harness import load
from writer import event, json_schema, structure, write

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def shown(name: str, what: str) -> str:
    """The file name of a bank or column, without .npy. A byte that is not UTF-8 is a lone surrogate, as os.fsdecode has it."""
    out = []
    tilde = re.search(r"~([0-9]+|[0-9a-f]{8})\Z", name)
    for i, c in enumerate(name):
        if (c in "/%" or ord(c) < 32 or 127 <= ord(c) < 160 or c in BIDI or "\udc80" <= c <= "\udcff"
                or i == 0 and c in ".@" or tilde and i == tilde.start()):
            out += [f"%{b:02X}" for b in os.fsencode(c)]
        else:
            out.append(c)
    pieces = "".join(out)
    if what == "bank" and pieces.endswith(".arrow"):
        pieces = pieces[:-6] + "%2Earrow"
    if what == "bank" and pieces == "CACHEDIR.TAG" or what == "column" and pieces == "offsets":
        pieces = f"%{ord(pieces[0]):02X}{pieces[1:]}"
    if len(os.fsencode(pieces)) <= 255 - len(".arrow" if what == "bank" else ".npy"):
        return pieces
    kept = os.fsencode(pieces)[:200].decode("utf-8", "ignore")
    kept = re.sub(r"%.?\Z", "", kept)  # not a part of an escape
    return f"{kept}~{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


def names() -> list[str]:
    special = [chr(i) for i in range(33)] + list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\x7f") + list("\x80\x85\x9f\xa0\xad\ufeff\ufffd") + list(BIDI)
    found = [w for c in special for w in (c, f"{c}a", f"a{c}b", f"a{c}", c * 2)]
    found += ["offsets", "Offsets", "schema.json", "form.json", "CACHEDIR.TAG", "cachedir.tag", ".hipofs", ".nodes", ".files", ".entries", ".where",
              ".event", ".ignore", "@entry", "@REC::Particle", "x.npy", "x.arrow", ".arrow", "x.npy.arrow", "x%2Earrow", "%", "%%", "%2F", "%2f", "%GG",
              "a/../../etc/passwd", "../up", "/etc/passwd", "a//b", "~", "~~", "x~", "x~2", "x~02", "x~2~3", "x~2y", "x~0123abcd", "x~0123abcg",
              "x~0123ABCD", "~2", "con", "NUL", "aux.npy", "-rf", "--help", "$(id)", "`id`", "a b", " a", "a;b", "*", "?", "[a]", "\x1b[31mred",
              "REC::Particle", "REC::particle", "rec::Particle", "MC::Particle", "MC::particle", "REC.Particle", "a:b", "::", ":::a", "a::"]
    found += ["é", "e\u0301", "ﬁ", "fi", "Å", "A\u030a", "\u212b", "ß", "ẞ", "İ", "ı", "日本", "🜁", "👩\u200d👦", "עברית", "\u0430", "a\u0300" * 20]
    found += [unit * n + end for unit in ("b", "é", "/", "%", "日", "🜁", ".") for n in (50, 62, 66, 83, 84, 100, 125, 126, 199, 200, 201, 249, 250, 251, 252)
              for end in ("", "x")]
    found += ["c" * n for n in range(240, 262)] + ["c" * n + ".arrow" for n in (240, 243, 244, 249)] + ["c" * n + "~7" for n in (246, 247, 248, 249)]
    return list(dict.fromkeys(found))


NOT_UTF8 = ["\udcff", "a\udcc3", "\udcc3(", "é\udc80", "\udced\udca0\udc80", "\udcc0\udcae", "x\udcfe~2"]


@pytest.mark.parametrize("what", ["bank", "column"])
def test_every_name_is_shown_as_it_can_be_and_can_be_asked_for(what, mount, tmp_path):
    given = names()
    assert len(given) >= 500
    if what == "bank":
        schemas = [json_schema(n, 1000 + i // 200, 1 + i % 200, ["v"]) for i, n in enumerate(given)]
        schemas += [f"{{{n}/3000/{1 + i}}}{{v/I}}" for i, n in enumerate(NOT_UTF8)]
        given = given + NOT_UTF8
    else:
        given = [n for n in given if n == n.strip() and n != "\ufeff"]  # what surrounds the name of a column is not of it
        schemas = [json_schema("B", 1, 1, given)]
    write(tmp_path / "names.hipo", schemas, [[event(structure(1, 1, 11, b"".join(i.to_bytes(4, "little") for i in range(len(given)))))]
                                             if what == "column" else [event()]])
    m = mount(tmp_path / "names.hipo")
    folder = m.point if what == "bank" else m / "B"
    want = {n: shown(n, what) + (".npy" if what == "column" else "") for n in given}
    assert len(set(want.values())) == len(want), "two names became one"
    fixed = {"bank": {".nodes", ".files", ".entries", ".where", ".event", ".hipofs", "CACHEDIR.TAG", ".ignore", ".trackerignore", ".metadata_never_index"},
             "column": {"offsets.npy", "@entry.npy", "schema.json", "form.json"}}[what]
    listed = os.listdir(folder)
    assert len(listed) == len(set(listed)) and fixed <= set(listed)
    arrow = {f"{file}.arrow" for file in want.values()} if what == "bank" else set()
    assert set(listed) - fixed == set(want.values()) | arrow
    inodes = set()
    for i, (name, file) in enumerate(want.items()):
        path = folder / file
        assert len(os.fsencode(file)) <= 255
        assert os.getxattr(path, "user.hipofs.name") == os.fsencode(name), file
        inodes.add(path.lstat().st_ino)
        if what == "bank":
            assert os.getxattr(f"{path}.arrow", "user.hipofs.name") == os.fsencode(name), file
            assert os.fsencode(json.loads((path / "schema.json").read_text())["name"]) == os.fsencode(name)
        elif i % 10 == 0:
            assert load(path).tolist() == [i], name
    assert len(inodes) == len(want)


def test_a_column_name_that_appears_twice_is_numbered(mount, tmp_path):
    write(tmp_path / "twice.hipo", [json_schema("B", 1, 1, ["x", "x", "x~2", "x"])],
          [[event(structure(1, 1, 11, b"".join(i.to_bytes(4, "little") for i in range(4))))]])
    m = mount(tmp_path / "twice.hipo")
    assert {n: load(m / f"B/{n}.npy").tolist() for n in ("x", "x~2", "x%7E2", "x~3")} == {"x": [0], "x~2": [1], "x%7E2": [2], "x~3": [3]}


def test_names_that_differ_in_case_only_are_told_where_it_may_matter(mount, tmp_path):
    write(tmp_path / "case.hipo", ["{MC::Particle/1/1}{v/I}", "{MC::particle/1/2}{v/I}", "{MC::Other/1/3}{v/I}"], [[event()]])
    colons = mount(tmp_path / "case.hipo")
    assert colons.said == "" and {"MC::Particle", "MC::particle"} <= set(os.listdir(colons.point))
    dots = mount(tmp_path / "case.hipo", "--names=dot")
    assert {"MC.Particle", "MC.particle"} <= set(os.listdir(dots.point))
    line, = dots.said.splitlines()
    assert "MC::Particle and MC::particle" in line and "case" in line
    assert mount(tmp_path / "case.hipo", "--names=dot", "--quiet").said == ""
    assert mount(tmp_path / "case.hipo", "--names=dot", "--banks=MC::O*,MC::P*").said == ""
