"""A chain of HIPO files as a user has it in hand: File and Bank. Not here: mounts, memory, awkward layouts."""
from __future__ import annotations

import bisect
import fnmatch
import functools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from . import _bank, _cut, _html, _iterate, _library, _out, _physics
from ._bank import Column, Columns, Npy, NumpyColumn, Schema
from ._errors import HipoError, HipoValueError, missing, not_found
from ._export import Exported, tell
from ._iterate import Report
from ._mount import Mount, NoFUSE, OwnMount, Tree, is_tree
from ._need import need
from ._out import SkimSummary

if TYPE_CHECKING:
    import awkward as ak

Path = str | os.PathLike[str]
Source = Path | Sequence[Path]
Names = str | Sequence[str] | None
Step = int | str

NODE = re.compile(r"[0-9]+\.[0-9]+")  # what a structure without a name is called: GROUP.ITEM
VIEW = re.compile(r"\.(entries|where|event|files)/(?!\.\.?(/|$))[^/]+(/\.(entries|where|event|files)/(?!\.\.?(/|$))[^/]+)*")
LONG = 200  # characters of one condition in the path of a view


class Occupancy(NamedTuple):
    """How much of a bank there is.

    rows: in all entries; entries: how many of them have rows; most: the largest number of rows of one.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f.occupancy()["MC::Particle"])
    Occupancy(rows=99, entries=99, most=1)
    """

    rows: int
    entries: int
    most: int


class Event(NamedTuple):
    """One entry with all that is in it.

    entry: its number in the chain; file, record: where it is; tag, record_tag: its tags; banks: by name, each row as a
    dict of its columns. Structures without a name are called GROUP.ITEM.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f.event(2)["MC::Particle"][0]["pid"])
    2212
    """

    entry: int
    file: str
    record: int
    tag: int
    record_tag: int
    banks: dict[str, list[dict[str, Any]]]

    def __getitem__(self, bank: Any) -> Any:
        return self.banks[bank] if isinstance(bank, str) else tuple(self)[bank]


class Bank:
    """A bank of a File, from file["REC::Particle"].

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f["MC::Particle"].keys())
    ['pid', 'px', 'py', 'pz', 'vx', 'vy', 'vz', 'vt']
    """

    def __init__(self, file: File, name: str):
        self._file, self.name = file, name

    def keys(self) -> list[str]:
        """Its columns.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f["MC::Particle"].keys()[:2])
        ['pid', 'px']
        """
        return self._file.columns(self.name)

    def typenames(self) -> dict[str, str]:
        """The type of each column: "float32", or "float32[3]" for an array column.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f["MC::Particle"].typenames()["px"])
        float32
        """
        return {c.name: c.typename for c in self._file.schema(self.name).columns}

    def array(
        self, column: str, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0,
    ) -> ak.Array:
        """One column, as File.array gives it.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f["MC::Particle"].array("pid", entry_stop=3))
        [[], [], [2212]]
        """
        return self._file.array(self.name, column, entry_start=entry_start, entry_stop=entry_stop, threads=threads)

    def arrays(
        self, columns: Names = None, *, library: str = "ak", entry_start: int | None = None,
        entry_stop: int | None = None, entries: Sequence[int] | None = None, cut: str | None = None,
        aliases: Mapping[str, str] | None = None, how: Any = None, virtual: bool | None = None,
        access_log: Any | None = None, threads: int = 0, workers: int = 1,
    ) -> Any:
        """Its columns, as File.arrays gives them.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f["MC::Particle"].arrays(["pid"], entry_stop=3))
        [[], [], [{pid: 2212}]]
        """
        return self._file.arrays(
            self.name, columns, library=library, entry_start=entry_start, entry_stop=entry_stop, entries=entries, cut=cut,
            aliases=aliases, how=how, virtual=virtual, access_log=access_log, threads=threads, workers=workers)

    def __getitem__(self, column: str) -> ak.Array:
        return self.array(column)

    def __contains__(self, column: object) -> bool:
        return column in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return f"<hipofs_ak.Bank {self.name!r}: {self.keys()}>"

    def _repr_html_(self) -> str:
        return _html.bank(self._file.schema(self.name))


class File:
    """HIPO files as one chain; from hipofs_ak.open. Safe for use by many threads, and in forks of a process.

    mount: the folder with the tree of .npy files; sources: the names of the files; options: what open was given.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(len(f), f.arrays("MC::Particle", ["pid"]).type)
    101 101 * var * {pid: int32}
    """

    def __init__(self, tree: Tree, sources: Sequence[str] | None, options: Mapping[str, str | int], parent: File | None = None):
        self._tree, self._sources, self.options = tree, sources, dict(options)
        self._parent = parent  # of a view
        self._closed = False
        self._known: dict[str, Any] = {}  # what does not change, once asked for

    # ------------------------------------------------------------ of the whole

    def _open(self) -> Tree:
        file: File | None = self
        while file is not None:
            if file._closed:
                raise HipoValueError("operation on a closed File")
            file = file._parent
        return self._tree

    def _once(self, name: str, find: Callable[[Tree], Any]) -> Any:
        tree = self._open()
        if name not in self._known:
            self._known[name] = find(tree)
        return self._known[name]

    @property
    def mount(self) -> str:
        """The folder that has the tree of these files, and of these entries."""
        return self._open().folder()

    @property
    def sources(self) -> list[str]:
        """What was opened: files, folders, patterns; of a mount that was there, its files."""
        return list(self._sources) if self._sources is not None else self.files

    @property
    def files(self) -> list[str]:
        """The names of the files, in order."""
        return [name for name, _, _ in self._chain()]

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return len(self._chain())

    def _chain(self) -> list[tuple[str, int, int]]:
        """Each file's name, first entry and last + 1 in the chain, whatever the view."""
        def find(tree: Tree) -> list[tuple[str, int, int]]:
            facts = Tree(tree.mount, "").fact(".hipofs/files.json")
            kept = [f for f in facts if f["records"] or not f.get("left_out")]  # some of a damaged one may be left
            return [(f["name"], f["first_entry"], f["first_entry"] + f["entries"]) for f in kept]
        found: list[tuple[str, int, int]] = self._once("chain", find)
        return found

    @property
    def num_entries(self) -> int:
        """How many entries there are; of a filtered File, how many passed."""
        def find(tree: Tree) -> int:
            with Npy(tree, ".hipofs/entries.npy", "entries") as npy:
                return npy.rows
        entries: int = self._once("entries", find)
        return entries

    @property
    def num_entries_total(self) -> int:
        """How many entries the files have, whatever the filter."""
        return sum(stop - first for _, first, stop in self._chain())

    def __len__(self) -> int:
        return self.num_entries

    def close(self) -> None:
        """Close it. Arrays that were read stay; those of a mount of its own are served until the last is gone.

        >>> import hipofs_ak as hf
        >>> f = hf.open(source)
        >>> px = f.array("MC::Particle", "px")
        >>> f.close()
        >>> len(px)
        101
        """
        if not self._closed:
            self._closed = True
            if self._parent is None:
                self._tree.mount.end()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "<hipofs_ak.File: closed>"
        return f"<hipofs_ak.File: {self.num_entries} events, {self.file_count} file(s)>"

    def _repr_html_(self) -> str:
        return repr(self) if self._closed else _html.file(self.files, self._schemas().values())

    def __reduce__(self) -> tuple[Callable[..., File], tuple[Any, ...]]:
        tree = self._open()
        if self._sources is None:
            return _attached, (Tree(tree.mount, "").folder(), tree.view)
        return _reopened, (tuple(self._sources), self.options, tree.view)

    # ------------------------------------------------------------ what there is

    def _schemas(self) -> dict[str, Schema]:
        def find(tree: Tree) -> dict[str, Schema]:
            return {b["name"]: _schema(b, b["folder"]) for b in tree.fact(".hipofs/dictionary.json")}
        found: dict[str, Schema] = self._once("schemas", find)
        return found

    def schema(self, bank: str) -> Schema:
        """Name, group, item and columns of a bank; of a structure without a name, GROUP.ITEM.

        Raises KeyInFileError (a KeyError) with the nearest names, if there is no such bank.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print([c.typename for c in f.schema("MC::Particle").columns[:2]])
        ['int32', 'float32']
        """
        schemas = self._schemas()
        if bank in schemas:
            return schemas[bank]
        if isinstance(bank, str) and NODE.fullmatch(bank) and bank in self._nodes():
            return self._node(bank)
        raise missing("bank", bank, self._where(), schemas)

    def _where(self) -> str:
        """The files, as errors name them."""
        files = self.files
        return files[0] if len(files) == 1 else f"{self.mount} ({len(files)} files)"

    def _nodes(self) -> list[str]:
        """Structures that the dictionary does not describe, as GROUP.ITEM."""
        nodes: list[str] = self._once("nodes", lambda tree: sorted(
            tree.names(".nodes"), key=lambda n: [int(part) for part in n.split(".")]))
        return nodes

    def _node(self, name: str) -> Schema:
        schema: Schema = self._once(f".nodes/{name}", lambda tree: _schema(
            tree.fact(f".nodes/{name}/schema.json"), f".nodes/{name}"))
        return schema

    def keys(
        self, recursive: bool = False, filter_name: Names = None, *, nonempty: bool = False, kind: str = "bank",
    ) -> list[str]:
        """Banks, or with recursive=True "BANK/COLUMN"; of them those that a pattern, or one of several, matches.

        nonempty: only banks with rows; this waits until the files are counted. kind: "bank" (of the dictionary),
        "composite" (structures that carry their own format; see composite), "node" (all without a schema).

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.keys(filter_name="MC::*", nonempty=True))
        ['MC::Header', 'MC::Particle', 'MC::True', 'MC::Event']
        """
        if kind == "bank":
            banks = list(self._schemas().values())
            if nonempty:
                populated = set(self._once("populated", lambda tree: tree.names(".hipofs/populated")))
                banks = [b for b in banks if b.folder in populated]
        elif kind in ("composite", "node"):
            banks = [self._node(name) for name in self._nodes()]
            if kind == "composite":
                names = {(b.group, b.item): b.name for b in self._schemas().values()}
                banks = [b._replace(name=names.get((b.group, b.item), b.name)) for b in banks if b.column("f0")]
        else:
            raise HipoValueError(f"unknown kind {kind!r} (expected 'bank', 'composite' or 'node')")
        keys = [f"{b.name}/{c.name}" for b in banks for c in b.columns] if recursive else [b.name for b in banks]
        return [k for k in keys if _matches(k, filter_name)]

    def columns(self, bank: str) -> list[str]:
        """The columns of a bank.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.columns("MC::Particle")[:2])
        ['pid', 'px']
        """
        return [c.name for c in self.schema(bank).columns]

    def typenames(self) -> dict[str, str]:
        """The type of each "BANK/COLUMN": "float32", or "float32[3]" for an array column.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.typenames()["MC::Particle/pid"])
        int32
        """
        return {f"{b.name}/{c.name}": c.typename for b in self._schemas().values() for c in b.columns}

    @property
    def bank_ids(self) -> dict[str, tuple[int, int]]:
        """Group and item of each bank."""
        return {b.name: (b.group, b.item) for b in self._schemas().values()}

    def __contains__(self, bank: object) -> bool:
        return bank in self._schemas()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def show(self, bank: str | None = None, *, rows: bool = False) -> None:
        """Print the banks with the types of their columns, or one bank; rows=True tells also what is in them.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     f.show("RUN::trigger", rows=True)
        RUN::trigger  (2 columns, 0 rows in 0 entries)
            id                       int32
            trigger                  int32
        """
        banks = [self.schema(bank)] if bank is not None else sorted(self._schemas().values())
        occupancy = self.occupancy() if rows else {}
        for b in banks:
            print(f"{b.name}  ({len(b.columns)} columns{_occupied(occupancy.get(b.name))})")
            for c in b.columns:
                print(f"    {c.name:<24} {c.typename}")

    def occupancy(self) -> dict[str, Occupancy]:
        """How many rows each bank of the dictionary has, in how many entries, and how many at most in one.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.occupancy()["MC::Particle"])
        Occupancy(rows=99, entries=99, most=1)
        """
        populated = set(self.keys(nonempty=True))
        n = self.num_entries
        out = {}
        for schema in self._schemas().values():
            out[schema.name] = Occupancy(0, 0, 0)
            if schema.name in populated and n:
                counts = np.diff(_bank.entry_range(self._open(), schema, 0, n).offsets)
                out[schema.name] = Occupancy(int(counts.sum()), int(np.count_nonzero(counts)), int(counts.max()))
        return out

    @property
    def config(self) -> dict[str, str]:
        """The configuration that whoever wrote the files put into them: {key: value}."""
        config: dict[str, str] = self._once("config", lambda tree: tree.fact(".hipofs/config.json"))
        return dict(config)

    @property
    def tag_names(self) -> dict[str, int]:
        """The names of the bits of event tags, where the files have some: {name: number of the bit}."""
        names: dict[str, int] = self._once("tags", lambda tree: tree.fact(".hipofs/tags.json"))
        return dict(names)

    def _records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self._once("records", lambda tree: Tree(tree.mount, "").fact(".hipofs/records.json"))
        return records

    @property
    def record_count(self) -> int:
        """How many records the files have."""
        return len(self._records())

    def record_spans(self) -> list[tuple[int, int, int, int]]:
        """Of each record: the number of its file, its own in the file, its first entry, and its number of events.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.record_spans())
        [(0, 0, 0, 101)]
        """
        ends = [stop for _, _, stop in self._chain()]
        return [(bisect.bisect_right(ends, r["first_entry"]), r["record"], r["first_entry"], r["events"])
                for r in self._records()]

    def record_decompressed_sizes(self) -> list[int]:
        """How many bytes each record has when it is inflated, with its table of events.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(len(f.record_decompressed_sizes()))
        1
        """
        return [r["data_length"] + 4 * r["events"] for r in self._records()]

    # ------------------------------------------------------------ some of the entries

    def view(self, path: str) -> File:
        """The entries that a path below the mount keeps: ".entries/0:1000", ".where/tag=1", or several one after the other.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(len(f.view(".entries/10:20/.where/require=MC::Particle")))
        10
        """
        tree = self._open()
        view = os.path.join(tree.view, path)
        if not VIEW.fullmatch(path) or not tree.mount.shows(view):
            raise HipoValueError(f"there is no view {path!r} of {self._where()}")
        return File(Tree(tree.mount, view), self._sources, self.options, self)

    def filtered(
        self, require: Names = None, record_tag: int | Sequence[int] | None = None,
        event_tag: str | int | Sequence[str | int] | None = None,
        event_tag_any: str | int | Sequence[str | int] | None = None,
    ) -> File:
        """The entries that have rows in each bank of require, one of the record tags, and one of the event tags.

        event_tag: tags as they are; with a name among them (see tag_names), and in event_tag_any always, bits, of which
        the tag of an event must have one. len() and entry numbers are those of the entries that pass. Filters of a
        filtered File hold beside those it has.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(len(f.filtered(require=["MC::Particle"])))
        99
        """
        conditions: list[str] = []
        banks = [require] if isinstance(require, str) else list(require or ())
        conditions += [f"require={quote(self.schema(b).name, safe=':')}" for b in banks]
        if record_tag is not None:
            conditions.append(_one_of("record_tag", [record_tag] if isinstance(record_tag, int) else record_tag))
        any_of = None if event_tag_any is None else self._bits(event_tag_any)
        if event_tag is not None:
            tags = [event_tag] if isinstance(event_tag, (str, int)) else list(event_tag)
            if any(isinstance(t, bool) for t in tags):
                raise TypeError("an event tag is a name or a number, not a bool")
            if any(isinstance(t, str) for t in tags):
                any_of = (any_of or 0) | self._bits(tags)
            else:
                conditions.append(_one_of("tag", [t for t in tags if not isinstance(t, str)]))
        if any_of is not None:
            conditions.append(f"tag_any={any_of}" if any_of else "")
        if "" in conditions:  # nothing is one of none
            return self.view(".entries/0:0")
        path: list[str] = []
        for condition in conditions:
            if path and len(path[-1]) + len(condition) < LONG:
                path[-1] += "," + condition
            else:
                path.append(f".where/{condition}")
        return self.view("/".join(path)) if path else File(self._open(), self._sources, self.options, self)

    def _bits(self, tags: str | int | Sequence[str | int]) -> int:
        """The bits that names and numbers mean."""
        bits = 0
        for tag in [tags] if isinstance(tags, (str, int)) else tags:
            if isinstance(tag, bool):
                raise TypeError("an event tag is a name or a number, not a bool")
            if isinstance(tag, str) and tag not in self.tag_names:
                raise missing("tag name", tag, self._where(), sorted(self.tag_names))
            bits |= 1 << self.tag_names[tag] if isinstance(tag, str) else int(tag)
        if not 0 <= bits < 1 << 32:
            raise HipoValueError(f"event tags have 32 bits, and {bits} has others")
        return bits

    def _range(self, start: int | None, stop: int | None) -> tuple[int, int]:
        """Entries as Python's slices have them: negative ones count from the end, what is beyond is clipped."""
        n = self.num_entries
        first = 0 if start is None else max(0, operator.index(start) + n if start < 0 else min(operator.index(start), n))
        last = n if stop is None else max(0, operator.index(stop) + n if stop < 0 else min(operator.index(stop), n))
        return first, max(first, last)

    # ------------------------------------------------------------ one column

    def _column(self, bank: str, column: str) -> tuple[Schema, Column]:
        schema = self.schema(bank)
        found = schema.column(column)
        if found is None:
            raise missing("column", column, schema.name, [c.name for c in schema.columns])
        return schema, found

    def numpy(
        self, bank: str, column: str, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0,
    ) -> NumpyColumn:
        """One column as (values, offsets, inner_len), read-only views of the mapped file; awkward is not needed.

        values: flat, of the column's own type, inner_len of them a row; offsets: int64, one more than entries, the first
        is 0. threads is there for programs of oxihipo: hipofs decodes with all processors.

        Raises KeyInFileError for a bank or column that is not there, CorruptFileError for one that cannot be decoded.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     values, offsets, inner_len = f.numpy("MC::Particle", "pid", entry_stop=4)
        >>> print(values, offsets, values.dtype)
        [2212 2212] [0 0 0 1 2] int32
        """
        schema, found = self._column(bank, column)
        read = _bank.read_bank(self._open(), schema, [found], *self._range(entry_start, entry_stop))
        _, values, inner = read.columns[0]
        return NumpyColumn(values, read.offsets, inner)

    def array(
        self, bank: str, column: str, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0,
    ) -> ak.Array:
        """One column as an ak.Array, N * var * T (N * var * M * T for an array column), around the mapped file.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.array("MC::Particle", "px").type)
        101 * var * float32
        """
        values, offsets, inner = self.numpy(bank, column, entry_start=entry_start, entry_stop=entry_stop)
        return _bank.column_array(offsets, values, inner)

    def event_tags(self, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0) -> NDArray[np.uint32]:
        """The tag of each event, uint32.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.event_tags(entry_stop=3))
        [0 0 0]
        """
        with Npy(self._open(), ".hipofs/event_tags.npy", "event tags") as npy:
            return npy.values(*self._range(entry_start, entry_stop))

    # ------------------------------------------------------------ banks

    def _select(self, banks: Names, columns: Names, filter_name: Names) -> tuple[list[tuple[Schema, list[Column]]], bool]:
        """Which columns of which banks are meant, and whether one bank was named by itself."""
        if columns is not None and (filter_name is not None or not isinstance(banks, str)):
            raise TypeError("columns= needs a single bank; across banks there is filter_name='BANK/col*'")
        if filter_name is not None and banks is not None:
            raise TypeError("pass either banks= or filter_name=, not both")
        columns = [columns] if isinstance(columns, str) else columns
        if isinstance(banks, str):
            schema = self.schema(banks)
            return [(schema, [self._column(banks, c)[1] for c in columns] if columns else list(schema.columns))], True
        if banks is not None:
            return [(schema, list(schema.columns)) for schema in map(self.schema, banks)], False
        selection = []
        for schema in self._schemas().values():
            some = [c for c in schema.columns if filter_name is not None and _matches(f"{schema.name}/{c.name}", filter_name)]
            if some or filter_name is None or _matches(schema.name, filter_name):
                selection.append((schema, some or list(schema.columns)))
        return selection, False

    def arrays(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        filter_name: Names = None,
        library: str = "ak",
        entry_start: int | None = None,
        entry_stop: int | None = None,
        entries: Sequence[int] | NDArray[Any] | None = None,
        cut: str | None = None,
        aliases: Mapping[str, str] | None = None,
        how: Any = None,
        virtual: bool | None = None,
        access_log: Any | None = None,
        threads: int = 0,
        workers: int = 1,
    ) -> Any:
        """One bank ("REC::Particle"), several (a list, or filter_name), or all, as arrays of a library.

        library: "ak", an ak.Array: N * var * {column: T} of one bank, otherwise N * {bank: var * {column: T}};
        "np", a dict of arrays of arrays; "np_flat", a dict of NumpyColumn; "pd", a DataFrame, or a dict of them; "pl",
        the same of polars; "arrow", a pyarrow.Table. Names are "BANK/COLUMN" unless one bank was named by itself.

        columns: of one bank, in that order; filter_name: a pattern or several, of banks or "BANK/COLUMN".
        entry_start, entry_stop: as in slices. entries: these entries in this order; one that there is not has no rows.
        cut: an expression of columns. With a value for each row, as "pid == 11", it keeps rows; with one for each
        entry, as "ak.any(pid == 11, axis=1)", entries. aliases: {name: expression}, for columns and cut. An expression
        is no Python: it has columns, numbers, operators and functions of ak and np.
        how: None, tuple, list or dict: what container the parts come in; "zip" is None.
        virtual: nothing is read before it is used; so it is when all banks are asked for, unless this says otherwise.
        access_log: a list that gets an Accessed for each buffer of a virtual array, when it is used.
        threads, workers: for programs of oxihipo; hipofs decodes with all processors.

        Raises KeyInFileError, HipoValueError, CorruptFileError.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     p = f.arrays("MC::Particle", ["px", "pt"], cut="pid == 2212", aliases={"pt": "np.hypot(px, py)"})
        >>> print(p.type)
        101 * var * {px: float32, pt: float32}
        """
        _library.check(library, how)
        aliases = dict(aliases or {})
        columns = [columns] if isinstance(columns, str) else columns
        wanted = list(columns) if columns else None
        named = [c for c in wanted if c not in aliases] if wanted else columns
        selection, single = self._select(banks, named, filter_name)
        if entries is not None and (entry_start is not None or entry_stop is not None):
            raise HipoValueError("pass either entries or entry_start and entry_stop, not both")
        start, stop = self._range(entry_start, entry_stop)
        plain = library == "ak" and cut is None and entries is None and not aliases
        if virtual is None:
            virtual = plain and (access_log is not None or (banks is None and filter_name is None))
        if virtual and not plain:
            raise HipoValueError("virtual arrays are for library='ak', without cut, aliases and entries")
        if access_log is not None and not virtual:
            raise HipoValueError("access_log is for virtual arrays")
        if access_log is not None and not hasattr(access_log, "__iadd__"):
            raise HipoValueError("access_log must be a list, or something else that += adds to")
        if virtual and selection:
            made = _bank.virtual(self._open(), selection, start, stop, single=single, access_log=access_log)
            return _library.arranged(made, single, library, how)
        if cut is not None or aliases:
            selection, wanted = self._widened(selection, single, wanted, cut, aliases)
        _bank.ahead(self._open(), selection)
        read = [_bank.read_bank(self._open(), schema, some, start, stop) for schema, some in selection]
        if entries is not None:
            read = [_bank.gather(bank, _numbers(entries)) for bank in read]
        if cut is not None or wanted is not None:
            read = [_cut.apply(bank, cut, aliases, wanted) for bank in read]
        return _library.assemble(read, single, library, how)

    def _widened(
        self, selection: list[tuple[Schema, list[Column]]], single: bool, wanted: list[str] | None, cut: str | None,
        aliases: Mapping[str, str],
    ) -> tuple[list[tuple[Schema, list[Column]]], list[str] | None]:
        """The columns that must be read for a cut and aliases, and those that are wanted."""
        if len(selection) != 1:
            raise HipoValueError(f"cut and aliases need exactly one bank; the selection has {len(selection)}")
        schema, some = selection[0]
        if wanted is None:
            wanted = [c.name for c in some]
        elif all(c in aliases for c in wanted):
            some = []
        pending = [cut] if cut is not None else []
        pending += [aliases[c] for c in wanted if c in aliases]
        seen: set[str] = set()
        while pending:
            for name in _cut.names(pending.pop()) - seen:
                seen.add(name)
                column = schema.column(name)
                if column is not None and column not in some:
                    some = [*some, column]
                if name in aliases:
                    pending.append(aliases[name])
        return [(schema, some)], wanted

    def read_columns(
        self, selection: Iterable[tuple[str, Sequence[str]]], entry_start: int | None = None, entry_stop: int | None = None,
        threads: int = 0,
    ) -> list[tuple[str, NDArray[np.int64], list[tuple[str, NDArray[Any], int]]]]:
        """Of each (bank, columns): (bank, offsets, [(column, values, inner_len)]); no columns means all.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     (bank, offsets, columns), = f.read_columns([("MC::Particle", ["pid"])], 0, 3)
        >>> print(bank, offsets, columns)
        MC::Particle [0 0 0 1] [('pid', array([2212], dtype=int32), 1)]
        """
        start, stop = self._range(entry_start, entry_stop)
        out = []
        for bank, columns in selection:
            (schema, some), = self._select(bank, list(columns) or None, None)[0]
            out.append(tuple(_bank.read_bank(self._open(), schema, some, start, stop)))
        return out  # type: ignore[return-value]

    # ------------------------------------------------------------ what carries its own format

    def composite(
        self, bank: str, entry_start: int | None = None, entry_stop: int | None = None, library: str = "ak",
    ) -> Any:
        """A bank whose structures carry their own format, by its name or as GROUP.ITEM; its columns are f0, f1, ….

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.keys(kind="composite"))
        []
        """
        _library.check(library, None)
        named = self._schemas().get(bank)
        node = f"{named.group}.{named.item}" if named else bank
        if node not in self._nodes() or not self._node(node).column("f0"):
            if named or node in self._nodes():
                raise missing("composite bank", bank, self._where(), self.keys(kind="composite"))
            raise missing("bank", bank, self._where(), [*self._schemas(), *self._nodes()])
        schema = self._node(node)._replace(name=bank)
        read = _bank.read_bank(self._open(), schema, schema.columns, *self._range(entry_start, entry_stop))
        return _library.assemble([read], True, library)

    # ------------------------------------------------------------ one event

    def event(self, entry: int) -> Event | None:
        """One entry with all its banks; negative ones count from the end. None where there is none.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.event(2)["MC::Particle"][0]["pid"])
        2212
        """
        n = self.num_entries
        entry = operator.index(entry)
        entry += n if entry < 0 else 0
        if not 0 <= entry < n:
            return None
        facts = self._open().fact(f".event/{entry}/event.json")
        rows = {b["name"]: b["rows"] for b in [*facts.get("banks", []), *facts.get("nodes", [])]}
        return Event(facts["entry"], facts["file"], facts["record"], facts["tag"], facts["record_tag"], rows)

    # ------------------------------------------------------------ in steps

    def _steps(self, selection: Sequence[tuple[Schema, Sequence[Column]]], step_size: Step, start: int, stop: int) -> list[_iterate.Step]:
        def entry_bytes() -> float:
            n = max(1, self.num_entries)
            total = 0
            for schema, columns in selection:
                with Npy(self._open(), f"{schema.folder}/{schema.columns[0].file}", schema.name) as npy:
                    total += npy.rows * sum(c.row_bytes for c in columns)
                total += 8 * n
            return total / n
        return list(_iterate.steps(self._parts(), start, stop, _iterate.step_entries(step_size, entry_bytes)))

    def _parts(self) -> list[tuple[str, int, int]]:
        """Each file's name, and its first entry and last + 1 among these entries."""
        if self.num_entries == self.num_entries_total:
            return self._chain()
        with Npy(self._open(), ".hipofs/entries.npy", "entries") as npy:
            original = npy.values(0, npy.rows)
        cuts = [np.searchsorted(original, [first, stop]).tolist() for _, first, stop in self._chain()]
        if sum(stop - first for first, stop in cuts) != len(original):
            raise HipoError(f"{self._where()}: there are entries of none of the files")
        return [(name, first, stop) for (name, _, _), (first, stop) in zip(self._chain(), cuts)]

    def iterate(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        step_size: Step = 100_000,
        filter_name: Names = None,
        library: str = "ak",
        report: bool = False,
        cut: str | None = None,
        aliases: Mapping[str, str] | None = None,
        how: Any = None,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 0,
        workers: int = 1,
    ) -> Iterator[Any]:
        """What arrays gives, step by step: of step_size entries each, or as many as "200 MB" of columns have on average.

        A step has entries of one file, so the last of a file may have fewer. With report=True, (array, Report) each.
        What is no longer held is not kept in memory.
        threads, workers: for programs of oxihipo; hipofs decodes with all processors.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print([len(chunk) for chunk in f.iterate("MC::Particle", step_size=40)])
        [40, 40, 21]
        """
        _library.check(library, how)
        columns = [columns] if isinstance(columns, str) else columns
        named = [c for c in columns if c not in (aliases or {})] if columns else columns
        selection, _ = self._select(banks, named, filter_name)
        parts = self._steps(selection, step_size, *self._range(entry_start, entry_stop))
        def each() -> Iterator[Any]:
            with _bank.Kept() as kept:
                reader = File(self._open()._replace(kept=kept), self._sources, self.options, self)
                reader._known = self._known
                for step in parts:
                    chunk = reader.arrays(
                        banks, columns, filter_name=filter_name, library=library, entry_start=step.start,
                        entry_stop=step.stop, cut=cut, aliases=aliases, how=how, virtual=False if library == "ak" else None)
                    yield (chunk, Report(*step)) if report else chunk
        return each()

    def map_reduce(
        self,
        fn: Callable[[Any], Any],
        banks: Names = None,
        columns: Names = None,
        *,
        step_size: Step = "1 GB",
        workers: int = 0,
        reduce: Callable[[Any, Any], Any] = operator.add,
        initial: Any | None = None,
        filter_name: Names = None,
        cut: str | None = None,
        aliases: Mapping[str, str] | None = None,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 1,
    ) -> Any:
        """fn of each step, in other processes that read it themselves; and what it gave, put together by reduce in order.

        workers: how many processes (0: one a processor; 1: this one alone). fn must be a function of a module, so that
        it can be sent to them. Without entries, initial is the result; without that it is a HipoValueError.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.map_reduce(len, "MC::Particle", step_size=40, workers=1))
        101
        """
        columns = [columns] if isinstance(columns, str) else columns
        named = [c for c in columns if c not in (aliases or {})] if columns else columns
        selection, _ = self._select(banks, named, filter_name)
        parts = self._steps(selection, step_size, *self._range(entry_start, entry_stop))
        if not parts:
            if initial is None:
                raise HipoValueError("no entries, and no initial= to say what the result of none is")
            return initial
        work = _Work(self if workers == 1 else _attachable(self), fn, banks, columns, filter_name, cut, aliases)
        result = initial
        for made in _iterate.mapped(work, parts, workers):
            result = made if result is None else reduce(result, made)
        return result

    def link(
        self, banks: Sequence[str], *, particles: str = "REC::Particle", directions: str = "both",
        entry_start: int | None = None, entry_stop: int | None = None,
    ) -> ak.Array:
        """Banks joined to their particles, as hipofs_ak.link joins what arrays gives, by the rows that the mount has ready.

        Only banks that begin as `particles` does are joined: REC::Calorimeter to REC::Particle, RECHB::Calorimeter not.
        Raises HipoValueError or ValueError where `particles` is not among banks, or directions is none.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     ev = f.link(["REC::Particle", "REC::Calorimeter"])
        >>> "particle" in ev["REC::Calorimeter"].fields
        True
        """
        read = self.arrays([banks] if isinstance(banks, str) else list(banks), entry_start=entry_start, entry_stop=entry_stop)
        _physics.check_link(read, particles, directions)
        tree, (start, stop) = self._open(), self._range(entry_start, entry_stop)
        at = _bank.entry_range(tree, self.schema(particles), start, stop)
        prefix = particles.rpartition("::")[0] + "::"
        rows = {}
        for schema in map(self.schema, read.fields):
            if schema.name == particles or not schema.name.startswith(prefix) or not schema.column("pindex"):
                continue
            ready = f"@{self.schema(particles).folder}.npy"
            if ready in tree.names(schema.folder):
                rows[schema.name] = _bank.pointers(tree, schema, ready, start, stop, at)
            else:  # what is exported for want of a mount has columns alone
                rows[schema.name] = _physics.pointed(read[schema.name], at.offsets, "pindex")
        return _physics.joined(read, particles, directions, at.offsets, rows)

    # ------------------------------------------------------------ out of here

    def to_arrow(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        filter_name: Names = None,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        entries: Sequence[int] | NDArray[Any] | None = None,
        cut: str | None = None,
    ) -> Any:
        """What arrays gives, as a pyarrow.Table around the same memory: a large list an entry in each column.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.to_arrow("MC::Particle", ["px"]).schema)
        px: large_list<item: float not null> not null
          child 0, item: float not null
        """
        return self.arrays(banks, columns, filter_name=filter_name, library="arrow", entry_start=entry_start,
                           entry_stop=entry_stop, entries=entries, cut=cut)

    def to_parquet(
        self,
        path: Path,
        banks: Names = None,
        columns: Names = None,
        *,
        filter_name: Names = None,
        cut: str | None = None,
        step_size: Step | None = None,
        compression: str | None = "zstd",
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 0,
    ) -> int:
        """Write what to_arrow gives to a Parquet file, which appears when it is whole; returns how many row groups it has.

        step_size: entries of a row group, or "200 MB" of columns, so that little memory is needed; without it, as few
        groups as may be. compression: "zstd", "snappy", "gzip", "lz4", "brotli" or None. An existing file is replaced.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.to_parquet("particles.parquet", "MC::Particle", cut="pid == 2212", step_size=50))
        3
        """
        how: dict[str, Any] = {"filter_name": filter_name, "library": "arrow", "cut": cut}
        start, stop = self._range(entry_start, entry_stop)
        schema = self.arrays(banks, columns, entry_start=0, entry_stop=0, **how).schema
        if step_size is None:
            tables = iter([self.arrays(banks, columns, entry_start=start, entry_stop=stop, **how)])
        else:
            tables = self.iterate(banks, columns, step_size=step_size, entry_start=start, entry_stop=stop, **how)
        return _out.write_parquet(path, schema, tables, compression)

    def to_dask(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        step_size: Step = 100_000,
        filter_name: Names = None,
        cut: str | None = None,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 1,
    ) -> Any:
        """What arrays gives, as an array of dask-awkward with a partition for each step of iterate.

        Nothing is read before it is computed, and then only the columns that are used. A worker of a cluster opens the
        files for itself, by the names they have here. A selection without entries is a HipoValueError.

        >>> import dask_awkward as dak, hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     p = f.to_dask("MC::Particle", step_size=40)
        ...     print(p.npartitions, dak.count(p.px).compute(scheduler="synchronous"))
        3 99
        """
        need("dask_awkward")
        from . import _dask

        selection, single = self._select(banks, columns, filter_name)
        if cut is not None and len(selection) != 1:
            raise HipoValueError(f"cut needs exactly one bank; the selection has {len(selection)}")
        steps = self._steps(selection, step_size, *self._range(entry_start, entry_stop))
        if not steps or not selection:
            raise HipoValueError("there are no entries to make partitions of" if selection else "nothing was selected")
        return _dask.array(self, selection, single, cut, [(s.start, s.stop) for s in steps])

    def rdataframe(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        filter_name: Names = None,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 0,
    ) -> Any:
        """What arrays gives, as a ROOT.RDataFrame around the same memory; an entry of a column is an RVec.

        The column px of REC::Particle is called REC_Particle_px there. Needs ROOT; without it, an ImportError.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     try:
        ...         n = f.rdataframe("MC::Particle", ["px"]).Count().GetValue()
        ...     except ImportError:
        ...         n = len(f)
        >>> n
        101
        """
        need("ROOT")
        array = self.arrays(banks, columns, filter_name=filter_name, entry_start=entry_start, entry_stop=entry_stop,
                            virtual=False)
        return _out.rdataframe(array, banks if isinstance(banks, str) else None)

    def iterate_rdataframe(
        self,
        banks: Names = None,
        columns: Names = None,
        *,
        step_size: Step = 100_000,
        filter_name: Names = None,
        report: bool = False,
        entry_start: int | None = None,
        entry_stop: int | None = None,
        threads: int = 0,
    ) -> Iterator[Any]:
        """What iterate gives, each step as a ROOT.RDataFrame; with report=True, (data frame, Report).

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     try:
        ...         steps = [df.Count().GetValue() for df in f.iterate_rdataframe("MC::Particle", step_size=60)]
        ...     except ImportError:
        ...         steps = [60, 41]
        >>> steps
        [60, 41]
        """
        need("ROOT")
        bank = banks if isinstance(banks, str) else None
        chunks = self.iterate(banks, columns, step_size=step_size, filter_name=filter_name, report=True,
                              entry_start=entry_start, entry_stop=entry_stop)
        frames = ((_out.rdataframe(array, bank), of) for array, of in chunks)
        return frames if report else (frame for frame, _ in frames)

    def skim(
        self,
        dst: Path,
        compression: str | None = "lz4percolumn",
        *,
        banks: Names = None,
        force: bool = False,
        tags: Any | None = None,
        tag_names: Mapping[str, int] | None = None,
    ) -> SkimSummary:
        """Write these entries to a new HIPO file, which appears when it is whole, and tell what is in it.

        compression: none, lz4, lz4hc, gzip, zstd or zstd1 to zstd9, with +perbank or +percolumn where banks or columns
        are to be stored apart; oxihipo's names mean what they mean there; None leaves it as it is. banks: patterns; all
        that were opened, without it. A file that exists is replaced with force=True alone. tags and tag_names are there
        for programs of oxihipo: hipofs does not change tags, and raises a HipoValueError that says so.

        >>> import hipofs_ak as hf
        >>> with hf.open(source) as f:
        ...     print(f.filtered(require=["MC::Particle"]).skim("protons.hipo", "zstd").events)
        99
        """
        if tags is not None or tag_names is not None:
            raise HipoValueError("hipofs does not write tags: oxihipo.skim(…, tags=…) does")
        return _out.skim(self, dst, compression, banks, force)

    # ------------------------------------------------------------ by name

    def __getitem__(self, key: str | tuple[str, str | Sequence[str]]) -> Any:
        """file["BANK"] is a Bank; file["BANK/COLUMN"] and file["BANK", "COLUMN"] a column; file["BANK", ["A", "B"]] some."""
        if isinstance(key, tuple):
            if len(key) != 2:
                raise HipoValueError(f"{key!r} is not (bank, column) or (bank, columns)")
            bank, columns = key
            return self._branch(bank, columns) if isinstance(columns, str) else self.arrays(bank, list(columns))
        if key not in self and "/" in key:
            return self._branch(*key.rsplit("/", 1))
        return Bank(self, self.schema(key).name)

    def _branch(self, bank: str, column: str) -> Any:
        """A column that is an array, and that has .array() as a branch has."""
        array = self.array(bank, column)
        object.__setattr__(array, "array", functools.partial(self.array, bank, column))
        return array


@dataclass(frozen=True)
class _Work:
    """fn of a step, in whatever process."""

    file: File
    fn: Callable[[Any], Any]
    banks: Names
    columns: Names
    filter_name: Names
    cut: str | None
    aliases: Mapping[str, str] | None

    def __call__(self, step: _iterate.Step) -> Any:
        return self.fn(self.file.arrays(
            self.banks, self.columns, filter_name=self.filter_name, cut=self.cut, aliases=self.aliases,
            entry_start=step.start, entry_stop=step.stop, virtual=False))


# ---------------------------------------------------------------- opening

def open(  # noqa: A001  (uproot calls it so)
    source: Source,
    *,
    banks: Names = None,
    memory: str | int | None = None,
    threads: int | None = None,
    cache_dir: Path | None = None,
    cache_size: str | int | None = None,
    index_dir: Path | None = None,
    salvage: bool = False,
) -> File:
    """Open a mount, or files: a name, an address, a folder (its *.hipo), a pattern, or a list of such, as one chain.

    Files are mounted for this process alone, until the File is closed or collected, or the process ends. What is read of
    them is decoded then, and kept by hipofs as far as memory goes. Where nothing can be mounted, what is used is exported
    to $XDG_CACHE_HOME/hipofs/export first, with a HipoWarning, once. A folder that hipofs export has written is opened
    as a mount is, and stays as one does.

    banks: patterns of banks to show; memory: how much hipofs may keep, "2G" or bytes; threads: how many records are
    decoded at once; cache_dir: a folder for columns that were read, up to cache_size, for the next time; index_dir: a
    folder for indexes; salvage: leave out files and records that are damaged, with a HipoWarning, instead of refusing
    what needs them. $HIPOFS names the program hipofs, if it is neither beside this Python nor in $PATH.

    Raises HipoNotFoundError (a FileNotFoundError) where there is no file, CorruptFileError for one that is damaged or no
    HIPO file, HipoValueError where the dictionaries of two files are in conflict.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     print(f)
    <hipofs_ak.File: 101 events, 1 file(s)>
    """
    options = {name: value for name, value in {
        "banks": ",".join([banks] if isinstance(banks, str) else banks) if banks is not None else None,
        "memory": memory, "threads": threads, "cache-dir": _absolute(cache_dir), "cache-size": cache_size,
        "index-dir": _absolute(index_dir), "on-error": "skip" if salvage else None,
    }.items() if value is not None}
    if isinstance(source, (str, os.PathLike)) and is_tree(os.fspath(source)):
        if options:
            raise HipoValueError(f"{os.fspath(source)} is mounted already; {', '.join(options)} are for whoever mounts it")
        return _attached(os.path.abspath(source), "")
    words = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not words:
        raise not_found("[]", "an empty list of sources")
    return _reopened([_word(w) for w in words], options, "")


def _reopened(words: Sequence[str], options: Mapping[str, str | int], view: str) -> File:
    mount: Mount
    try:
        mount = OwnMount(words, [f"--{name}={value}" for name, value in options.items()])
    except NoFUSE as e:
        mount = Exported(words, options)
        tell(str(e))
    file = File(Tree(mount, ""), words, options)
    return file.view(view) if view else file


def _attached(folder: str, view: str) -> File:
    file = File(Tree(Mount(folder), ""), None, {})
    return file.view(view) if view else file


def _attachable(file: File) -> File:
    """The same File, which other processes attach to instead of mounting the files once more."""
    tree = file._open()
    return file if isinstance(tree.mount, Exported) else _attached(Tree(tree.mount, "").folder(), tree.view)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _word(source: Path) -> str:
    """A source as hipofs finds it from whatever folder."""
    word = os.fsdecode(source)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", word):
        return word
    return "@" + os.path.abspath(word[1:]) if word.startswith("@") else os.path.abspath(word)


# ---------------------------------------------------------------- small things

def _schema(facts: Mapping[str, Any], folder: str) -> Schema:
    columns = tuple(Column(c["name"], c["type"], c["length"], c["file"]) for c in facts["columns"])
    return Schema(facts["name"], facts["group"], facts["item"], columns, folder)


def _matches(key: str, patterns: Names) -> bool:
    """Whether a key is one that a pattern, or one of several, means; without a pattern, each is."""
    if patterns is None:
        return True
    return any(fnmatch.fnmatchcase(key, p) for p in ([patterns] if isinstance(patterns, str) else patterns))


def _numbers(entries: Any) -> NDArray[np.int64]:
    """A list of entries as an array."""
    listed = np.asarray(entries)
    if listed.ndim != 1 or listed.size and (listed.dtype.kind not in "iu" or listed.min() < 0):
        raise HipoValueError("entries must be a list of whole numbers from 0 on")
    clipped: NDArray[np.int64] = np.minimum(listed, np.iinfo(np.int64).max - 1).astype(np.int64)
    return clipped


def _one_of(what: str, numbers: Iterable[int]) -> str:
    """A condition of .where: one of these; "" for none, which never holds."""
    texts = [str(operator.index(n)) for n in numbers]
    if len("+".join(texts)) > 900:  # of the 1024 bytes that a name may have
        raise HipoValueError(f"{len(texts)} values for {what} are too many; filter by fewer, or pass entries=")
    return f"{what}={'+'.join(texts)}" if texts else ""


def _occupied(of: Occupancy | None) -> str:
    return f", {of.rows} rows in {of.entries} entries" if of else ""
