# SPDX-License-Identifier: Apache-2.0
"""The root of all host paths, and functions to read them.

This is the only module that converts a host path such as ``/sys/bus/pci/devices`` into a path of this
process: with a prefix, the whole agent uses a tree of files. A read of a missing or vanishing file returns
None or (), because in sysfs that is not an error but a change in progress. Without a free file descriptor or
memory, however, every read raises KernelRefused: a device that could not be read must not count as removed.
Plain ``os`` calls are used, since a scan makes ten of them per device. Every call may block; call these on
the event loop only for paths that cannot hang (``/proc`` of this process, directories of the agent).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused

T = TypeVar("T")

_ATTRIBUTE = 256  # bytes; nearly all attributes are shorter, and small buffers are cheap
MOST = 1 << 20  # bytes; an attribute has at most one page, but /proc/modules can be longer
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENXIO)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Seconds; a read takes microseconds. Not in the record of time limits: readers of the host's tables receive
# only the root, and nothing waits this long unless a device hangs.
_READ_TIMEOUT = 0.1


class Directory:
    """An open directory: its entries are read without resolving the whole path. Close the object with
    ``close``, or use it in a ``with`` statement.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise_if_out_of_resources(error)
            raise

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def inode(self) -> int:
        """Return the inode of the directory; a different one means a different device."""
        return os.fstat(self._fd).st_ino

    def names(self) -> list[str]:
        """Return the entries, unsorted. :raises OSError: if the directory cannot be listed."""
        try:
            return os.listdir(self._path)
        except OSError as error:
            raise_if_out_of_resources(error)
            raise

    def text(self, name: str) -> str | None:
        """Return the content of an attribute without surrounding whitespace; None if it cannot be read."""
        return _text(name, self._fd)

    def data(self, name: str, size: int) -> bytes | None:
        """Return the first bytes of a file; None if it cannot be read."""
        try:
            fd = os.open(name, os.O_RDONLY, dir_fd=self._fd)
        except OSError as error:
            raise_if_out_of_resources(error)
            return None
        try:
            return os.read(fd, size)
        except OSError:
            return None
        finally:
            os.close(fd)

    def texts(self, names: Sequence[str]) -> list[str | None]:
        """Return the contents of several attributes, in the given order."""
        fd = self._fd
        return [_text(name, fd) for name in names]

    def link(self, name: str) -> str | None:
        """Return the last component of a link's target, or None."""
        try:
            return os.readlink(name, dir_fd=self._fd).rpartition("/")[2]
        except OSError:
            return None

    def inodes(self, name: str) -> tuple[tuple[str, int], ...] | None:
        """Return the names in a subdirectory with their inodes, unsorted; None if it does not exist."""
        try:
            with os.scandir(f"{self._path}/{name}") as entries:
                return tuple([(entry.name, entry.inode()) for entry in entries])
        except OSError as error:
            raise_if_out_of_resources(error)
            return None

    def exists(self, name: str) -> bool:
        """Return True if the entry, after following links, exists."""
        # this call raises no exception, which would take longer
        return os.access(name, os.F_OK, dir_fd=self._fd)


class Root:
    """The files of the host, which are below ``prefix``."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str | os.PathLike[str] = "/") -> None:
        self._prefix = os.path.abspath(os.fspath(prefix)).rstrip("/")  # noqa: PTH100 - text, not a Path

    def __repr__(self) -> str:
        return f"Root({self._prefix or '/'!r})"

    @property
    def prefix(self) -> str:
        """Return the directory that is the host's ``/``."""
        return self._prefix or "/"

    @property
    def is_host(self) -> bool:
        """Return True for the real root: the paths are those of the running kernel, which sends uevents."""
        return not self._prefix

    def path(self, path: str) -> str:
        """Return the path for this process of the absolute host path ``path``."""
        return self._prefix + path

    def host_path(self, path: str) -> str:
        """Return the host path of a path of this process; this is the inverse of ``path``."""
        return path.removeprefix(self._prefix)

    def directory(self, path: str) -> Directory:
        """Open a directory. :raises OSError: if it does not exist or cannot be opened."""
        return Directory(self._prefix + path)

    def text(self, path: str, most: int = MOST, errors: str = "strict") -> str | None:
        """Return the content without surrounding whitespace; None if it cannot be read or is not UTF-8.

        The result is also None for a file of more than ``most`` bytes, whose first part could be mistaken
        for the whole. ``errors`` as in ``bytes.decode``: names that users choose may contain any bytes.
        """
        return _text(self._prefix + path, most=most, errors=errors)

    def target(self, path: str) -> str | None:
        """Return the complete target of a link as the kernel stores it (relative), or None."""
        try:
            return os.readlink(self._prefix + path)  # noqa: PTH115 - a Path costs five times more
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """Return the last component of a link's target, or None."""
        target = self.target(path)
        return None if target is None else target.rpartition("/")[2]

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; () if it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self._prefix + path)))
        except OSError as error:
            raise_if_out_of_resources(error)
            return ()

    def exists(self, path: str) -> bool:
        """Return True if the path, after following links, exists."""
        return os.access(self._prefix + path, os.F_OK)


def is_gone(error: OSError) -> bool:
    """Return True if the error means that the file does not exist or no longer exists."""
    return error.errno in _GONE


def raise_if_out_of_resources(error: OSError) -> None:
    """Return without an exception if the error concerns the file that was read.

    :raises KernelRefused: if the error concerns only this process or node.
    """
    if error.errno in _OUT_OF_RESOURCES:
        raise KernelRefused(
            f"the host cannot be read: {hints.strerror(error)}",
            hints.for_errno(error, "read", "nodeagent uses the last scan until then"),
            errno=error.errno,
        ) from error


def read_with_timeout(name: str, read: Callable[[], T]) -> list[T]:
    """Return a list with the value of ``read``, or an empty list if ``read`` does not return in time; its
    thread is then abandoned.

    ``name`` is the name of the thread. Until that thread has returned, a call with the same name reads
    nothing.
    """
    values: list[T] = []
    if all(each.name != name for each in threading.enumerate()):
        thread = threading.Thread(target=lambda: values.append(read()), name=name, daemon=True)
        with suppress(RuntimeError):  # no thread can be started
            thread.start()
            thread.join(_READ_TIMEOUT)
    return values[:1]


def _text(path: str, dir_fd: int | None = None, most: int = MOST, errors: str = "strict") -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    except OSError as error:
        raise_if_out_of_resources(error)
        return None
    try:
        data = os.read(fd, _ATTRIBUTE)
        if len(data) == _ATTRIBUTE:
            data += _rest(fd, most)
            if len(data) > most:
                return None
        return data.strip().decode(errors=errors)
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(fd)


def _rest(fd: int, most: int) -> bytes:
    """Return the rest of a file that is longer than an attribute, at most one block more than ``most``."""
    parts, size = [], 0
    while size <= most and (data := os.read(fd, 1 << 16)):
        parts.append(data)
        size += len(data)
    return b"".join(parts)
