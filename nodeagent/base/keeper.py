# SPDX-License-Identifier: Apache-2.0
"""A descriptor that ends with the process, also where a thread of it sleeps in the kernel for ever.

A killed process lives on until its last thread has ended, and its table of descriptors with it. So a thread
that does nothing else keeps the descriptor in a table of its own (CLOSE_RANGE_UNSHARE of close_range(2),
which containers may call where they may not unshare(2)). It sleeps where SIGKILL reaches it, and when it has
ended, no thread of the process will ever run code of ours again. So what flock(2) says of such a descriptor
is true of the process, on the other side of a container's walls as well.

It must run no Python meanwhile: the collector closes files by their numbers in whichever thread it runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

from nodeagent.base import memory

_LAST = ctypes.c_uint(0xFFFFFFFF)
_UNSHARE = 2  # CLOSE_RANGE_UNSHARE: a copy of the table first


class Keeper:
    """Keeps one descriptor until it is released, or the process ends."""

    def __init__(self, descriptor: int) -> None:
        """Take it over. Where threads can have no tables of their own, it stays in that of the process."""
        self._descriptor = descriptor
        self._alone = False
        self._ready, self._over = threading.Lock(), threading.Lock()
        self._ready.acquire()
        self._over.acquire()
        self._thread = threading.Thread(target=self._keep, name="nodeagent, keeper", daemon=True)
        with memory.uncollected():
            self._thread.start()
            self._ready.acquire()  # the thread has released it on its way to sleep
        if self._alone:
            os.close(descriptor)

    def release(self) -> None:
        """Close the descriptor."""
        with memory.uncollected():
            self._over.release()
            self._thread.join()
        if not self._alone:
            os.close(self._descriptor)

    def _keep(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # handlers write to the loop
        self._alone = _part_with_all_but(self._descriptor)
        self._ready.release()
        self._over.acquire()
        if self._alone:
            os.close(self._descriptor)


def _part_with_all_but(descriptor: int) -> bool:
    """Give this thread a table with that descriptor alone; False if the system cannot."""
    close_range = getattr(ctypes.CDLL(None), "close_range", None)
    if close_range is None or close_range(descriptor + 1, _LAST, _UNSHARE) != 0:
        return False
    if descriptor > 0:
        close_range(0, descriptor - 1, 0)
    return True
