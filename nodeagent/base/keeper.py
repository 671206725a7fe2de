# SPDX-License-Identifier: Apache-2.0
"""A descriptor that ends with the process, also where a thread of it sleeps in the kernel for ever.

A killed process lives on until its last thread has ended, and its table of descriptors with it. So a thread
that does nothing else keeps the descriptor in a table of its own. It sleeps where SIGKILL reaches it, and
when it has ended, no thread of the process will ever run code of ours again. So what flock(2) says of such a
descriptor is true of the process, on the other side of a container's walls as well.

It must run no Python meanwhile: the collector closes files by their numbers in whichever thread it runs.
"""

from __future__ import annotations

import contextlib
import os
import threading

from nodeagent.base import apart, memory


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
        with memory.uncollected(), contextlib.suppress(RuntimeError):  # no thread can be had
            self._thread.start()
            self._ready.acquire()  # the thread has released it on its way to sleep
        if self._alone:
            os.close(descriptor)

    def release(self) -> None:
        """Close the descriptor."""
        if self._thread.ident is not None:
            with memory.uncollected():
                self._over.release()
                self._thread.join()
        if not self._alone:
            os.close(self._descriptor)

    def _keep(self) -> None:
        try:
            self._alone = apart.part(self._descriptor)
        finally:
            self._ready.release()
        self._over.acquire()
        if self._alone:
            os.close(self._descriptor)
