# SPDX-License-Identifier: Apache-2.0
"""Look: a scan that cannot be stopped by a device that does not answer.

Items are read by daemon threads that share one list. A thread that makes no progress for a moment keeps its
item, and another thread goes on with the rest; what has not answered after the deadline is reported as
unreadable with its last known identity, and its thread is left behind. While a thread is stuck in an
item nobody reads it again; when the thread comes back, ``on_recovered`` asks for a new look at it.
So a look takes at most the deadline longer than without stuck devices, however many they are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import anyio

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import scanner
from nodeagent.kernel.scan.queue import ReadQueue
from nodeagent.model.host import Group, Host, Mdev, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress

_THREADS = 64  # that one look may leave behind, at most

NOT_READABLE = "not readable: being removed?"


class ScanRunner:
    """Looks at the host below one root; several looks may be under way at once.

    ``deadline``: seconds that one item may take; ``patience``: seconds without any progress after which
    another thread goes on. ``on_recovered`` gets the key of an item that can be read again; None: the list.
    """

    def __init__(
        self,
        root: Root,
        *,
        deadline: float = 2.0,
        patience: float = 0.05,
        on_recovered: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._scanner = scanner.Scanner(root)
        self._deadline = deadline
        self._patience = patience
        self._on_recovered = on_recovered
        self._stuck: Counter[scanner.Item] = Counter()
        self._listing: threads.Call[scanner.ReadList] | None = None

    @property
    def stuck(self) -> tuple[str, ...]:
        """The keys of the items in which a thread is stuck."""
        return tuple(sorted(item.key for item in self._stuck))

    async def look(
        self,
        keys: frozenset[str] | None,
        previous: Host,
        nodes: Sequence[str] = (),
        recoveries: Mapping[PciAddress, Recovery] | None = None,
    ) -> Host:
        """The Host of now: everything (``keys`` None), or only what the keys name.

        :raises KernelRefused: if not even the list of devices can be had in time.
        """
        plan = await self._plan(keys, previous, nodes)
        queue = ReadQueue(self._scanner, plan, previous, frozenset(self._stuck))
        try:
            await self._work(queue)
        finally:
            self._leave(queue)
        for item in queue.missing():
            queue.findings.put(item, _last_known(item, previous))
        return await threads.call(scanner.assemble, plan, queue.findings, previous, dict(recoveries or {}))

    async def unchanged(self, ids: Sequence[str], host: Host) -> bool:
        """True if these functions, mdevs and nodes, and the groups, read now as ``host`` has them.

        Waits without a limit.
        """
        return await threads.call(self._scanner.unchanged, ids, host)

    async def _plan(
        self, keys: frozenset[str] | None, previous: Host, nodes: Sequence[str]
    ) -> scanner.ReadList:
        await self._listing_answers()
        listing = threads.start(self._scanner.plan, keys, previous, nodes)
        try:
            with anyio.move_on_after(self._deadline):
                return await listing.result()
        finally:
            if not listing.ended:
                self._listing = listing
                listing.when_ended(lambda: self._on_recovered(None))
        raise _no_list()

    async def _listing_answers(self) -> None:
        """Let a listing that was left behind end first: at most one of them hangs."""
        if self._listing is None:
            return
        with anyio.move_on_after(self._deadline):
            await self._listing.wait()
            return
        raise _no_list()

    async def _work(self, queue: ReadQueue) -> None:
        """Keep one thread going that makes progress, until all is read or nothing moves any more."""
        ended = Latest(0)
        calls: list[threads.Call[None]] = []
        progress = queue.progress
        while not queue.done:
            seen = ended.version
            if queue.pending and queue.progress == progress and len(calls) < _THREADS:
                calls.append(queue.start())
                calls[-1].when_ended(ended.touch)
            elif queue.overdue(self._deadline):
                return
            progress = queue.progress
            with anyio.move_on_after(self._patience):
                await ended.newer(seen)
            calls = await _still_running(calls)

    def _leave(self, queue: ReadQueue) -> None:
        """Remember which items hold a thread, until it comes back."""
        for item, call in queue.close(self._patience):
            self._stuck[item] += 1
            call.when_ended(functools.partial(self._back, item))

    def _back(self, item: scanner.Item) -> None:
        self._stuck[item] -= 1
        if self._stuck[item] <= 0:
            del self._stuck[item]
            self._on_recovered(item.key)


async def _still_running(calls: list[threads.Call[None]]) -> list[threads.Call[None]]:
    """The threads that have not ended; raises what a thread raised, which is a fault of the scanner."""
    for call in calls:
        if call.ended:
            await call.result()
    return [call for call in calls if not call.ended]


def _no_list() -> KernelRefused:
    return KernelRefused(
        "the list of devices below /sys cannot be read: the kernel does not answer",
        "look for blocked tasks in the kernel's log (dmesg)",
        path="/sys",
    )


def _last_known(item: scanner.Item, previous: Host) -> scanner.Found:
    """What stands for an item that did not answer."""
    if item.kind == "function":
        address = PciAddress(item.key)
        known = previous.functions.get(address) or PciFunction(address)
        return replace(known, unreadable=NOT_READABLE)
    if item.kind == "group":
        number = GroupNumber(int(item.key))
        return previous.groups.get(number) or Group(number)
    if item.kind == "mdev":
        return replace(previous.mdevs.get(item.key) or Mdev(item.key), unreadable=NOT_READABLE)
    return previous.mdev_parents.get(item.key)
