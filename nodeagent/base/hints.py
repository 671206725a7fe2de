# SPDX-License-Identifier: Apache-2.0
"""Hints for errors of the operating system: what to do, by the errno and by the operation that failed.

Where a permission is missing, an ordinary user needs sudo. Root needs none: then something confines this
process, and no mode of a file mends that. Knows nothing of the content of files or the other end of sockets:
the caller adds what else may be done, and what goes wrong until then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Literal

Operation = Literal["read", "list", "write", "listen", "run"]
"""Reading a file, listing a directory, writing a file, listening at a socket, running a program."""

DENIED = frozenset({errno.EACCES, errno.EPERM})

_SUDO = "try again with sudo: this user may not do that"
_CONFINED = (
    "root itself is refused: see what confines this process (AppArmor, SELinux, the sandbox of its service "
    "or container), and whether it is on a network file system"
)
_ROOM = "make room on that file system (df shows how much, df -i how many files)"
_DIRECTORY = "a part of that path is no directory: mend the path, or move away what is there"

_ANY: Mapping[int, str] = {
    errno.ENOENT: "see whether the path is right",
    errno.ENOTDIR: _DIRECTORY,
    errno.EEXIST: _DIRECTORY,  # of mkdir
    errno.ELOOP: "symbolic links on that path lead in a circle: mend them",
    errno.ENAMETOOLONG: "a name may have 255 bytes, a path 4095: shorten it",
    errno.EROFS: "it is mounted read-only here: mount it writable (ReadWritePaths= of a service, a volume of "
    "a pod)",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n, LimitNOFILE= of a "
    "service)",
    errno.ENFILE: "all processes of this machine have too many files open: see which has most, and end that",
    errno.ENOMEM: "this machine has no memory left: see which process has most, and end that",
    errno.EIO: "the disk or device below it fails: the kernel's log (dmesg) says more",
    errno.ENODEV: "what was behind it is gone: its device, or the driver of that",
    errno.ENXIO: "what was behind it is gone: its device, or the driver of that",
    errno.EBUSY: "something else uses it: see what (fuser -v names processes), and end that first",
    errno.ESTALE: "mount its network file system again",
    errno.EADDRINUSE: "another program has that name: end it, or move away what it has left",
    errno.EAFNOSUPPORT: "its sandbox lets this process have no such sockets: see RestrictAddressFamilies=",
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
    """The hint for the error, then ``more``; only that where there is no hint."""
    return "; ".join(filter(None, (_hint(error.errno or 0, operation), *more)))


def strerror(error: Exception) -> str:
    """The text of the error, without the number and the path that Python puts around it."""
    return getattr(error, "strerror", None) or str(error)


def _hint(number: int, operation: Operation) -> str:
    special = _SPECIAL.get((operation, number))
    if special is None and number in DENIED:
        return _CONFINED if os.geteuid() == 0 else _SUDO
    return special or _ANY.get(number, "")
