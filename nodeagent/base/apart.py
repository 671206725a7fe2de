# SPDX-License-Identifier: Apache-2.0
"""The thread of the event loop has a table of descriptors of its own, apart from that of all other threads.

A process that is killed lives on until its last thread has ended, and so does the table of descriptors of
that thread. All that may sleep in the kernel for ever, a write to sysfs or a disk that hangs, does so in
threads that ``start`` has started. So the loop's thread is set apart: what it opens from then on, listening
sockets and the kubelet's connections, ends with it, however long another sleeps.

What this asks for: no descriptor goes from the loop to a thread or back, and what a call opens is closed when
it ends. Circles of objects are collected on the loop's thread alone (``base.memory``), for Python closes what
it finds there by its number, in the table of the thread in which it happens to be.

Tables are parted by CLOSE_RANGE_UNSHARE of close_range(2), which containers may call where they may not
unshare(2). Where there is no such call, all is shared, as in any process.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import queue
import signal
import threading
from collections.abc import Iterable
from typing import ClassVar

_LAST = ctypes.c_uint(0xFFFFFFFF)
_UNSHARE = 2  # CLOSE_RANGE_UNSHARE: a copy of the table first


class _Starter:
    """A thread that starts others: a thread has the table of the one that has started it."""

    present: ClassVar[_Starter | None] = None  # of a process whose loop is set apart

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        _thread.start_new_thread(self._run, ())  # nobody waits until it runs: the daemon is starting

    def start(self, thread: threading.Thread) -> None:
        """Start it. :raises RuntimeError: if no thread can be had."""
        with self._turn:
            self._wanted.put(thread)
            error = self._outcomes.get()
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            try:
                self._wanted.get().start()
            except RuntimeError as error:
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)


def set_apart(own: Iterable[int] = ()) -> None:
    """Give the calling thread a copy of its table. Meant for the thread of the loop, which can be woken then.

    To be called once, after the loop was made: others wake it by a descriptor of the same number. Of what is
    open already, ``own`` are the loop's alone: they end with the process, too.
    """
    starter = _Starter()
    if _close_range(_LAST, _UNSHARE):
        _Starter.present = starter
        for number in own:
            closing = threading.Thread(target=os.close, args=(number,), name="nodeagent, parted", daemon=True)
            starter.start(closing)
            closing.join()


def start(thread: threading.Thread) -> None:
    """Start a thread that shares no descriptor with the loop. :raises RuntimeError: if none can be had."""
    if _Starter.present is None:
        thread.start()
    else:
        _Starter.present.start(thread)


def part(kept: int) -> bool:
    """Give this thread a table of its own, with one descriptor of the process's, and no signals.

    False if the system cannot, and then the table is shared as before.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # handlers write to the loop
    if not _close_range(ctypes.c_uint(kept + 1), _UNSHARE):
        return False
    if kept > 0:
        _close_range(ctypes.c_uint(0), 0, ctypes.c_uint(kept - 1))
    return True


def _close_range(first: ctypes.c_uint, flags: int, last: ctypes.c_uint = _LAST) -> bool:
    close_range = getattr(ctypes.CDLL(None), "close_range", None)
    return close_range is not None and close_range(first, last, flags) == 0
