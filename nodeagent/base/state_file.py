# SPDX-License-Identifier: Apache-2.0
"""Values that outlive the daemon, each a JSON file below /run or /var/lib.

A file is replaced whole (``files``). A file that cannot be read as its type counts as none: whoever writes it
sets it aside and logs that, and others leave it alone. There is no checksum: a person may edit it.
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

from nodeagent.base import advice, files
from nodeagent.base.errors import KernelRefused

if TYPE_CHECKING:
    from nodeagent.base.log import Event

T = TypeVar("T")

ASIDE = ".broken"
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of a parser
_UNKNOWN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # say nothing of the file


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
            data = _content(path)
        except OSError as error:
            if error.errno in _UNKNOWN:
                what = f"{path} cannot be read: {advice.words(error)}"
                raise KernelRefused(what, advice.on(error, advice.Doing.READ), path=path) from error
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
            files.put(path, json.dumps(self._plain(value), sort_keys=True), self._hint, mode=self._mode)
            return
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            what = f"{path} cannot be removed: {advice.words(error)}"
            raise KernelRefused(what, self._hint, errno=error.errno or 0, path=path) from error


def _content(path: str) -> bytes:
    """:raises OSError: if it is no file that can be read; a pipe without a writer must not be waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return file.read()
