# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole and at once: a reader finds the old text or the new one, also after a crash.

``StateFile`` is for values that outlive the daemon, each a JSON file below /run or /var/lib. A file that
cannot be read as its type counts as none: whoever writes it sets it aside and logs that, and others leave it
alone. There is no checksum: a person may edit it. Also reads files that a person names on the command line,
to a bound. A file that was not finished has a name that ends in ``.new``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused

if TYPE_CHECKING:
    from nodeagent.base.log import Event

T = TypeVar("T")

ASIDE = ".broken"
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of a parser
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # say nothing of the file
STDIN = "-"  # in place of a path


def read_input(path: str, limit: int) -> bytes:
    """The file that a person named, or standard input; a byte more than the limit if it is longer. Blocks.

    :raises OSError: if it cannot be read.
    """
    with open(0 if path == STDIN else path, "rb", closefd=path != STDIN) as file:
        return file.read(limit + 1)


class NotRegular(OSError):
    """Raised for a pipe, a device or a socket in the place of a file."""


def read_regular(path: str, limit: int | None = None) -> bytes:
    """Return the content of a regular file, a byte more than the limit if it is longer. Blocks.

    :raises NotRegular: if it is another kind of file: a pipe without a writer must not be waited for.
    :raises OSError: if it cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file", path)
        return file.read() if limit is None else file.read(limit + 1)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def replace(path: str | Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file, for all to read unless told otherwise, and its directory if need be. Blocks.

    :raises OSError: if it cannot be written.
    """
    at = Path(path)
    aside = at.with_suffix(".new")
    at.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        with open(aside, "w", encoding="utf-8", opener=_private) as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(at)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()  # a full disk has room for the name, and who looks through a directory finds it
        raise


def put(path: str | Path, text: str, more: str, *, what: str = "", mode: int = 0o644) -> None:
    """As ``replace``; ``what`` the file is to people, if its path alone does not say it. Blocks.

    :raises KernelRefused: if it cannot be written, with what to do, and ``more``: what goes without it.
    """
    try:
        replace(path, text, mode=mode)
    except OSError as error:
        raise KernelRefused(
            f"{what}{path} cannot be written: {hints.strerror(error)}",
            hints.for_errno(error, "write", more),
            errno=error.errno or 0,
            path=str(path),
        ) from error


def _private(path: str, flags: int) -> int:
    """Opened for its owner alone: nobody else reads what is only to get its mode."""
    return os.open(path, flags, 0o600)


class Damaged(ValueError):
    """Raised for a file that cannot be read as its type."""


class StateFile(Generic[T]):
    """The type of a file; its path is an argument, since it depends on the root. All methods block."""

    def __init__(
        self,
        empty: T,
        parse: Callable[[dict[str, Any]], T],
        plain: Callable[[T], dict[str, Any]],
        hint: str,
        lost: Event | None = None,
        mode: int = 0o600,
    ) -> None:
        """``empty``: the value without a file. ``parse`` makes the value of plain data, ``plain`` the data.

        ``hint``: the consequence of a file that cannot be written. ``lost``: logged for a damaged one.
        """
        self._empty = empty
        self._parse = parse
        self._plain = plain
        self._hint = hint
        self._lost = lost
        self._mode = mode

    def read(self, path: str) -> T:
        """The value; the empty one if there is no file, or it is not ours to read.

        :raises Damaged: if it cannot be read as its type.
        :raises KernelRefused: if nothing can be read at present.
        """
        try:
            data = read_regular(path)
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                what = f"{path} cannot be read: {hints.strerror(error)}"
                raise KernelRefused(what, hints.for_errno(error, "read"), path=path) from error
            return self._empty
        try:
            document = json.loads(data)
            if not isinstance(document, dict):
                raise TypeError("not an object")
            return self._parse(document)
        except _WRONG as error:
            raise Damaged(f"{path} is damaged; it is kept as {path}{ASIDE}") from error

    def peek(self, path: str) -> T:
        """As ``read``, but a damaged file counts as none, and stays. :raises KernelRefused: as ``read``."""
        try:
            return self.read(path)
        except Damaged:
            return self._empty

    def load(self, path: str) -> T:
        """As ``peek``, by the writer: a damaged file is set aside, and logged."""
        try:
            return self.read(path)
        except Damaged as error:
            with contextlib.suppress(OSError):
                Path(path).replace(path + ASIDE)
            if self._lost is not None:
                from nodeagent.base import log  # here: commands read such files, too

                log.event(self._lost, error=str(error))
            return self._empty

    def save(self, path: str, value: T) -> None:
        """Replace the file; remove it for the empty value. :raises KernelRefused: if that fails."""
        if value != self._empty:
            put(path, json.dumps(self._plain(value), sort_keys=True), self._hint, mode=self._mode)
            return
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            what = f"{path} cannot be removed: {hints.strerror(error)}"
            raise KernelRefused(what, self._hint, errno=error.errno or 0, path=path) from error
