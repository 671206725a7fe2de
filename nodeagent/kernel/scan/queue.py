# SPDX-License-Identifier: Apache-2.0
"""One scan shared by several threads.

An item is read once, but for a parent of mdevs that is named again after it was taken: its room may have
changed with what named it, and has no event of its own. That is the worklist's to know, which has no lock.

The threads take items and give values under one lock; reading itself happens outside it. Once closed
nothing is taken and no late value is noted, so that a thread that comes back after hours harms nobody.
Keeps no deadline and starts no thread by itself: ``runner`` does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.scan import scanner
from nodeagent.kernel.scan.readers import Item
from nodeagent.model.host import Host


class Worklist:
    """Starts with the items of a ReadList; ``skip`` are items that must not be touched."""

    def __init__(self, plan: scanner.ReadList, previous: Host, skip: frozenset[Item]) -> None:
        self.findings = scanner.Findings()
        self.skipped: dict[Item, None] = {}
        self.read = 0  # how many items were read
        self._plan = plan
        self._previous = previous
        self._skip = skip
        self._known: set[Item] = set()
        self._again: set[Item] = set()  # named again since they were taken
        self._pending: deque[Item] = deque()
        self._add(plan.items)

    @property
    def pending(self) -> tuple[Item, ...]:
        """The items that nobody has taken."""
        return tuple(self._pending)

    def __bool__(self) -> bool:
        """True if there is an item that nobody has taken."""
        return bool(self._pending)

    def take(self) -> Item:
        """The next item. :raises IndexError: if there is none."""
        item = self._pending.popleft()
        self._again.discard(item)
        return item

    def give(self, item: Item, value: object) -> None:
        """Note what an item read as, and add what else is to be read now."""
        self.read += 1
        self.findings.put(item, value)
        self._add(scanner.follow(self._plan, item, value, self._previous))
        if scanner.READERS[item.table].again:
            self._known.discard(item)
            self._add((item,) if item in self._again else ())

    def _add(self, items: Iterable[Item]) -> None:
        for item in items:
            if item in self._known:
                self._again.add(item)
                continue
            self._known.add(item)
            if item in self._skip:
                self.skipped[item] = None
            else:
                self._pending.append(item)


class _Worker:
    """A thread and the item in its hands, since when (monotonic seconds)."""

    __slots__ = ("call", "item", "since")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.since = 0.0
        self.call: threads.Call[None] | None = None


class ReadQueue:
    """The threads of one scan, and what they share."""

    def __init__(self, reader: scanner.Scanner, items: Worklist) -> None:
        self._scanner = reader
        self._items = items
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._closed = False
        self.refused: KernelRefused | None = None  # why a thread could not look at its item

    @property
    def progress(self) -> int:
        """How many items were read."""
        return self._items.read

    @property
    def pending(self) -> bool:
        """True if there is an item that no thread has taken."""
        return bool(self._items)

    @property
    def done(self) -> bool:
        """True if all is read, or nothing can be."""
        with self._lock:
            return self._closed or (not self._items and not self._busy())

    def start(self) -> threads.Call[None]:
        """Start one more thread on the items."""
        worker = _Worker()
        self._workers.append(worker)
        worker.call = threads.start(self._run, worker)
        return worker.call

    def overdue(self, deadline: float) -> bool:
        """True if threads are at work, each on its item for more than ``deadline`` seconds."""
        now = time.monotonic()
        with self._lock:
            busy = self._busy()
            return bool(busy) and all(now - worker.since > deadline for worker in busy)

    def close(self, older_than: float) -> list[tuple[Item, threads.Call[None]]]:
        """End the scan; return the items, and their threads, that have been read for that many seconds."""
        now = time.monotonic()
        with self._lock:
            self._closed = True
            return [
                (worker.item, worker.call)
                for worker in self._busy()
                if now - worker.since > older_than and worker.item and worker.call
            ]

    def missing(self) -> list[Item]:
        """The items that were not read. For a closed scan."""
        return [*self._items.skipped, *self._items.pending, *(w.item for w in self._busy() if w.item)]

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.item is not None]

    def _run(self, worker: _Worker) -> None:
        try:
            while (item := self._take(worker)) is not None:
                self._give(worker, item, self._scanner.read(item))
        except KernelRefused as refused:
            with self._lock:
                worker.item, self.refused, self._closed = None, refused, True

    def _take(self, worker: _Worker) -> Item | None:
        with self._lock:
            if self._closed or not self._items:
                return None
            worker.since = time.monotonic()
            worker.item = self._items.take()
            return worker.item

    def _give(self, worker: _Worker, item: Item, value: object) -> None:
        with self._lock:
            if not self._closed:
                worker.item = None
                self._items.give(item, value)
