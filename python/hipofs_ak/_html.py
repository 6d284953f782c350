"""What a notebook shows of a File and of a Bank. Not here: numbers, which would have to be counted first."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ._bank import Schema


def columns(schema: Schema) -> str:
    """The columns of a bank with their types, as a table."""
    rows = "".join(f"<tr><td>{escape(c.name)}</td><td>{escape(c.typename)}</td></tr>" for c in schema.columns)
    return f"<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{rows}</tbody></table>"


def bank(schema: Schema) -> str:
    """A bank, and its columns."""
    return f"<p><b>{escape(schema.name)}</b> {schema.group}/{schema.item}</p>{columns(schema)}"


def file(files: Sequence[str], schemas: Iterable[Schema]) -> str:
    """Files, and their banks, each of which unfolds."""
    named = escape(", ".join(files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    banks = "".join(
        f"<details><summary>{escape(s.name)}, {len(s.columns)} columns</summary>{columns(s)}</details>" for s in schemas)
    return f"<p><b>{named}</b></p>{banks}"
