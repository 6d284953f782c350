"""Columns: .npy files mapped into memory, and banks made of them without a copy. Not here: which ones are asked for."""
from __future__ import annotations

import ctypes
import functools
import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import HipoError
from ._mount import Tree
from ._need import need

if TYPE_CHECKING:
    import awkward as ak

TYPES = {"B": "int8", "S": "int16", "I": "int32", "L": "int64", "F": "float32", "D": "float64"}
HEADER = 4096  # bytes at the beginning of a .npy file, more than its header has

PROT_READ, MAP_SHARED = 1, 1
MAP_FAILED = ctypes.c_void_p(-1).value

# The module mmap keeps a descriptor for each mapping (before Python 3.13), and a process may have fewer descriptors than
# a file has columns.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Column(NamedTuple):
    """A column of a bank.

    name: its true name; type: its HIPO letter, one of B, S, I, L, F, D; length: N of an array column T#N, otherwise 1;
    file: what it is called in the bank's folder.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f.schema("MC::Particle").columns[1])
    Column(name='px', type='F', length=1, file='px.npy')
    """

    name: str
    type: str
    length: int
    file: str

    @property
    def typename(self) -> str:
        """As a user knows the type: "float32", or "float32[3]"."""
        return TYPES[self.type] + (f"[{self.length}]" if self.length > 1 else "")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(TYPES[self.type]).itemsize * self.length


class Schema(NamedTuple):
    """What the dictionary says of a bank: its name, ids, columns, and the folder that it has in the mount.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f.schema("MC::Particle").group, f.schema("MC::Particle").item)
    40 2
    """

    name: str
    group: int
    item: int
    columns: tuple[Column, ...]
    folder: str

    def column(self, name: str) -> Column | None:
        """The column of that name; None where there is none.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.schema("MC::Particle").column("px").type)
        F
        """
        return next((c for c in self.columns if c.name == name), None)


class Columns(NamedTuple):
    """Columns of one bank in some entries: the rows of entry e are offsets[e] to offsets[e+1], offsets[0] is 0.

    columns has (name, values, inner): the flat values of all rows end to end, inner of them a row.
    """

    bank: str
    offsets: NDArray[np.int64]
    columns: list[tuple[str, NDArray[Any], int]]


class NumpyColumn(NamedTuple):
    """A column as plain arrays: what File.numpy gives.

    values: all rows end to end, inner_len values each; offsets: int64, one more than entries: the rows of entry e are
    offsets[e] to offsets[e+1]; inner_len: N of an array column T#N, otherwise 1.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     values, offsets, inner_len = f.numpy("MC::Particle", "px")
    >>> print(len(values), offsets[-1], inner_len)
    99 99 1
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    inner_len: int


class Accessed(NamedTuple):
    """A buffer of a virtual array that was needed: what access_log gets. branch is "BANK/COLUMN", or the bank for offsets.

    >>> import hipofs_ak as hf
    >>> import awkward as ak
    >>> log = []
    >>> with hf.open(source) as f:
    ...     total = ak.sum(f.arrays(access_log=log)["MC::Particle"].px)
    >>> [a.branch for a in log]
    ['MC::Particle', 'MC::Particle/px']
    """

    branch: str
    buffer_key: str


# ---------------------------------------------------------------- files in memory

class Mapped:
    """A range of an open file in memory, for as long as an array of it lives. The file need not stay open."""

    def __init__(self, fd: int, start: int, stop: int, dtype: np.dtype[Any]):
        page = start - start % os.sysconf("SC_PAGE_SIZE")
        self._length = stop - page
        self._address = _libc.mmap(None, self._length, PROT_READ, MAP_SHARED, fd, page)
        if self._address == MAP_FAILED:
            self._address = None
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.__array_interface__ = {
            "version": 3, "typestr": dtype.str, "shape": ((stop - start) // dtype.itemsize,),
            "data": (self._address + start - page, True),
        }

    def __del__(self, munmap: Callable[[int, int], int] = _libc.munmap) -> None:
        if self._address is not None:
            munmap(self._address, self._length)


@functools.lru_cache(1000)
def header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type and first byte of the values, from the bytes before them. Columns of a bank have the same."""
    file = io.BytesIO(head)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is not of version 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, fortran, dtype, file.tell()


class Npy:
    """An open .npy file of a tree; what is what it is called in errors."""

    def __init__(self, tree: Tree, path: str, what: str):
        self._tree, self._what = tree, what
        with tree.reading(what):
            self._path = tree.file(path)
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._read_header(path)
            except BaseException:
                os.close(self._fd)
                raise

    def _read_header(self, path: str) -> None:
        head = os.pread(self._fd, HEADER, 0)
        size = os.fstat(self._fd).st_size
        try:
            shape, fortran, self.dtype, self._data = header(head[:10 + int.from_bytes(head[8:10], "little")])
        except ValueError as e:
            raise HipoError(f"{self._what}: {path} is no .npy file of hipofs: {e}") from None
        if fortran or len(shape) not in (1, 2) or min(shape) < 0 or self.dtype.kind not in "iuf":
            raise HipoError(f"{self._what}: {path} has an array of shape {shape} of {self.dtype}")
        self.rows, self.inner = shape[0], shape[1] if len(shape) == 2 else 1
        if size != self._data + self.rows * self.row_bytes:
            raise HipoError(f"{self._what}: {path} has {size} bytes for {self.rows} rows of {self.row_bytes}")

    @property
    def row_bytes(self) -> int:
        return int(self.dtype.itemsize) * self.inner

    def values(self, first: int, last: int) -> NDArray[Any]:
        """Rows first to last, end to end, mapped."""
        if first >= last or self.row_bytes == 0:
            return empty(self.dtype)
        start, stop = (self._data + row * self.row_bytes for row in (first, last))
        with self._tree.reading(self._what):
            if last - first == self.rows:
                self._use_plain_file(stop)
            mapped: NDArray[Any] = np.asarray(Mapped(self._fd, start, stop, self.dtype))
            return mapped

    def _use_plain_file(self, size: int) -> None:
        """Go on with the plain file of the cache folder, if there is one: the kernel serves it by itself."""
        plain = self._tree.mount.real(self._path)
        if plain is not None:
            with suppress(OSError):
                fd = os.open(plain, os.O_RDONLY | os.O_CLOEXEC)
                if os.fstat(fd).st_size == size:
                    self._fd, fd = fd, self._fd
                os.close(fd)

    def __enter__(self) -> Npy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)


class Kept:
    """Files that one reader has open from step to step, as far as descriptors go."""

    MOST = 200

    def __init__(self) -> None:
        self.files: dict[str, Npy] = {}

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        while self.files:
            self.files.popitem()[1].close()


def opened(tree: Tree, path: str, what: str) -> AbstractContextManager[Npy]:
    """A .npy file of a tree, open, and until when."""
    kept: Kept | None = tree.kept
    if kept is None:
        return Npy(tree, path, what)
    npy = kept.files.get(path) or Npy(tree, path, what)
    if path in kept.files or len(kept.files) < kept.MOST:
        kept.files[path] = npy
        return nullcontext(npy)
    return npy


def empty(dtype: np.dtype[Any]) -> NDArray[Any]:
    """No values, which nobody can write to."""
    none: NDArray[Any] = np.empty(0, dtype)
    none.flags.writeable = False
    return none


class Range(NamedTuple):
    """Entries start to stop of a bank, and where their rows are: a column has values of first to last."""

    offsets: NDArray[np.int64]  # begins with 0
    first: int
    last: int


def entry_range(tree: Tree, schema: Schema, start: int, stop: int) -> Range:
    """The rows of a bank in entries start to stop."""
    with opened(tree, f"{schema.folder}/offsets.npy", schema.name) as npy:
        if npy.rows < stop + 1:
            raise HipoError(f"{schema.name}: offsets.npy has {npy.rows} numbers, and {stop} entries are asked for")
        offsets = npy.values(start, stop + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    return Range(offsets - first if first else offsets, first, last)


def read_column(tree: Tree, schema: Schema, column: Column, at: Range) -> tuple[NDArray[Any], int]:
    """The values of a column in a range of entries, and how many a row has."""
    what = f"{schema.name}/{column.name}"
    with opened(tree, f"{schema.folder}/{column.file}", what) as npy:
        if npy.rows < at.last:
            raise HipoError(f"{what}: {npy.rows} rows, and offsets.npy says {at.last}")
        return npy.values(at.first, at.last), npy.inner


def pointers(tree: Tree, schema: Schema, file: str, start: int, stop: int, target: Range) -> NDArray[np.int64]:
    """Of each row of a bank in entries start to stop, the row of its target there, from a file of such; -1 for none."""
    at = entry_range(tree, schema, start, stop)
    with opened(tree, f"{schema.folder}/{file}", f"{schema.name}/{file}") as npy:
        rows = npy.values(at.first, at.last)
    return np.where(rows < 0, -1, rows - target.first)


def ahead(tree: Tree, selection: Sequence[tuple[Schema, Sequence[Column]]]) -> None:
    """Tell the mount what is about to be read, so that one pass can do for all of it."""
    tree.mount.ahead([f"{s.folder}/{name}" for s, columns in selection for name in ("offsets.npy", *(c.file for c in columns))])


def read_bank(tree: Tree, schema: Schema, columns: Sequence[Column], start: int, stop: int) -> Columns:
    """Columns of a bank in entries start to stop."""
    ahead(tree, [(schema, columns)])
    at = entry_range(tree, schema, start, stop)
    return Columns(schema.name, at.offsets, [(c.name, *read_column(tree, schema, c, at)) for c in columns])


def gather(bank: Columns, entries: NDArray[np.int64]) -> Columns:
    """The bank in a list of entries; one that there is not has no rows."""
    known = (entries >= 0) & (entries < len(bank.offsets) - 1)
    first, last = np.zeros((2, len(entries)), np.int64)
    first[known], last[known] = bank.offsets[entries[known]], bank.offsets[entries[known] + 1]
    offsets = counts_to_offsets(last - first)
    rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], last - first)
    return Columns(bank.bank, offsets, [(name, take(values, inner, rows), inner) for name, values, inner in bank.columns])


def take(values: NDArray[Any], inner: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Some rows of a column, by number or by a mask."""
    some: NDArray[Any] = values.reshape(-1, inner)[rows].reshape(-1) if inner > 1 else values[rows]
    return some


def counts_to_offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Offsets that begin with 0, of rows per entry."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


# ---------------------------------------------------------------- awkward arrays

def layout(offsets: NDArray[np.int64], content: Any) -> Any:
    """Lists of some content, one an entry."""
    ak = need("awkward")
    return ak.contents.ListOffsetArray(ak.index.Index64(offsets), content)


def values_layout(values: NDArray[Any], inner: int) -> Any:
    """The values of a column, in pieces of a row where it is an array column."""
    ak = need("awkward")
    flat = ak.contents.NumpyArray(values)
    return ak.contents.RegularArray(flat, inner) if inner > 1 else flat


def column_array(offsets: NDArray[np.int64], values: NDArray[Any], inner: int) -> ak.Array:
    """One column: N * var * T."""
    return need("awkward").Array(layout(offsets, values_layout(values, inner)))


def bank_layout(bank: Columns) -> Any:
    """A bank: N * var * {column: T}, with one array of offsets for all."""
    ak = need("awkward")
    contents = [values_layout(values, inner) for _, values, inner in bank.columns]
    record = ak.contents.RecordArray(contents, [name for name, _, _ in bank.columns], length=int(bank.offsets[-1]))
    return layout(bank.offsets, record)


def bank_form(schema: Schema, columns: Sequence[Column]) -> Any:
    """The form of bank_layout; its keys are BANK and BANK/COLUMN."""
    ak = need("awkward")

    def column_form(c: Column) -> Any:
        flat = ak.forms.NumpyForm(TYPES[c.type], form_key=f"{schema.name}/{c.name}")
        return ak.forms.RegularForm(flat, c.length) if c.length > 1 else flat

    record = ak.forms.RecordForm([column_form(c) for c in columns], [c.name for c in columns])
    return ak.forms.ListOffsetForm("i64", record, form_key=schema.name)


def virtual(
    tree: Tree, selection: Sequence[tuple[Schema, Sequence[Column]]], start: int, stop: int, *, single: bool,
    access_log: Any | None,
) -> ak.Array:
    """Banks in entries start to stop, of which nothing is read before it is used."""
    awkward = need("awkward")
    container: dict[str, Callable[[], NDArray[Any]]] = {}

    def note(branch: str, key: str) -> None:
        if access_log is not None:
            access_log.__iadd__([Accessed(branch, key)])

    def add_bank(schema: Schema, columns: Sequence[Column]) -> None:
        ranges: list[Range] = []

        def where() -> Range:
            if not ranges:
                ahead(tree, [(schema, columns)])
                ranges.append(entry_range(tree, schema, start, stop))
            return ranges[0]

        def offsets() -> NDArray[np.int64]:
            note(schema.name, key)
            return where().offsets

        def values(c: Column, key: str) -> Callable[[], NDArray[Any]]:
            def read() -> NDArray[Any]:
                note(f"{schema.name}/{c.name}", key)
                return read_column(tree, schema, c, where())[0]
            return read

        key = f"{schema.name}-offsets"
        container[key] = offsets
        for c in columns:
            data = f"{schema.name}/{c.name}-data"
            container[data] = values(c, data)

    for schema, columns in selection:
        add_bank(schema, columns)
    forms = [bank_form(schema, columns) for schema, columns in selection]
    form = forms[0] if single else awkward.forms.RecordForm(forms, [schema.name for schema, _ in selection])
    array: ak.Array = awkward.from_buffers(form, stop - start, container, buffer_key="{form_key}-{attribute}")
    return array
