# SPDX-License-Identifier: Apache-2.0
"""A write that may sleep in the kernel for ever, in a thread that shares no descriptor with the process.

A process that is killed lives on until its last thread has ended, and so does that thread's table of
descriptors: listening sockets, the kubelet's connections. So the file is opened and written in a thread with
an empty table of its own (CLOSE_RANGE_UNSHARE of close_range(2), which containers may call where they may not
unshare(2)). That thread does these calls and nothing else: Python's collector closes files by their numbers
in whichever thread it runs, and there they would stay open.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import signal
import threading
from collections.abc import Callable

_LAST = ctypes.c_uint(0xFFFFFFFF)
_UNSHARE = 2  # CLOSE_RANGE_UNSHARE: a copy of the table first


def write(path: str, data: bytes) -> None:
    """Write to a file that is there, by one call. Blocks. :raises OSError: as open(2) and write(2)."""
    numbers = [errno.EIO]
    ended = threading.Lock()
    ended.acquire()
    try:
        _thread.start_new_thread(_write, (path, data, numbers.append, ended.release))
    except RuntimeError as error:  # no thread can be had
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    ended.acquire()
    if number := numbers[-1]:
        raise OSError(number, os.strerror(number), path)


def part(kept: int = -1) -> bool:
    """Give this thread a table of its own, with one descriptor of the process's or none, and no signals.

    False if the system cannot, and then the table is shared as that of any thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # handlers write to the loop
    close_range = getattr(ctypes.CDLL(None), "close_range", None)
    if close_range is None or close_range(kept + 1, _LAST, _UNSHARE) != 0:
        return False
    if kept > 0:
        close_range(0, kept - 1, 0)
    return True


def _write(path: str, data: bytes, tell: Callable[[int], None], end: Callable[[], None]) -> None:
    part()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        tell(error.errno or errno.EIO)
    else:
        tell(0)
    finally:
        end()
