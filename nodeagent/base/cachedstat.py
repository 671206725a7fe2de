# SPDX-License-Identifier: Apache-2.0
"""What the kernel has in memory of a file. Its file system is not asked: whoever serves that may be dead.

statx(2) with ``AT_STATX_DONT_SYNC``, which FUSE and file systems of networks heed (``fuse_update_get_attr``
in fs/fuse/dir.c, ``nfs_getattr`` in fs/nfs/inode.c). Where there is no such call, stat(2) has to do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

_AT_FDCWD = -100
_FLAGS = 0x4000 | 0x800  # AT_STATX_DONT_SYNC, AT_NO_AUTOMOUNT, in include/uapi/linux/fcntl.h
_WANTED = 0x1 | 0x100  # STATX_TYPE, STATX_INO
_STATX = struct.Struct("=28xH2xQ88x4I112x")  # struct statx in include/uapi/linux/stat.h
_NO_CALL = frozenset({errno.ENOSYS, errno.EPERM})  # an old kernel; a filter of system calls that is older

_statx: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)


class Status(NamedTuple):
    """As of ``os.stat``: ``mode`` has the file type only for certain, ``rdev`` is 0 but for devices."""

    mode: int
    device: int
    inode: int
    rdev: int


def status(path: str) -> Status:
    """Of the file that the path leads to.

    :raises OSError: if it leads to none, or may not be looked at.
    """
    return _by_stat(path) if _statx is None else _by_statx(_statx, path)


def _by_statx(statx: Callable[..., int], path: str) -> Status:
    buffer = ctypes.create_string_buffer(_STATX.size)
    if statx(_AT_FDCWD, os.fsencode(path), _FLAGS, _WANTED, buffer) == 0:
        mode, inode, *numbers = _STATX.unpack(buffer)
        rdev, device = os.makedev(*numbers[:2]), os.makedev(*numbers[2:])
        return Status(mode, device, inode, rdev)
    code = ctypes.get_errno()
    if code in _NO_CALL:
        return _by_stat(path)
    raise OSError(code, os.strerror(code), path)


def _by_stat(path: str) -> Status:
    found = os.stat(path)  # noqa: PTH116 - thousands of them, and a Path costs five times more
    return Status(found.st_mode, found.st_dev, found.st_ino, found.st_rdev)
