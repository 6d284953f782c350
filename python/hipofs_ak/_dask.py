"""Partitions of a File for dask-awkward, which must be installed to import this. Not here: anything that works without."""
from __future__ import annotations

import functools
import pickle
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dask_awkward as dak
from dask_awkward.lib.io.columnar import ColumnProjectionMixin
from dask_awkward.lib.unproject_layout import unproject_layout

from . import _bank, _library
from ._bank import Column, Schema
from ._need import need

if TYPE_CHECKING:
    from ._file import File

Selection = Sequence[tuple[Schema, Sequence[Column]]]


class Read(ColumnProjectionMixin):  # type: ignore[misc]
    """Reads one partition, wherever it runs. dask-awkward asks it for fewer columns when fewer are used.

    A process to which it is sent opens the files for itself, once, whatever the number of partitions that it reads.
    """

    behavior = None
    attrs = None
    use_optimization = True

    def __init__(self, file: File, selection: Selection, single: bool, cut: str | None, form: Any):
        self._file, self._selection, self._single, self._cut, self.form = file, selection, single, cut, form

    def __call__(self, entries: tuple[int, int]) -> Any:
        if self._cut is not None:
            (schema, columns), = self._selection
            read = self._file.arrays(
                schema.name, [c.name for c in columns], cut=self._cut, entry_start=entries[0], entry_stop=entries[1])
        else:
            tree = self._file._open()
            banks = [_bank.read_bank(tree, schema, columns, *entries) for schema, columns in self._selection]
            read = _library.assemble(banks, self._single, "ak")
        # Who wants the number of rows alone names a field that needs no reading, and that must be there.
        return need("awkward").Array(unproject_layout(self.form, read.layout))

    def project_columns(self, columns: frozenset[str]) -> Read:
        """The same of some columns, each named by the fields that lead to it, with dots between."""
        def wanted(name: str) -> bool:
            return any(f"{c}.".startswith(f"{name}.") or f"{name}.".startswith(f"{c}.") for c in columns)

        some = [(schema, [c for c in of if wanted(c.name if self._single else f"{schema.name}.{c.name}")])
                for schema, of in self._selection]
        some = [(schema, of) for schema, of in some if of]
        return Read(self._file, some, self._single, self._cut, self.form) if some else self

    def __reduce__(self) -> tuple[Any, ...]:
        file = pickle.dumps(self._file)
        _here[file] = self._file
        return _received, (file, self._selection, self._single, self._cut, self.form)


# Files that were sent, should they come back to the process that they are of.
_here: weakref.WeakValueDictionary[bytes, File] = weakref.WeakValueDictionary()


def _received(file: bytes, selection: Selection, single: bool, cut: str | None, form: Any) -> Read:
    return Read(_here.get(file) or _opened(file), selection, single, cut, form)


@functools.lru_cache(maxsize=4)
def _opened(file: bytes) -> File:
    """The File that another process has sent."""
    opened: File = pickle.loads(file)
    return opened


def array(file: File, selection: Selection, single: bool, cut: str | None, parts: Sequence[tuple[int, int]]) -> Any:
    """A dask-awkward array with a partition for each range of entries."""
    ak = need("awkward")
    if cut is None:
        forms = [_bank.bank_form(schema, columns) for schema, columns in selection]
        form = forms[0] if single else ak.forms.RecordForm(forms, [schema.name for schema, _ in selection])
    else:
        (schema, columns), = selection
        form = file.arrays(schema.name, [c.name for c in columns], cut=cut, entry_start=0, entry_stop=0).layout.form
    meta = ak.Array(form.length_zero_array(highlevel=False).to_typetracer(forget_length=True))
    # A cut may leave fewer entries, and how many is not known before it is made.
    divisions = None if cut is not None else (parts[0][0], *(stop for _, stop in parts))
    return dak.from_map(Read(file, selection, single, cut, form), parts, meta=meta, divisions=divisions, label="from-hipo")
