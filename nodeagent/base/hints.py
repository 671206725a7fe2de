# SPDX-License-Identifier: Apache-2.0
"""Hints for errors of the operating system: the fix for an errno and the operation that failed.

An ordinary user without a permission needs sudo. If root is refused, a sandbox or security module restricts
the process, and file modes are irrelevant. Callers may append further fixes and the consequence of the error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Literal

Operation = Literal["read", "list", "write", "listen", "run"]
"""Reading a file, listing a directory, writing a file, listening on a socket, running a program."""

DENIED = frozenset({errno.EACCES, errno.EPERM})

_SUDO = "try again with sudo: this user lacks the permission"
_CONFINED = (
    "root itself is refused: check what restricts this process (AppArmor, SELinux, the sandbox of its "
    "service or container), and whether it is on a network file system"
)
_ROOM = "make room on that file system (df shows how much, df -i how many files)"
_DIRECTORY = "a part of that path is no directory: correct the path, or move that file away"

_ANY: Mapping[int, str] = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: _DIRECTORY,
    errno.EEXIST: _DIRECTORY,  # raised by mkdir
    errno.ELOOP: "symbolic links on that path form a loop: correct them",
    errno.ENAMETOOLONG: "shorten the path: a file name may have 255 bytes, a path 4095",
    errno.EROFS: "it is mounted read-only here: mount it writable (ReadWritePaths= of a service, a volume of "
    "a pod)",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n, LimitNOFILE= of a "
    "service)",
    errno.ENFILE: "too many files are open on this node: find the process with most of them, and end it",
    errno.ENOMEM: "this node is out of memory: find the process that uses most, and end it",
    errno.EIO: "the disk or device reports errors: see the kernel log (dmesg)",
    errno.ENODEV: "its device, or the driver of that device, was removed",
    errno.ENXIO: "its device, or the driver of that device, was removed",
    errno.EBUSY: "another process uses it: find it with fuser -v, and end it first",
    errno.ESTALE: "remount the network file system that contains the file",
    errno.EADDRINUSE: "another program uses that name: end that program, or remove its socket file",
    errno.EAFNOSUPPORT: "the sandbox of this process denies such sockets: see RestrictAddressFamilies=",
}
_SPECIAL: Mapping[tuple[Operation, int], str] = {
    ("read", errno.ENOENT): "give the path of a file that is there",
    ("read", errno.EISDIR): "that is a directory: give the path of a file",
    ("list", errno.ENOTDIR): "make it a directory",
    ("write", errno.EISDIR): "a directory has the name of the file: move it away",
    ("write", errno.ENOENT): "make the directory",
    ("listen", errno.ENOENT): "make the directory",
    ("run", errno.ENOENT): "install it",
    ("run", errno.EACCES): "make it executable, on a file system that is not mounted noexec",
}


def for_errno(error: OSError, operation: Operation, *more: str) -> str:
    """Return the hint for the error, followed by ``more``."""
    return "; ".join(filter(None, (_hint(error.errno or 0, operation), *more)))


def strerror(error: Exception) -> str:
    """Return the error text without the number and the path that Python adds."""
    return getattr(error, "strerror", None) or str(error)


def _hint(number: int, operation: Operation) -> str:
    special = _SPECIAL.get((operation, number))
    if special is None and number in DENIED:
        return _CONFINED if os.geteuid() == 0 else _SUDO
    return special or _ANY.get(number, "")
