# SPDX-License-Identifier: Apache-2.0
"""The root of all host paths, and how they are read.

The only place that turns a path like ``/sys/bus/pci/devices`` into one of this process: with a prefix the
whole agent works on a tree of files. Reading never raises for a thing that is absent, vanishes or refuses:
in sysfs that is no error but a change under way, and the answer is None or (). Without a descriptor
or memory nothing can be read at all, and then every read raises KernelRefused: a device that could not be
read must not count as gone. Plain ``os`` calls, since a scan makes ten of them per device. Every call here
may block; none belongs on the event loop except on a path that cannot hang (``/proc`` of the own process,
directories of the agent).
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
MOST = 1 << 20  # bytes: an attribute has a page at most, but /proc/modules has no such bound
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENXIO)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Seconds; a read takes microseconds. Not in the record of time limits: the readers of the host's tables take
# the root alone, and nothing waits for it unless a device hangs.
_READ_TIMEOUT = 0.1


class Directory:
    """An open directory: reads of its entries need no walk from the root. Close it, or use ``with``."""

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
        """The number of the directory itself: another one means another device."""
        return os.fstat(self._fd).st_ino

    def names(self) -> list[str]:
        """The entries, in no order. :raises OSError: if the directory cannot be listed."""
        try:
            return os.listdir(self._path)
        except OSError as error:
            raise_if_out_of_resources(error)
            raise

    def text(self, name: str) -> str | None:
        """The content of an attribute without surrounding blanks; None if it cannot be had."""
        return _text(name, self._fd)

    def data(self, name: str, size: int) -> bytes | None:
        """The first bytes of a file; None if they cannot be had."""
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
        """The contents of several attributes, in their order."""
        fd = self._fd
        return [_text(name, fd) for name in names]

    def link(self, name: str) -> str | None:
        """The last component of a link's target, or None."""
        try:
            return os.readlink(name, dir_fd=self._fd).rpartition("/")[2]
        except OSError:
            return None

    def inodes(self, name: str) -> tuple[tuple[str, int], ...] | None:
        """The names in a sub-directory with their inode numbers, in no order; None if it is not there."""
        try:
            with os.scandir(f"{self._path}/{name}") as entries:
                return tuple([(entry.name, entry.inode()) for entry in entries])
        except OSError as error:
            raise_if_out_of_resources(error)
            return None

    def exists(self, name: str) -> bool:
        """True if the entry, after following links, exists."""
        return os.access(name, os.F_OK, dir_fd=self._fd)  # raises nothing, which takes longer


class Root:
    """The host as a tree of files below ``prefix``."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str | os.PathLike[str] = "/") -> None:
        self._prefix = os.path.abspath(os.fspath(prefix)).rstrip("/")  # noqa: PTH100 - text, not a Path

    def __repr__(self) -> str:
        return f"Root({self._prefix or '/'!r})"

    @property
    def prefix(self) -> str:
        """The directory that stands for ``/``."""
        return self._prefix or "/"

    @property
    def is_host(self) -> bool:
        """True for the real root: the paths are those of the running kernel, which sends uevents."""
        return not self._prefix

    def path(self, path: str) -> str:
        """The path in this process of the host path ``path`` (absolute)."""
        return self._prefix + path

    def host_path(self, path: str) -> str:
        """The host path of a path in this process; the opposite of ``path``."""
        return path.removeprefix(self._prefix)

    def directory(self, path: str) -> Directory:
        """Open a directory. :raises OSError: if it is not there or refuses."""
        return Directory(self._prefix + path)

    def text(self, path: str, most: int = MOST, errors: str = "strict") -> str | None:
        """The content without surrounding blanks; None if it cannot be read or is not UTF-8.

        A file of more than ``most`` bytes counts as none: half of it would be taken for the whole.
        ``errors`` as in ``bytes.decode``: names that users have chosen may have any bytes.
        """
        return _text(self._prefix + path, most=most, errors=errors)

    def target(self, path: str) -> str | None:
        """The whole target of a link as the kernel has it (relative), or None."""
        try:
            return os.readlink(self._prefix + path)  # noqa: PTH115 - a Path costs five times more
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """The last component of a link's target, or None."""
        target = self.target(path)
        return None if target is None else target.rpartition("/")[2]

    def names(self, path: str) -> tuple[str, ...]:
        """The sorted names in a directory; () if it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self._prefix + path)))
        except OSError as error:
            raise_if_out_of_resources(error)
            return ()

    def exists(self, path: str) -> bool:
        """True if the path, after following links, exists."""
        return os.access(self._prefix + path, os.F_OK)


def is_gone(error: OSError) -> bool:
    """True if the error says that the thing is not there (any more)."""
    return error.errno in _GONE


def raise_if_out_of_resources(error: OSError) -> None:
    """Return if the error says something of the thing that was looked at.

    :raises KernelRefused: if it says something of this process or the machine only.
    """
    if error.errno in _OUT_OF_RESOURCES:
        raise KernelRefused(
            f"the host cannot be looked at: {hints.strerror(error)}",
            hints.for_errno(error, "read", "what was seen last counts until then"),
            errno=error.errno,
        ) from error


def read_with_timeout(name: str, read: Callable[[], T]) -> list[T]:
    """The value, alone in a list that is empty if there is no answer at once: the thread is left behind then.

    ``name``: of the thread. Nothing is read again under that name before the thread has come back.
    """
    values: list[T] = []
    if all(each.name != name for each in threading.enumerate()):
        thread = threading.Thread(target=lambda: values.append(read()), name=name, daemon=True)
        with suppress(RuntimeError):  # no thread can be had
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
    """The rest of a file that is longer than an attribute; one part more than ``most`` at the most."""
    parts, size = [], 0
    while size <= most and (data := os.read(fd, 1 << 16)):
        parts.append(data)
        size += len(data)
    return b"".join(parts)
