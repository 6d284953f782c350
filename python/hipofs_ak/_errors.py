"""What goes wrong while reading, each error with its place. Not here: the rules that find it."""
from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Collection


class HipoError(Exception):
    """Whatever hipofs says is wrong; all errors of this package but those of wrong arguments are one.

    >>> import hipofs_ak as hf
    >>> issubclass(hf.CorruptFileError, hf.HipoError)
    True
    """


class CorruptFileError(HipoError):
    """Bytes of a HIPO file that cannot be read as what they should be.

    file: the file's name, "" where hipofs did not say; record: its number in the file, byte: where in the file it
    begins; both None for damage outside of records.

    >>> import hipofs_ak as hf
    >>> hf.CorruptFileError("run.hipo: record 3 at byte 9: LZ4 data is damaged", "run.hipo", 3, 9).record
    3
    """

    def __init__(self, message: str, file: str = "", record: int | None = None, byte: int | None = None):
        super().__init__(message)
        self.file, self.record, self.byte = file, record, byte

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None, int | None]]:
        return type(self), (str(self), self.file, self.record, self.byte)


class HipoIOError(HipoError, OSError):
    """A file, a folder or the mount itself cannot be read: an OSError, with errno where the system gave one.

    >>> import hipofs_ak as hf
    >>> issubclass(hf.HipoIOError, OSError)
    True
    """


class HipoNotFoundError(HipoIOError, FileNotFoundError):
    """No file, or no file that a pattern or folder matches: a FileNotFoundError.

    >>> import hipofs_ak as hf
    >>> try:
    ...     hf.open("no such file.hipo")
    ... except FileNotFoundError as e:
    ...     print(type(e).__name__)
    HipoNotFoundError
    """


class KeyInFileError(HipoError, KeyError):
    """A bank, column or tag that the files do not have; the message names the nearest that they have.

    >>> import hipofs_ak as hf
    >>> issubclass(hf.KeyInFileError, KeyError)
    True
    """

    def __str__(self) -> str:  # KeyError shows the repr of what it was given
        return str(self.args[0]) if self.args else ""


class HipoValueError(HipoError, ValueError):
    """What was asked for makes no sense: a cut that is no cut, dictionaries in conflict, a closed file.

    >>> import hipofs_ak as hf
    >>> issubclass(hf.HipoValueError, ValueError)
    True
    """


class HipoWarning(UserWarning):
    """What hipofs says when it mounts, and that is no error: files left out, how it reads them where it cannot mount.

    >>> import hipofs_ak as hf
    >>> issubclass(hf.HipoWarning, UserWarning)
    True
    """


def missing(what: str, name: str, where: str, known: Collection[str]) -> KeyInFileError:
    """The error for a name that is not there, with the nearest that are."""
    near = difflib.get_close_matches(name, list(known), 3, 0.6)
    if not near:  # another case, or a part of the name
        low = name.lower()
        near = [k for k in known if k.lower() == low or len(low) > 2 and low in k.lower()][:3]
    if near:
        hint = f"; the nearest are {', '.join(near)}"
    elif len(known) <= 12:
        hint = f"; there are {', '.join(known)}" if known else "; there are none"
    else:
        hint = f"; there are {len(known)} others"
    return KeyInFileError(f"no {what} {name!r} in {where}{hint}")


def not_found(path: str, message: str) -> HipoNotFoundError:
    return HipoNotFoundError(errno.ENOENT, message, path)


def io_error(number: int, message: str, path: str | None = None) -> HipoIOError:
    """A HipoIOError with the system's number."""
    return HipoIOError(number, message or os.strerror(number), path)
