"""What hipofs knows of files before it reads them: where their records are, and what is in each. Not here: building it."""
from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import HipoValueError, KeyInFileError
from ._file import Path, Source, _word
from ._mount import command, refusal


class FileRange(NamedTuple):
    """Bytes of a file that a read needs: length of them from position on, of a record.

    what: "record"; where a file stores columns apart, "directory" or "stream".

    >>> import hipofs_ak as hf
    >>> hf.index(source).plan("MC::Particle", "px")[0].what
    'record'
    """

    file: str
    record: int
    position: int
    length: int
    what: str


class Index:
    """The records of HIPO files, as arrays with a number for each record; from hipofs_ak.index.

    files: the files that have records; file: which of them each is in; records: its number there; positions, lengths:
    where in the file it begins, and how many bytes it has; data_lengths: how many when it is inflated; events: how many
    it has; first_entries: the number of its first event in the chain; record_tags; all int64. codecs: their names. rows:
    of each bank that has any, the rows in each record.

    >>> import hipofs_ak as hf
    >>> index = hf.index(source)
    >>> index.events.tolist(), index.rows["MC::Particle"].tolist()
    ([101], [99])
    """

    def __init__(self, sources: Sequence[str], options: Sequence[str], records: Sequence[dict[str, Any]]):
        self._sources, self._options = list(sources), list(options)
        self.files: list[str] = list(dict.fromkeys(r["file"] for r in records))
        numbers = {name: i for i, name in enumerate(self.files)}
        self.file = _numbers(numbers[r["file"]] for r in records)
        self.records = _numbers(r["record"] for r in records)
        self.positions = _numbers(r["byte"] for r in records)
        self.lengths = _numbers(r["length"] for r in records)
        self.data_lengths = _numbers(r["data_length"] for r in records)
        self.events = _numbers(r["events"] for r in records)
        self.first_entries = _numbers(r["first_entry"] for r in records)
        self.record_tags = _numbers(r["record_tag"] for r in records)
        self.codecs: list[str] = [r["codec"] for r in records]
        banks = dict.fromkeys(bank for r in records for bank in r["rows"])
        self.rows = {bank: _numbers(r["rows"].get(bank, 0) for r in records) for bank in sorted(banks)}

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<hipofs_ak.Index: {len(self)} records, {self.events.sum()} events, {len(self.files)} file(s)>"

    def plan(self, bank: str, column: str, entries: slice | range | tuple[int, int] | None = None) -> list[FileRange]:
        """Which bytes of which files a read of a column needs, in entries start to stop, or in all.

        entries are taken as slices take them. Raises KeyInFileError for a bank or column that is not there, and
        HipoValueError for entries in steps.

        >>> import hipofs_ak as hf
        >>> for r in hf.index(source).plan("MC::Particle", "px", range(0, 10)):
        ...     print(r.record, r.position, r.what)
        0 255004 record
        """
        words = [f"--plan={bank}/{column}"]
        if entries is not None:
            kept = slice(*entries) if isinstance(entries, tuple) else slice(entries.start, entries.stop, entries.step)
            start, stop, step = kept.indices(int(self.events.sum()))
            if step != 1:
                raise HipoValueError(f"entries must be without gaps, not in steps of {step}")
            words.append(f"--entries={start}:{max(start, stop)}")
        return [FileRange(r["file"], r["record"], r["offset"], r["length"], r["what"])
                for r in _lines([*words, *self._options], self._sources)]


def index(
    source: Source, *, beside: bool = False, index_dir: Path | None = None, threads: int | None = None,
) -> Index:
    """The index of files: what one pass over them has found out, now if it was not made before.

    source: as of open, but no mount. beside: keep each index beside its file, for all its readers; index_dir: in that
    folder, instead of the user's cache folder; threads: how many records are decoded at once.

    Raises HipoNotFoundError (a FileNotFoundError), CorruptFileError, HipoIOError (an OSError).

    >>> import hipofs_ak as hf
    >>> print(hf.index(source))
    <hipofs_ak.Index: 1 records, 101 events, 1 file(s)>
    """
    words = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    sources = [_word(w) for w in words]
    options = [f"--index-dir={os.path.abspath(index_dir)}"] if index_dir is not None else []
    made = [f"--threads={threads}"] if threads is not None else []
    if beside:
        for _ in _lines(["--beside", "--quiet", *options, *made], sources):
            pass
    return Index(sources, options, list(_lines(["--dump", *options, *made], sources)))


def _lines(options: Sequence[str], sources: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that hipofs index prints."""
    done = subprocess.run([command(), "index", *options, "--", *sources], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace")
    if done.returncode != 0:
        error = refusal(done.returncode, done.stderr)
        unknown = str(error).startswith("there is no bank ") or " has no column " in str(error)
        raise KeyInFileError(str(error)) if unknown else error
    for line in done.stdout.splitlines():
        yield json.loads(line)


def _numbers(values: Iterator[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)
