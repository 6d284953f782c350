"""What leaves a File: Parquet, ROOT and HIPO files. Not here: how any of it is read."""
from __future__ import annotations

import errno
import os
import re
import secrets
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._bank import Npy
from ._errors import HipoError, HipoValueError
from ._mount import Tree, command, refusal, said
from ._need import need

if TYPE_CHECKING:
    from ._file import File, Names, Path

# What oxihipo calls these layouts of a file.
CODECS = {"lz4best": "lz4hc", "lz4perbank": "lz4hc+perbank", "lz4percolumn": "lz4hc+percolumn"}


class SkimSummary(NamedTuple):
    """What is in a file that skim has written: entries, records, bytes.

    >>> import hipofs_ak as hf
    >>> hf.SkimSummary(100, 2, 4096).events
    100
    """

    events: int
    records: int
    bytes: int


# ---------------------------------------------------------------- Parquet

def write_parquet(path: Path, schema: Any, tables: Iterable[Any], compression: str | None) -> int:
    """Write tables as row groups of a file, which gets its name when it is whole; how many there are."""
    pq = need("pyarrow.parquet")
    path = os.fspath(path)
    aside = f"{path}.{secrets.token_hex(4)}.part"
    try:
        with pq.ParquetWriter(aside, schema, compression=compression or "none") as writer:
            for table in tables:
                writer.write_table(table)
        groups: int = pq.read_metadata(aside).num_row_groups
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    return groups


# ---------------------------------------------------------------- ROOT

def rdataframe(array: Any, bank: str | None) -> Any:
    """An array of banks, or of one, as a ROOT.RDataFrame around the same memory."""
    ak = need("awkward")
    need("ROOT")
    return ak.to_rdataframe(rdf_columns(array, bank))


def rdf_columns(array: Any, bank: str | None) -> dict[str, Any]:
    """Columns by names that C++ allows: REC::Particle/px is REC_Particle_px."""
    ak = need("awkward")
    columns: dict[str, Any] = {}
    for b, of in [(bank, array)] if bank is not None else [(b, array[b]) for b in ak.fields(array)]:
        for c in ak.fields(of):
            name = re.sub(r"\W+", "_", f"{b}/{c}", flags=re.ASCII)
            name = f"_{name}" if name[:1].isdigit() else name
            if name in columns:
                raise HipoValueError(f"two columns would be called {name} in ROOT, and {b}/{c} is one of them")
            columns[name] = of[c]
    if not columns:
        raise HipoValueError("an RDataFrame needs columns, and nothing was selected")
    return columns


# ---------------------------------------------------------------- HIPO

def skim(file: File, dst: Path, compression: str | None, banks: Names, force: bool) -> SkimSummary:
    """Have hipofs write the entries of a File to a new one."""
    if not force and os.path.lexists(dst):
        raise FileExistsError(errno.EEXIST, "it exists already; force=True replaces it", os.fspath(dst))
    options = [f"--output={os.path.abspath(dst)}", *entries_kept(file)]
    if compression is not None:
        codec, _, split = compression.partition("+")
        options.append(f"--codec={CODECS.get(codec, codec)}{'' if split in ('', 'perchunk') else '+' + split}")
    shown = file.options.get("banks") if banks is None else ",".join([banks] if isinstance(banks, str) else banks)
    options += [f"--banks={shown}"] if shown is not None else []
    options += [f"--{name}={file.options[name]}" for name in ("index-dir", "on-error", "threads") if name in file.options]
    options += ["--force"] if force else []
    done = subprocess.run([command(), "skim", *options, "--", *file.sources], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode != 0:
        raise refusal(done.returncode, done.stderr)
    told = re.search(r": (\d+) entr(?:y|ies), (\d+) records?, ", (said(done.stderr) or [""])[-1])
    if told is None:
        raise HipoError(f"{os.fspath(dst)} is written, but hipofs did not say what is in it: {done.stderr.strip()}")
    return SkimSummary(int(told[1]), int(told[2]), os.stat(dst).st_size)


def entries_kept(file: File) -> list[str]:
    """The options of hipofs skim that mean the entries of a File."""
    first, last = mounted_range(file)
    require: list[str] = []
    listed: dict[str, set[str]] = {}
    path = file._open().view
    parts = path.split("/") if path else []
    for kind, what in zip(parts[::2], parts[1::2]):
        if kind == ".entries" and not require and not listed:
            start, _, stop = what.partition(":")
            a, b, _ = slice(int(start) if start else None, int(stop) if stop else None).indices(last - first)
            first, last = first + a, first + max(a, b)
            continue
        if kind != ".where":
            raise HipoValueError(f"skim cannot take {kind}/{what} of what it takes; take a range of entries first, then filter")
        for condition in what.split(","):
            word, _, values = condition.partition("=")
            if word == "require":
                require += values.split("+")
            elif word == "tag_any":  # the tags that have such a bit
                listed["tag"] = {str(tag) for tag in np.unique(file.event_tags())}
            elif word in ("tag", "record_tag"):
                listed[word] = listed.get(word, set(values.split("+"))) & set(values.split("+"))
            else:
                raise HipoValueError(f"skim cannot filter by {condition}")
    if not all(listed.values()):
        first = last  # nothing is one of none
    options = [f"--entries={first}:{last}"] if (first, last) != (0, file.num_entries_total) else []
    options += [f"--require={'+'.join(require)}"] if require else []
    options += [f"--{word.replace('_', '-')}={'+'.join(sorted(values))}" for word, values in listed.items() if values]
    return options


def mounted_range(file: File) -> tuple[int, int]:
    """The entries of its files that a mount shows; all of them, unless whoever mounted it wanted fewer."""
    with Npy(Tree(file._open().mount, ""), ".hipofs/entries.npy", "entries") as npy:
        shown = npy.values(0, npy.rows)
    if len(shown) and shown[-1] - shown[0] + 1 != len(shown):
        raise HipoValueError(f"{file.mount} shows what a filter has left of its files; open the files to skim them")
    return (int(shown[0]), int(shown[-1]) + 1) if len(shown) else (0, 0)
