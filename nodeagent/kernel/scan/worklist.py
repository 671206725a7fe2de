# SPDX-License-Identifier: Apache-2.0
"""The items of one scan: what is still to be read, what was read, and what must not be touched.

An item is read once, but for a parent of mdevs that is named again after it was taken: its room may have
changed with what named it, and has no event of its own. Knows no threads; ``queue`` has the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

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
