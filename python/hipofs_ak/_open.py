"""From files to arrays in one call. Not here: how any of it is done."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._bank import NumpyColumn
from ._file import Names, Path, Source, Step, open
from ._out import SkimSummary


def numpy(
    source: Source, bank: str, column: str, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0,
) -> NumpyColumn:
    """One column of files, as File.numpy gives it.

    >>> import hipofs_ak as hf
    >>> print(hf.numpy(source, "MC::Particle", "pid").values[:3])
    [2212 2212 2212]
    """
    return open(source).numpy(bank, column, entry_start=entry_start, entry_stop=entry_stop)


def event_tags(source: Source, *, entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0) -> NDArray[np.uint32]:
    """The tag of each event of files, uint32.

    >>> import hipofs_ak as hf
    >>> print(hf.event_tags(source, entry_stop=3))
    [0 0 0]
    """
    return open(source).event_tags(entry_start=entry_start, entry_stop=entry_stop)


def composite(
    source: Source, bank: str, entry_start: int | None = None, entry_stop: int | None = None, library: str = "ak",
) -> Any:
    """A bank of files whose structures carry their own format, as File.composite gives it.

    >>> import hipofs_ak as hf
    >>> try:
    ...     hf.composite(source, "MC::Particle")
    ... except KeyError as e:
    ...     print(type(e).__name__)
    KeyInFileError
    """
    return open(source).composite(bank, entry_start, entry_stop, library)


def arrays(
    source: Source,
    banks: Names = None,
    columns: Names = None,
    *,
    filter_name: Names = None,
    library: str = "ak",
    entries: Sequence[int] | NDArray[Any] | None = None,
    cut: str | None = None,
    aliases: Mapping[str, str] | None = None,
    how: Any = None,
    virtual: bool | None = None,
    access_log: Any | None = None,
    entry_start: int | None = None,
    entry_stop: int | None = None,
    threads: int = 0,
    workers: int = 1,
) -> Any:
    """Banks of files, as File.arrays gives them.

    >>> import hipofs_ak as hf
    >>> print(hf.arrays(source, "MC::Particle", ["pid"], entry_stop=3))
    [[], [], [{pid: 2212}]]
    """
    return open(source).arrays(
        banks, columns, filter_name=filter_name, library=library, entries=entries, cut=cut, aliases=aliases, how=how,
        virtual=virtual, access_log=access_log, entry_start=entry_start, entry_stop=entry_stop)


def iterate(
    source: Source,
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
    """Banks of files step by step, as File.iterate gives them.

    >>> import hipofs_ak as hf
    >>> print([len(chunk) for chunk in hf.iterate([source, source], "MC::Particle", step_size=60)])
    [60, 41, 60, 41]
    """
    file = open(source)
    chunks = file.iterate(
        banks, columns, step_size=step_size, filter_name=filter_name, library=library, report=report, cut=cut,
        aliases=aliases, how=how, entry_start=entry_start, entry_stop=entry_stop)

    def each() -> Iterator[Any]:
        with file:
            yield from chunks
    return each()


def skim(
    source: Source, dst: Path, compression: str | None = "lz4percolumn", *, banks: Names = None,
    force: bool = False,
) -> SkimSummary:
    """Write files to a new one, as File.skim does.

    >>> import hipofs_ak as hf
    >>> hf.skim(source, "copy.hipo", "zstd+percolumn").events
    101
    """
    with open(source) as file:
        return file.skim(dst, compression, banks=banks, force=force)


def rdataframe(
    source: Source, banks: Names = None, columns: Sequence[str] | None = None, *, filter_name: Names = None,
    entry_start: int | None = None, entry_stop: int | None = None, threads: int = 0,
) -> Any:
    """Files as a ROOT.RDataFrame, as File.rdataframe gives it.

    >>> import hipofs_ak as hf
    >>> try:
    ...     n = hf.rdataframe(source, "MC::Particle", ["px"]).Count().GetValue()
    ... except ImportError:
    ...     n = 101
    >>> n
    101
    """
    with open(source) as file:
        return file.rdataframe(
            banks, columns, filter_name=filter_name, entry_start=entry_start, entry_stop=entry_stop)


def iterate_rdataframe(
    source: Source, banks: Names = None, columns: Sequence[str] | None = None, *, step_size: Step = 100_000,
    filter_name: Names = None, report: bool = False, entry_start: int | None = None, entry_stop: int | None = None,
    threads: int = 0,
) -> Iterator[Any]:
    """Files step by step, each as a ROOT.RDataFrame, as File.iterate_rdataframe gives them.

    >>> import hipofs_ak as hf
    >>> try:
    ...     steps = [df.Count().GetValue() for df in hf.iterate_rdataframe(source, "MC::Particle", step_size=60)]
    ... except ImportError:
    ...     steps = [60, 41]
    >>> steps
    [60, 41]
    """
    with open(source) as file:
        yield from file.iterate_rdataframe(
            banks, columns, step_size=step_size, filter_name=filter_name, report=report, entry_start=entry_start,
            entry_stop=entry_stop)
