"""Mounts: one that is there, or one of our own, which lives no longer than this process. Not here: banks and columns.

An own mount is a child process, `hipofs mount --until-eof`, which serves a folder that nobody else knows. It ends when
its standard input does, whatever this process ends by; so no other process may hold the other end of that pipe. What is
mapped stays served until it is unmapped.
"""
from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ._errors import CorruptFileError, HipoError, HipoValueError, HipoWarning, io_error, not_found

PREFIX = "hipofs_ak-"  # of folders with own mounts
PATIENCE = 20  # seconds for a mount to go, once asked to
SOON = 0.2  # seconds for a process to end that serves nobody any more
FOREVER = "100000h"  # what is mapped is served as long
TOO_LONG = 500_000  # characters of sources for one command line

# Exit statuses of hipofs.
USAGE, SOURCE, DICTIONARY, NO_FUSE = 2, 3, 4, 6


class NoFUSE(HipoError):
    """This process cannot mount; the message says why."""


def command() -> str:
    """The program hipofs: what $HIPOFS names, or beside this Python, or in $PATH."""
    named = os.environ.get("HIPOFS")
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "hipofs")
    found = shutil.which(named) if named else shutil.which(beside) or shutil.which("hipofs")
    if found is None:
        raise not_found(named, "$HIPOFS names no program") if named else not_found(
            "hipofs", "this program is neither beside this Python nor in $PATH; set $HIPOFS to where it is")
    return found


# ---------------------------------------------------------------- what hipofs says

def said(text: str) -> list[str]:
    """The sentences in what hipofs wrote to standard error, which may have lines of its log between them."""
    return [line.removeprefix("hipofs: ") for line in text.splitlines() if line.startswith("hipofs: ")]


def refusal(status: int, text: str) -> HipoError:
    """The error for a hipofs that ended with a status other than 0."""
    message = (said(text) or [text.strip().rpartition("\n")[2] or f"hipofs ended with status {status}"])[-1]
    if status == NO_FUSE:
        return NoFUSE(message)
    if status in (USAGE, DICTIONARY):
        return HipoValueError(message)
    if status != SOURCE:
        return HipoError(message)
    path, _, what = message.partition(": ")
    if "no *.hipo file" in what or "no file matches" in what or "404 Not Found" in what:
        return not_found(path, what)
    for number in errno.errorcode:
        if what.lower().startswith(os.strerror(number).lower()):
            return not_found(path, what) if number == errno.ENOENT else io_error(number, what, path)
    file, record, byte = place(message)
    if byte is None and "://" in path:  # what a server says
        return io_error(errno.EIO, what, path)
    return CorruptFileError(message, file, record, byte)


def place(message: str) -> tuple[str, int | None, int | None]:
    """Where a sentence "FILE: record 3 at byte 9: …" says that something is wrong."""
    file, _, rest = message.partition(": ")
    numbers: dict[str, int] = {}
    words = rest.partition(": ")[0].split()
    for word, number in zip(words, words[1:]):
        if word in ("record", "byte") and number.isdigit():
            numbers[word] = int(number)
    return file, numbers.get("record"), numbers.get("byte")


# ---------------------------------------------------------------- mounts

def is_tree(path: str) -> bool:
    """Whether a folder is a mount of hipofs, a view in one, or an export."""
    return os.path.isfile(os.path.join(path, ".hipofs", "dictionary.json"))


class Mount:
    """A mount that somebody has made, and that is left to them. Safe for use by many threads."""

    def __init__(self, path: str):
        self._path = path

    def path(self) -> str:
        """Where the tree is."""
        return self._path

    def file(self, view: str, name: str) -> str:
        """Where a file of the tree, or of a view in it, is."""
        return os.path.join(self.path(), view, name)

    def shows(self, view: str) -> bool:
        """Whether there is such a view."""
        return os.path.isdir(self.file(view, ""))

    def names(self, view: str, folder: str) -> list[str]:
        """What a folder of the tree lists, in order; nothing where it is not there."""
        with suppress(FileNotFoundError):
            return sorted(os.listdir(self.file(view, folder)))
        return []

    @functools.cached_property
    def _tier(self) -> bool:
        """Whether hipofs keeps columns as files in a cache folder."""
        with suppress(HipoValueError):  # closed by another thread
            return os.path.isdir(self.file("", ".hipofs/links"))
        return False

    def real(self, path: str) -> str | None:
        """The plain file that has all of a file of the tree, where hipofs keeps such files. It is made if need be."""
        if sys.platform == "linux" and self._tier:
            with suppress(OSError):
                return os.fsdecode(os.getxattr(path, "user.hipofs.realpath"))
        return None

    def ahead(self, names: Sequence[str]) -> None:
        """These files of the tree are about to be opened."""

    def end(self) -> None:
        """Do without the mount."""


class OwnMount(Mount):
    """A mount for this process, which ends with end(), when it is collected, or with this process.

    A fork of this process uses it as long as it is there, and then one of its own.
    """

    def __init__(self, sources: Sequence[str], options: Sequence[str]):
        self._sources, self._options = tuple(sources), tuple(options)
        self._serve()

    def _serve(self) -> None:
        self._server = Server(self._sources, self._options)
        self._finalizer = weakref.finalize(self, self._server.end)

    def path(self) -> str:
        if not self._finalizer.alive:
            raise HipoValueError("operation on a closed File; what is to be used after close() must be read before")
        if self._server.owner != os.getpid() and not is_tree(self._server.point):
            with _spawning:
                if self._server.owner != os.getpid():
                    self._serve()
        return self._server.point

    def end(self) -> None:
        if self._finalizer.detach():
            self._server.end(SOON)


class Server:
    """The process that serves an own mount, and this process's ends of its pipes.

    Its folder has the mount point `mnt`, and `log`, its standard error, which is locked for as long as it lives.
    """

    def __init__(self, sources: Sequence[str], options: Sequence[str]):
        self.owner = os.getpid()
        program = command()
        sweep()
        self._folder, log = private_folder()
        self.point = os.path.join(self._folder, "mnt")
        try:
            os.mkdir(self.point)
            if sum(map(len, sources)) > TOO_LONG:
                sources = [listed(self._folder, sources)]
            with _spawning:
                self._process = subprocess.Popen(
                    [program, "mount", "--until-eof", "--grace", FOREVER, *options, *sources, self.point],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, cwd="/",
                    start_new_session=True)  # Ctrl-C is for this process alone
                _servers.add(self)
        except BaseException:
            clear(self._folder)
            raise
        finally:
            os.close(log)
        try:
            self._wait()
        except BaseException:  # also Ctrl-C
            self.end()
            raise

    def _wait(self) -> None:
        """Wait until the mount answers."""
        stdout = self._process.stdout
        assert stdout is not None
        answer = stdout.read(64)
        with open(os.path.join(self._folder, "log"), errors="replace") as log:
            text = log.read()
        if answer != b"mounted\n":
            status = self._process.wait()
            raise refusal(status if status > 0 else 1, text)
        for sentence in said(text):
            warnings.warn(sentence, HipoWarning, stacklevel=2)

    def end(self, patience: float = 0) -> None:
        """End the mount: its name goes now, its process when nothing of it is mapped any more."""
        if self.owner != os.getpid():
            return
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with _spawning:
            _servers.discard(self)
            process.stdin.close()
        gone = select.poll()  # its standard output ends once its name is gone
        gone.register(process.stdout, select.POLLHUP)
        gone.poll(PATIENCE * 1000)
        process.stdout.close()
        waiting = threading.Thread(target=process.wait, name="hipofs mount", daemon=True)
        try:
            waiting.start()
            waiting.join(patience)
        except RuntimeError:  # Python ends, and starts no threads any more
            process.returncode = process.poll() or 0
        clear(self._folder)

    def forked(self) -> None:
        """Let go of what is the parent's, in a child of a fork."""
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.returncode = 0  # or else it warns that it still runs


_servers: set[Server] = set()
_spawning = threading.RLock()  # no fork while there is a pipe that is not in _servers


def _forked() -> None:
    for server in _servers:
        server.forked()
    _servers.clear()
    _spawning.release()


os.register_at_fork(before=_spawning.acquire, after_in_parent=_spawning.release, after_in_child=_forked)


# ---------------------------------------------------------------- their folders

def private_folder() -> tuple[str, int]:
    """A new folder for this user alone, and its log, open and locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        log = os.open(os.path.join(folder, "log"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(log).st_nlink:
                return folder, log
        except BlockingIOError:
            pass  # somebody sweeps it away this very moment
        os.close(log)


def listed(folder: str, sources: Sequence[str]) -> str:
    """The sources as one word, which names a list of them."""
    for source in sources:
        if "\n" in source or " #" in source or source != source.strip():
            raise HipoValueError(f"{source!r} cannot be in a list, and there are too many files without one; rename it")
    path = os.path.join(folder, "sources")
    with open(path, "x", errors="surrogateescape") as out:
        out.writelines(f"{source}\n" for source in sources)
    return "@" + path


def clear(folder: str) -> None:
    """Remove a folder whose server has ended its mount, or was killed."""
    point = os.path.join(folder, "mnt")
    try:
        os.rmdir(point)
    except FileNotFoundError:
        pass
    except OSError:  # busy: a mount without a server
        detach(point)
        with suppress(OSError):
            os.rmdir(point)
    for name in ("sources", "log"):
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))
    with suppress(OSError):
        os.rmdir(folder)


def detach(point: str) -> None:
    """Take away a mount without a server."""
    for words in (["fusermount3", "-u", "-z", point], ["umount", "-l", point]):
        with suppress(OSError, subprocess.SubprocessError):
            if subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE).returncode == 0:
                return


def sweep() -> None:
    """Remove what processes of this user have left behind that were killed together with their servers."""
    above = tempfile.gettempdir()
    with suppress(OSError):
        for name in os.listdir(above):
            folder = os.path.join(above, name)
            if name.startswith(PREFIX) and abandoned(folder):
                clear(folder)


def abandoned(folder: str) -> bool:
    """Whether nobody holds the lock of a folder of ours. Its lock is taken for a moment."""
    try:
        if os.lstat(folder).st_uid != os.geteuid():
            return False
        log = os.open(os.path.join(folder, "log"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # it is just being made
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(os.path.join(folder, "log"))
        return True
    except OSError:
        return False
    finally:
        os.close(log)


# ---------------------------------------------------------------- a tree

class Tree(NamedTuple):
    """The files of a mount, or of a view in it: view is its path below the mount, "" for all entries."""

    mount: Mount
    view: str
    kept: Any = None  # of who reads it in steps, see _bank.Kept

    def folder(self) -> str:
        return os.path.join(self.mount.path(), self.view).rstrip("/")

    def file(self, name: str) -> str:
        return self.mount.file(self.view, name)

    def fact(self, name: str) -> Any:
        """What a JSON file of the tree says."""
        with self.reading(name), open(self.file(name), "rb") as file:
            try:
                return json.load(file)
            except ValueError as e:
                raise HipoError(f"{self.file(name)} is no JSON: {e}") from None

    def names(self, folder: str) -> list[str]:
        """What a folder of the tree lists."""
        with self.reading(folder):
            return self.mount.names(self.view, folder)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Around reading of a file: what the system says is wrong becomes what hipofs says is wrong."""
        try:
            yield
        except HipoError:
            raise
        except OSError as e:
            raise self.explain(what, e) from e

    def explain(self, what: str, e: OSError) -> HipoError:
        if e.errno == errno.EIO:
            for fault in self._faults(what):
                message = f"{what}: {fault['message']}"
                record, byte = fault["record"], fault["byte"]
                return CorruptFileError(message, fault["file"], record if record >= 0 else None, byte if byte >= 0 else None)
        if e.errno == errno.ESTALE:
            return io_error(errno.ESTALE, f"{what}: a file has changed since it was opened; open it again")
        if e.errno == errno.ENOTCONN:
            return io_error(errno.ENOTCONN, f"{what}: the mount {self.mount.path()} has ended; open the files again")
        return io_error(e.errno or 0, f"{what}: {e.strerror}", e.filename)

    def _faults(self, what: str) -> list[dict[str, Any]]:
        """The faults of the files, those first that name what was read, or its bank."""
        try:
            with open(self.mount.file("", ".hipofs/errors.json"), "rb") as file:
                faults: list[dict[str, Any]] = json.load(file)
        except (OSError, ValueError):
            return []
        bank = what.partition("/")[0]
        return sorted(faults, key=lambda f: (bank not in f["message"], f["record"] < 0))
