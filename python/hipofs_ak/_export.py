"""Files where nothing can be mounted: hipofs export writes what is read of them to a folder, in the shape of a mount.

The folder is $XDG_CACHE_HOME/hipofs/export/KEY, where KEY says which files these are, and what they were when they were
opened, so that other processes find what is there already. In it are `tree`, in the shape of a mount; `views`, the same
for some of the entries; and `lock`, held while something is added, whose time is that of the last use. What was not used
for longest goes when all folders together are too large. Not here: what of the files is read, and when.
"""
from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from ._errors import HipoError, HipoValueError, HipoWarning, io_error
from ._mount import PREFIX, SOURCE, Mount, command, refusal

LIMIT = 20 << 30  # bytes of all folders together
PASSED_ON = ("memory", "threads", "index-dir", "on-error")  # options of a mount that other commands have, too
NOTHING = "\x01"  # matches no bank

_told: list[str] = []


def tell(why: str) -> None:
    """Warn, once in a process, that files are not mounted."""
    if not _told:
        _told.append(why)
        warnings.warn(f"{why}; so what is used of the files is written to {above()} first", HipoWarning, stacklevel=4)


def above() -> str:
    """Where the folders are."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "hipofs", "export")


def run(*words: str, partly: bool = False) -> str:
    """What hipofs prints. With partly, also what it prints of files that are damaged in places."""
    done = subprocess.run([command(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode and not (partly and done.returncode == SOURCE and done.stdout):
        raise refusal(done.returncode, done.stderr)
    return done.stdout


def identity(path: str) -> tuple[str, int, int]:
    """What tells a file from others and from what it was before; of a URL, its name."""
    try:
        of = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, of.st_size, of.st_mtime_ns


def file_name(name: str) -> str:
    """What a bank or column is called in a tree."""
    return quote(name, safe=": +@=") if name != "offsets" else "%6Fffsets"


def pattern(name: str) -> str:
    """A pattern that matches a name, and says nothing else in a list of patterns."""
    return re.sub(r"[*?\[\]\\,^]", "?", name)


class Exported(Mount):
    """Files that are exported as they are used. Safe for use by many threads and processes."""

    def __init__(self, sources: Sequence[str], options: Mapping[str, str | int]):
        self._sources = list(sources)
        self._banks = [f"--banks={options['banks']}"] if "banks" in options else []
        self._options = [f"--{name}={value}" for name, value in options.items() if name in PASSED_ON]
        self._about: dict[str, Any] | None = None
        with self._export([NOTHING], "--entries=0:0") as folder, open(f"{folder}/.hipofs/files.json", "rb") as facts:
            self._chain = json.load(facts)
        self._names = [f["name"] for f in self._chain]
        self._are = [identity(name) for name in self._names]
        key = hashlib.sha256(json.dumps([self._are, sorted(self._options), self._banks]).encode()).hexdigest()
        self._folder = os.path.join(above(), key[:32])
        super().__init__(os.path.join(self._folder, "tree"))
        with self._adding():
            self._put(".hipofs/files.json", self._chain)

    # ------------------------------------------------------------ what is there

    def _at(self, view: str, name: str) -> str:
        if not view:
            return os.path.join(self._path, name)
        return os.path.join(self._folder, "views", hashlib.sha256(view.encode()).hexdigest()[:32], name)

    def file(self, view: str, name: str) -> str:
        if name.endswith(".json") and not name.startswith(".event/"):
            view = ""  # it says the same of every view
        path = self._at(view, name)
        if not os.path.exists(path):
            with self._adding():
                if not os.path.exists(path):
                    self._make(view, name)
        return path

    def ahead(self, names: Iterable[str]) -> None:
        if not all(os.path.exists(self._at("", name)) for name in names):
            with self._adding():
                self._fetch([name for name in names if not os.path.exists(self._at("", name))])

    def real(self, path: str) -> str | None:
        return None  # it is one

    def shows(self, view: str) -> bool:
        try:
            self.file(view, ".hipofs/entries.npy")
        except (ValueError, OverflowError, IndexError):
            return False
        return True

    def names(self, view: str, folder: str) -> list[str]:
        banks = self._listed()["banks"]
        if folder == ".nodes":
            return [b["name"] for b in banks if b["undeclared"]]
        populated = [file_name(b["name"]) for b in banks if b.get("rows") and not b["undeclared"]]
        return [b for b in populated if not view or self._load(view, f"{b}/offsets.npy")[-1]]

    def _load(self, view: str, name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self.file(view, name), mmap_mode="r")
        return array

    def _listed(self) -> dict[str, Any]:
        """What hipofs ls says of the banks."""
        if self._about is None:
            self._about = json.loads(run("ls", "--json", *self._banks, *self._options, *self._sources, partly=True))
        return self._about

    # ------------------------------------------------------------ what is added

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """While something is added, of which no other thread or process thinks the same meanwhile."""
        try:
            while True:
                os.makedirs(self._path, 0o700, exist_ok=True)
                lock = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.fstat(lock).st_nlink and os.path.isdir(self._path):
                    break
                os.close(lock)  # somebody has just removed it
        except OSError as e:
            raise io_error(e.errno or 0, f"{e.strerror}; set $XDG_CACHE_HOME to a folder of yours", self._folder) from e
        try:
            os.utime(lock)
            for name in os.listdir(self._folder):
                if name.startswith(PREFIX):  # of somebody who was killed
                    shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
            yield
        finally:
            os.close(lock)
        clean(self._folder)

    @contextmanager
    def _export(self, banks: Sequence[str], *more: str) -> Iterator[str]:
        """A folder with an export, for a moment."""
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=getattr(self, "_folder", None)) as folder:
            run("export", "-q", "--format=npy", "--banks=" + ",".join(map(pattern, banks)), *more, *self._options,
                *self._sources, f"{folder}/out")
            yield f"{folder}/out"

    def _put(self, name: str, content: Any, view: str = "") -> None:
        """Put an array or JSON where a file is to be; it gets its name when it is whole."""
        path = self._at(view, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".part", "wb") as out:
            if isinstance(content, np.ndarray):
                np.lib.format.write_array(out, np.ascontiguousarray(content), (1, 0), allow_pickle=False)
            else:
                out.write(json.dumps(content).encode())
        os.replace(path + ".part", path)

    def _make(self, view: str, name: str) -> None:
        if name.startswith(".event/"):
            entries = self._load_made(view, ".hipofs/entries.npy")
            self._put(name, self._event(int(entries[int(name.split("/")[1])])), view)
        elif view:
            self._put(name, self._some(view, name), view)
        elif name == ".hipofs/dictionary.json":
            self._put(name, [_facts(b, file_name(b["name"])) for b in self._listed()["banks"] if not b["undeclared"]])
        elif name == ".hipofs/records.json":
            only = [o for o in self._options if not o.startswith(("--memory", "--on-error"))]
            self._put(name, [json.loads(line) for line in run("index", "-q", "--dump", *only, *self._sources).splitlines()])
        elif name == ".hipofs/entries.npy":
            self._put(name, np.arange(self._listed()["entries"], dtype=np.int64))
        else:
            self._fetch([name])

    def _load_made(self, view: str, name: str) -> NDArray[Any]:
        """A file of the tree, made if need be; the folder is locked."""
        if not os.path.exists(self._at(view, name)):
            self._make(view, name)
        array: NDArray[Any] = np.load(self._at(view, name), mmap_mode="r")
        return array

    def _fetch(self, names: Sequence[str]) -> None:
        """Export files of the tree, all in one pass."""
        wanted: dict[str, set[str]] = {}  # columns, by bank
        for name in names:
            folder, _, file = name.rpartition("/")
            columns = wanted.setdefault(NOTHING if folder == ".hipofs" else unquote(folder.removeprefix(".nodes/")), set())
            if file not in ("offsets.npy", "schema.json"):  # which come with any column
                columns.add(unquote(file).removesuffix(".npy"))
        if not wanted:
            return
        listed = {b["name"]: b["columns"] for b in self._listed()["banks"]} if set() in wanted.values() else {}
        options = [f"--columns={pattern(bank)}/{pattern(column)}" for bank in sorted(wanted.keys() - {NOTHING})
                   for column in sorted(wanted[bank]) or [listed[bank][0]["name"]]]
        if self._are != [identity(name) for name in self._names]:
            raise self._changed()
        with self._export(sorted(wanted), *options) as folder:
            if self._are != [identity(name) for name in self._names]:
                raise self._changed()
            self._take(folder)
        for name in names:
            if not os.path.exists(self._at("", name)):
                raise self._left_out(unquote(os.path.dirname(name).removeprefix(".nodes/")))

    def _changed(self) -> HipoError:
        return io_error(errno.ESTALE, f"one of the files has changed since it was opened; open it again: {self._names}")

    def _left_out(self, bank: str) -> HipoError:
        try:
            with self._export([bank]):
                return HipoError(f"{bank}: hipofs export has left it out")
        except HipoError as e:
            return e

    def _take(self, folder: str) -> None:
        """Move what was exported to where it is in the tree."""
        with open(f"{folder}/.hipofs/dictionary.json", "rb") as facts:
            banks = json.load(facts)
        moves = {f"{b['folder']}/{c['file']}": f"{file_name(b['name'])}/{file_name(c['name'])}.npy" for b in banks for c in b["columns"]}
        moves |= {f"{b['folder']}/offsets.npy": f"{file_name(b['name'])}/offsets.npy" for b in banks}
        for above, _, files in os.walk(folder):
            for file in files:
                name = os.path.relpath(os.path.join(above, file), folder)
                to = moves.get(name, name if name.startswith((".nodes/", ".hipofs/")) else None)
                if to is not None and to not in (".hipofs/dictionary.json", ".hipofs/export.json", ".hipofs/files.json"):
                    os.makedirs(os.path.dirname(self._at("", to)), exist_ok=True)
                    os.replace(os.path.join(above, file), self._at("", to))

    # ------------------------------------------------------------ some of the entries

    def _some(self, view: str, name: str) -> NDArray[Any]:
        """A file of a view."""
        if name == ".hipofs/entries.npy":
            return self._entries(view)
        entries = self._load_made(view, ".hipofs/entries.npy")
        if name.startswith(".hipofs/"):
            return np.asarray(self._load_made("", name)[entries])
        offsets = self._load_made("", f"{os.path.dirname(name)}/offsets.npy")
        first, counts = offsets[entries], np.diff(offsets)[entries]
        into = np.zeros(len(entries) + 1, np.int64)
        np.cumsum(counts, out=into[1:])
        if name.endswith("/offsets.npy"):
            return into
        return np.asarray(self._load_made("", name)[np.arange(into[-1]) + np.repeat(first - into[:-1], counts)])

    def _entries(self, view: str) -> NDArray[np.int64]:
        """The original numbers of the entries that a view keeps."""
        entries = np.asarray(self._load_made("", ".hipofs/entries.npy"), np.int64)
        parts = view.split("/")
        for kind, value in zip(parts[::2], parts[1::2]):
            if kind == ".entries":
                first, _, last = value.partition(":")
                entries = entries[int(first or 0):int(last) if last else None]
            elif kind == ".event":
                entries = entries[[int(value)]]
            elif kind == ".where":
                for condition in value.split(","):
                    entries = entries[self._holds(condition, entries)]
            else:
                raise HipoValueError(f"{kind} takes a mount")
        return entries

    def _holds(self, condition: str, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For which of the entries a condition holds."""
        word, _, text = condition.partition("=")
        values = [unquote(value) for value in text.split("+")]
        keep = np.ones(len(entries), bool)
        if word == "require":
            for bank in values:
                keep &= np.diff(self._load_made("", f"{file_name(bank)}/offsets.npy"))[entries] > 0
        elif word == "file":
            keep[:] = False
            for f in self._chain:
                if any(fnmatch.fnmatchcase(os.path.basename(f["name"]), p) for p in values):
                    keep |= (entries >= f["first_entry"]) & (entries < f["first_entry"] + f["entries"])
        elif word not in ("tag", "tag_any", "record_tag"):
            raise HipoValueError(f"{condition} is no condition")
        else:
            tags = self._load_made("", f".hipofs/{'record_tags' if word == 'record_tag' else 'event_tags'}.npy")[entries]
            numbers = np.array([int(value) for value in values], tags.dtype)
            keep = tags & np.bitwise_or.reduce(numbers) != 0 if word == "tag_any" else np.isin(tags, numbers)
        return keep

    def _event(self, entry: int) -> dict[str, Any]:
        """One entry as event.json of a mount has it."""
        with open(self._at("", ".hipofs/files.json"), "rb") as facts:
            file = next(f for f in json.load(facts) if f["first_entry"] <= entry < f["first_entry"] + f["entries"])
        populated = [b["name"] for b in self._listed()["banks"] if b.get("rows")]
        if not os.path.exists(self._at("", ".hipofs/records.json")):
            self._make("", ".hipofs/records.json")
        with open(self._at("", ".hipofs/records.json"), "rb") as facts:
            record = next(r for r in json.load(facts) if r["first_entry"] <= entry < r["first_entry"] + r["events"])
        with self._export([*populated, NOTHING], f"--entries={entry}:{entry + 1}") as folder:
            with open(f"{folder}/.hipofs/dictionary.json", "rb") as facts:
                banks = [(b["name"], f"{folder}/{b['folder']}") for b in json.load(facts)]
            nodes = [(n, f"{folder}/.nodes/{n}") for n in sorted(os.listdir(f"{folder}/.nodes"))] if os.path.isdir(
                f"{folder}/.nodes") else []
            return {
                "entry": entry, "file": file["name"], "record": record["record"],
                "tag": int(np.load(f"{folder}/.hipofs/event_tags.npy")[0]), "record_tag": record["record_tag"],
                "banks": [{"name": n, "rows": rows} for n, path in banks if (rows := _rows(path))],
                "nodes": [{"name": n, "rows": rows} for n, path in nodes if (rows := _rows(path))],
            }


def _facts(bank: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """A bank of ls as dictionary.json has it."""
    return {"name": bank["name"], "folder": folder, "group": bank["group"], "item": bank["item"],
            "columns": [{**c, "file": f"{file_name(c['name'])}.npy"} for c in bank["columns"]]}


def _rows(folder: str) -> list[dict[str, Any]]:
    """The rows of a bank's folder, each by the names of its columns."""
    with open(f"{folder}/schema.json", "rb") as facts:
        columns = {c["name"]: np.load(f"{folder}/{c['file']}").tolist() for c in json.load(facts)["columns"]}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def clean(but: str) -> None:
    """Remove the folders that were not used for longest, until all are within the limit; but one stays."""
    folders = []
    with suppress(OSError):
        folders = [os.path.join(above(), name) for name in os.listdir(above())]
    sizes = {folder: size(folder) for folder in folders}
    total = sum(sizes.values())
    for folder in sorted(folders, key=used):
        if total <= LIMIT:
            break
        if os.path.samefile(folder, but) if os.path.exists(but) else folder == but:
            continue
        with suppress(OSError):
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(os.path.join(folder, "lock"))
                shutil.rmtree(folder)
                total -= sizes[folder]
            finally:
                os.close(lock)


def size(folder: str) -> int:
    """Bytes of the files in a folder."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(above, name)).st_size
    return total


def used(folder: str) -> float:
    """When something was last added to a folder, or it was opened."""
    try:
        return os.stat(os.path.join(folder, "lock")).st_mtime
    except OSError:
        return 0
