#!/usr/bin/env python3
"""Writes docs/oxihipo.md: every public name of oxihipo's read interface, and what hipofs_ak has in its place.

    oxihiponames.py >docs/oxihipo.md

Names and parameters are those of the installed packages; a name that hipofs_ak lacks must have a reason here.
"""
from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import oxihipo

import hipofs_ak

# What writes files and has no counterpart: hipofs writes by its commands.
WRITING = {"Writer", "create", "recreate", "update"}

ABSENT = {
    "FileHeader": "what its fields say is not the same from one writer to the next",
    "Chain.composite_columns": "an inner of oxihipo: use `composite`",
    "Chain.file_header": "what its fields say is not the same from one writer to the next",
    "Chain.read_columns_at": "an inner of oxihipo: use `arrays(…, entries=[…])`",
    "Chain.set_event_tag": "hipofs never writes into a file",
    "Chain.set_event_tags": "hipofs never writes into a file",
    "Chain.user_config": "an inner of oxihipo: use `config`",
}

# Where the same call means something else.
OTHERWISE = {
    "CorruptFileError": "has also `.file`, `.record` and `.byte`",
    "Chain": "is called `File`; `Chain` is another name for it",
    "OxihipoError": "is called `HipoError`; `OxihipoError` is another name for it",
    "open": "a glob without a match is a `FileNotFoundError`; a mount can be opened, too",
    "pdg_mass": "codes that its table lacks are looked up in the package `particle`, if that is installed",
    "pdg_name": "the same; names of a jagged array are lists of lists",
    "skim": "an existing file is replaced with `force=True` alone",
    "Chain.arrays": "`cut` is read as an expression and never run as code; negative numbers of entries count from the end",
    "Chain.close": "arrays stay valid",
    "Chain.filtered": "`require` wants rows, not an empty bank; `len()` is the number of entries that pass, and entry numbers count them",
    "Chain.iterate": "steps have exactly `step_size` entries, but for the last of a file",
    "Chain.skim": "an existing file is replaced with `force=True` alone; `tags` and `tag_names` are refused",
    "Chain.to_dask": "partitions have exactly `step_size` entries, but for the last of a file",
    "Chain.to_parquet": "the file appears when it is whole",
}


class Line(NamedTuple):
    name: str
    here: str  # "same", or "no"
    remark: str


def names() -> Iterator[tuple[str, Any, Any]]:
    """Each name, what it is in oxihipo, and in hipofs_ak (None: nothing)."""
    for name in sorted(oxihipo.__all__):
        if name not in WRITING:
            yield name, getattr(oxihipo, name), getattr(hipofs_ak, name, None)
    inner = type(oxihipo.Chain.__new__(oxihipo.Chain)), oxihipo._oxihipo.Chain
    for name in sorted({n for c in inner for n in dir(c) if not n.startswith("_")}):
        theirs = getattr(inner[0], name, None) or getattr(inner[1], name)
        yield f"Chain.{name}", theirs, getattr(hipofs_ak.File, name, None)


def fits(theirs: Any, ours: Any) -> str:
    """Why a call of theirs is no call of ours; "" where every one is."""
    if not callable(theirs) or inspect.isclass(theirs):
        return "" if callable(theirs) == callable(ours) else "one of them is called, the other not"
    want = inspect.signature(theirs).parameters
    got = inspect.signature(ours).parameters
    if any(p.kind is p.VAR_KEYWORD for p in want.values()):  # it hands them to the method of that name
        want = {n: p for n, p in want.items() if p.kind is not p.VAR_KEYWORD}
    positional = [p for p in got.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for i, p in enumerate(want.values()):
        if p.kind is p.KEYWORD_ONLY:
            mine = got.get(p.name)
        else:
            mine = positional[i] if i < len(positional) else None
            if mine is not None and mine.name != p.name and (p.kind is not p.POSITIONAL_ONLY and p.name not in ("path",)):
                return f"its parameter {p.name} is called {mine.name}"
        if mine is None:
            return f"there is no parameter {p.name}"
        if repr(mine.default) != repr(p.default) and p.name != "self":
            return f"{p.name} is {mine.default!r} by default, not {p.default!r}"
    return ""


def lines() -> list[Line]:
    out = []
    for name, theirs, ours in names():
        if ours is None:
            out.append(Line(name, "no", ABSENT[name]))
            continue
        assert name not in ABSENT, f"{name} is here"
        wrong = fits(theirs, ours)
        assert not wrong, f"{name}: {wrong}"
        out.append(Line(name, "same", OTHERWISE.get(name, "")))
    return out


def page() -> str:
    rows = "".join(f"| `{r.name}` | {r.here} | {r.remark} |\n" for r in lines())
    return f"""\
# From oxihipo to hipofs_ak

Every public name of the read interface of oxihipo {version("oxihipo")}. Where it says "same", a call that oxihipo takes is taken by
`hipofs_ak`, with the same names, order and defaults of its parameters, and gives the same; a remark says what differs.
`threads` and, but for `map_reduce`, `workers` are taken and change nothing: hipofs decodes with all processors, once for
all who read.
So `import hipofs_ak as hf` instead of `import oxihipo as hf` is all that a program needs to change.

This page is written by `integration/oxihiponames.py`, which looks into both packages.

| oxihipo | hipofs_ak | |
|---|---|---|
{rows}
What writes files, {", ".join(f"`{name}`" for name in sorted(WRITING))}, is not here: `hipofs skim` and `hipofs pack` write.
"""


if __name__ == "__main__":
    print(page(), end="")
