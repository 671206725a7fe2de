# SPDX-License-Identifier: Apache-2.0
"""One scan shared by several threads: what is still to be read, what is being read, what was found.

The threads take items and give findings under one lock; reading itself happens outside it. An item is read
once, but for a parent that is named again after it was taken: its room may have changed with what named it,
and has no event of its own. Once closed nothing is taken and no late finding is noted, so that a thread that
comes back after hours harms nobody. Keeps no deadline and starts no thread by itself: ``look`` does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nodeagent.base import threads
from nodeagent.kernel.scan import scanner
from nodeagent.model.host import Host


@dataclass(slots=True, eq=False)
class _Worker:
    """A thread and the item in its hands, since when (monotonic seconds)."""

    item: scanner.Item | None = None
    since: float = 0.0
    call: threads.Call[None] | None = None


class ReadQueue:
    """The shared state of one scan; ``skip`` are items that must not be touched."""

    def __init__(
        self, reader: scanner.Scanner, plan: scanner.ReadList, previous: Host, skip: frozenset[scanner.Item]
    ) -> None:
        self.findings = scanner.Findings()
        self._scanner = reader
        self._plan = plan
        self._previous = previous
        self._skip = skip
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._missing: dict[scanner.Item, None] = {}
        self._seen: set[scanner.Item] = set()
        self._again: set[scanner.Item] = set()  # named again since a thread took it
        self._pending: deque[scanner.Item] = deque()
        self._closed = False
        self._progress = 0
        self._add(plan.items)

    @property
    def progress(self) -> int:
        """How many items were read."""
        return self._progress

    @property
    def pending(self) -> bool:
        """True if there is an item that no thread has taken."""
        return bool(self._pending)

    @property
    def done(self) -> bool:
        """True if all is read."""
        with self._lock:
            return not self._pending and not self._busy()

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

    def close(self, older_than: float) -> list[tuple[scanner.Item, threads.Call[None]]]:
        """End the scan; return the items, and their threads, that have been read for that many seconds."""
        now = time.monotonic()
        with self._lock:
            self._closed = True
            return [
                (worker.item, worker.call)
                for worker in self._busy()
                if now - worker.since > older_than and worker.item and worker.call
            ]

    def missing(self) -> list[scanner.Item]:
        """The items that were not read. For a closed survey."""
        return [*self._missing, *self._pending, *(w.item for w in self._busy() if w.item)]

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.item is not None]

    def _run(self, worker: _Worker) -> None:
        while (item := self._take(worker)) is not None:
            found = self._scanner.read(item)
            self._give(worker, item, found)

    def _take(self, worker: _Worker) -> scanner.Item | None:
        with self._lock:
            if self._closed or not self._pending:
                return None
            worker.since = time.monotonic()
            worker.item = self._pending.popleft()
            self._again.discard(worker.item)
            return worker.item

    def _give(self, worker: _Worker, item: scanner.Item, found: scanner.Found) -> None:
        with self._lock:
            if self._closed:
                return
            worker.item = None
            self._progress += 1
            self.findings.put(item, found)
            self._add(scanner.follow(self._plan, item, found, self._previous))
            if item.kind == "parent":
                self._seen.discard(item)
                self._add((item,) if item in self._again else ())

    def _add(self, items: Iterable[scanner.Item]) -> None:
        for item in items:
            if item in self._seen:
                self._again.add(item)
                continue
            self._seen.add(item)
            if item in self._skip:
                self._missing[item] = None
            else:
                self._pending.append(item)
