"""What library= and how= make of columns. Not here: reading them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._bank import Columns, NumpyColumn, bank_layout
from ._errors import HipoValueError
from ._need import need

LIBRARIES = ("ak", "np", "np_flat", "pd", "pl", "arrow")


def check(library: str, how: Any) -> None:
    """Refuse what assemble would."""
    if library not in LIBRARIES:
        raise HipoValueError(f"unknown library {library!r} (expected {', '.join(map(repr, LIBRARIES))})")
    if how not in (None, tuple, list, dict, "zip"):
        raise HipoValueError(f"unknown how={how!r} (expected None, tuple, list, dict or 'zip')")


def assemble(banks: Sequence[Columns], single: bool, library: str, how: Any = None) -> Any:
    """Banks as a library has them; single says that one bank was named, and that its columns need no name of it."""
    parts = {"ak": _awkward, "np": _objects, "np_flat": _flat, "pd": _frames, "pl": _polars, "arrow": _arrow}[library]
    return arranged(parts(banks, single), single, library, how)


def arranged(result: Any, single: bool, library: str, how: Any) -> Any:
    """A result in the container that how= asks for."""
    if how is None or how == "zip":
        return result
    if library == "ak":
        named = {name: result[name] for name in result.fields}
    elif library == "arrow":
        named = dict(zip(result.column_names, result.columns))
    elif library in ("pd", "pl") and single:
        named = {name: result[name] for name in result.columns}
    else:
        named = result
    return named if how is dict else how(named.values())


def array_of_banks(layouts: Sequence[Any], names: Sequence[str], single: bool) -> Any:
    """Layouts of banks as one array."""
    ak = need("awkward")
    if single:
        return ak.Array(layouts[0])
    return ak.Array(ak.contents.RecordArray(list(layouts), list(names), length=None if layouts else 0))


def _awkward(banks: Sequence[Columns], single: bool) -> Any:
    return array_of_banks([bank_layout(b) for b in banks], [b.bank for b in banks], single)


def _named(banks: Sequence[Columns], single: bool) -> list[tuple[str, NDArray[np.int64], NDArray[Any], int]]:
    return [(name if single else f"{b.bank}/{name}", b.offsets, values, inner)
            for b in banks for name, values, inner in b.columns]


def objects(offsets: NDArray[np.int64], values: NDArray[Any], inner: int) -> NDArray[np.object_]:
    """An array of arrays, one an entry, which are views of the values."""
    rows = values.reshape(-1, inner) if inner > 1 else values
    bounds = offsets.tolist()
    out = np.empty(len(bounds) - 1, object)
    for e in range(len(out)):
        out[e] = rows[bounds[e]:bounds[e + 1]]
    return out


def _objects(banks: Sequence[Columns], single: bool) -> dict[str, NDArray[np.object_]]:
    return {name: objects(offsets, values, inner) for name, offsets, values, inner in _named(banks, single)}


def _flat(banks: Sequence[Columns], single: bool) -> dict[str, NumpyColumn]:
    return {name: NumpyColumn(values, offsets, inner) for name, offsets, values, inner in _named(banks, single)}


def _frame(bank: Columns) -> Any:
    """A data frame with a row for each row, indexed by entry and subentry. An entry without rows is not in it."""
    pd = need("pandas")
    if any(inner > 1 for _, _, inner in bank.columns) or not bank.columns:
        frame = need("awkward").to_dataframe(need("awkward").Array(bank_layout(bank)))
    else:
        counts = np.diff(bank.offsets)
        entry = np.repeat(np.arange(len(counts)), counts)
        subentry = np.arange(bank.offsets[-1]) - np.repeat(bank.offsets[:-1], counts)
        index = pd.MultiIndex.from_arrays([entry, subentry], names=["entry", "subentry"])
        frame = pd.DataFrame({name: values for name, values, _ in bank.columns}, index, copy=False)
    frame.attrs["num_entries"] = len(bank.offsets) - 1
    return frame


def _frames(banks: Sequence[Columns], single: bool) -> Any:
    return _frame(banks[0]) if single else {b.bank: _frame(b) for b in banks}


def _arrow(banks: Sequence[Columns], single: bool) -> Any:
    """A table with a large list an entry in each column, around the same memory; nothing of it can be null."""
    pa = need("pyarrow")
    columns, fields = [], []
    for name, offsets, values, inner in _named(banks, single):
        item = pa.array(values)
        if inner > 1:
            item = pa.FixedSizeListArray.from_arrays(item, inner)
        columns.append(pa.LargeListArray.from_arrays(pa.array(offsets), item))
        fields.append(pa.field(name, pa.large_list(pa.field("item", item.type, nullable=False)), nullable=False))
    return pa.table(columns, schema=pa.schema(fields))


def _polars(banks: Sequence[Columns], single: bool) -> Any:
    """A frame with a list an entry in each column; of several banks, one frame each."""
    pl = need("polars")
    if single:
        return pl.from_arrow(_arrow(banks, True))
    return {b.bank: pl.from_arrow(_arrow([b], True)) for b in banks}
