"""Reading in steps: their sizes, and work on them in other processes. Not here: how a step is read."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

from ._errors import HipoValueError

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


class Report(NamedTuple):
    """Which entries a step has: entry_start to entry_stop of the chain, all of the file file_path.

    >>> import hipofs_ak as hf
    >>> with hf.open(source) as f:
    ...     for chunk, report in f.iterate("MC::Particle", step_size=100, report=True):
    ...         print(report.entry_start, report.entry_stop)
    0 100
    100 101
    """

    entry_start: int
    entry_stop: int
    file_path: str


class Step(NamedTuple):
    """Entries start to stop, all of one file."""

    start: int
    stop: int
    file: str


def step_entries(step_size: int | str, entry_bytes: Callable[[], float]) -> int:
    """How many entries a step has: step_size is their number, or "200 MB", which entry_bytes (the mean) turns into one."""
    if isinstance(step_size, bool) or not isinstance(step_size, (int, str)):
        raise TypeError(f"step_size must be a number of entries or a size such as '200 MB', not {step_size!r}")
    if isinstance(step_size, int):
        if step_size <= 0:
            raise HipoValueError("step_size must be a positive number of entries")
        return step_size
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]+)\s*", step_size)
    unit = UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise HipoValueError(f"cannot parse step_size {step_size!r}; want a number of entries or a size such as '200 MB'")
    size = int(float(found[1]) * unit)
    if size <= 0:
        raise HipoValueError("step_size must be a positive size")
    return max(1, int(size / max(entry_bytes(), 1e-9)))


def steps(files: Sequence[tuple[str, int, int]], start: int, stop: int, entries: int) -> Iterator[Step]:
    """Steps of exactly so many entries; the last of a file has what is left. files has (name, first entry, last + 1)."""
    for name, first, end in files:
        lo, hi = max(first, start), min(end, stop)
        while lo < hi:
            yield Step(lo, min(lo + entries, hi), name)
            lo += entries


def mapped(work: Callable[[Step], Any], parts: Sequence[Step], workers: int) -> Iterator[Any]:
    """work(step) for each step, in order, by so many processes, which read no further ahead than twice their number."""
    if workers == 1:
        yield from map(work, parts)
        return
    workers = min(workers or os.cpu_count() or 1, len(parts))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        ahead = 2 * workers
        waiting = [pool.submit(work, part) for part in parts[:ahead]]
        try:
            for n in range(len(parts)):
                result = waiting.pop(0).result()
                if n + ahead < len(parts):
                    waiting.append(pool.submit(work, parts[n + ahead]))
                yield result
        finally:
            for future in waiting:
                future.cancel()
