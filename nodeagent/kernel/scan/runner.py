# SPDX-License-Identifier: Apache-2.0
"""Scans that cannot be stopped by a device that does not answer.

Items are read by daemon threads that share one list. A thread that makes no progress for a moment keeps its
item, and another thread goes on with the rest; what has not answered after the deadline is reported as
unreadable with its last known identity, and its thread is left behind. While a thread is stuck in an
item nobody reads it again; when the thread comes back, a Wake asks for a new scan of it.
So a scan takes at most the deadline longer than without stuck devices, however many they are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import anyio

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import openers, pci, scanner
from nodeagent.kernel.scan.queue import ReadQueue, Worklist
from nodeagent.kernel.scan.readers import Item
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.cdi import CdiFile
from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.uses import HostUses

_THREADS = 64  # that one scan may leave behind, at most


NO_SPECS: Final[Mapping[str, CdiFile]] = MappingProxyType({})


class ScanRunner:
    """Scans the host below one root; several scans may be under way at once.

    ``wakes`` hears of what can be read again; ``deadline``: seconds that one item may take.
    """

    def __init__(self, root: Root, wakes: Wakes, timeouts: Timeouts, *, deadline: float) -> None:
        self._root = root
        self._scanner = scanner.Scanner(root)
        self._open_files = threads.OneByOne()
        self._opener_scan = timeouts.opener_scan
        self._wakes = wakes
        self._deadline = deadline
        self._progress = timeouts.scan_thread_progress
        self._stuck: Counter[Item] = Counter()
        self._listing: threads.Call[scanner.ReadList] | None = None
        self._uses = Looks(root, wakes, deadline)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The keys of the items in which a thread is stuck."""
        return tuple(sorted(item.key for item in self._stuck))

    async def scan(
        self,
        keys: frozenset[str] | None,
        previous: Host,
        nodes: Sequence[str],
        recoveries: Mapping[PciAddress, Recovery],
        specs: Mapping[str, CdiFile] = NO_SPECS,
    ) -> Host:
        """The Host of now: everything (``keys`` None), or only what the keys name.

        ``nodes``: device nodes to list, besides those of VFIO; ``recoveries``: what AER events said last.
        ``specs``: what CDI files say; the nodes that they name are among ``nodes``.
        :raises KernelRefused: if not even the list of devices can be had in time, or nothing can be read.
        """
        plan = await self._plan(keys, previous, nodes)
        plan = plan._replace(frame=replace(plan.frame, cdi=previous.cdi if previous.cdi == specs else specs))
        items = Worklist(plan, previous, frozenset(self._stuck))
        queue = ReadQueue(self._scanner, items)
        try:
            await self._work(queue)
        finally:
            self._leave(queue)
        if queue.refused is not None:
            raise queue.refused
        for item in queue.missing():
            items.findings.put(item, scanner.unanswered(item, previous))
        host = await threads.call(self._scanner.join, plan, items.findings, previous, dict(recoveries))
        read = items.findings.tables["functions"]
        host = await openers.add(host, read, self._root, self._open_files, self._opener_scan)
        return await self._uses.add(host, previous, plan.whole)

    async def recheck(
        self, ids: Sequence[str], host: Host, functions: Sequence[PciAddress] = ()
    ) -> tuple[bool, Sequence[PciAddress]]:
        """True if these functions, mdevs and nodes, and the groups, still read as ``host`` has them.

        And those of the ``functions`` whose configuration space does not answer; reading it wakes a function
        that sleeps. Waits without a limit.
        """

        def read() -> tuple[bool, Sequence[PciAddress]]:
            unchanged = self._scanner.recheck(ids, host)
            return unchanged, [each for each in functions if pci.fallen(self._root, each)]

        return await threads.call(read)

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
                listing.when_ended(functools.partial(self._wakes.wake, None))
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
            with anyio.move_on_after(self._progress):
                await ended.newer(seen)
            calls = await _still_running(calls)

    def _leave(self, queue: ReadQueue) -> None:
        """Remember which items hold a thread, until it comes back."""
        for item, call in queue.close(self._progress):
            self._stuck[item] += 1
            call.when_ended(functools.partial(self._back, item))

    def _back(self, item: Item) -> None:
        self._stuck[item] -= 1
        if self._stuck[item] <= 0:
            del self._stuck[item]
            self._wakes.wake(item.key)


class Looks:
    """Looks at what the host itself uses of its functions, after each scan of what may be used.

    A look that takes too long for its scan is not lost: what it has found counts for the next one. Where each
    look takes that long, nothing would be known for ever; a closer one comes before anything is taken away.
    """

    def __init__(self, root: Root, wakes: Wakes, deadline: float) -> None:
        self._root = root
        self._wakes = wakes
        self._deadline = deadline
        self._look: threads.Call[dict[PciAddress, HostUses]] | None = None

    async def add(self, host: Host, before: Host, whole: bool) -> Host:
        """The host with the uses of all functions, or of those that changed; without, if no answer comes."""
        read = host.functions if whole else host.changes_since(before).functions
        scope = [host.functions[address] for address in read if address in host.functions]
        wanted = [each.address for each in scope if each.usable and each.unreadable is None]
        found = await self._found(wanted) if wanted else {}
        kept = {each.address: each.uses for each in scope if each.usable}
        return host.with_uses(dict.fromkeys(each.address for each in scope) | kept | found, before)

    async def _found(self, wanted: Sequence[PciAddress]) -> dict[PciAddress, HostUses]:
        """At most one look hangs: while it does, nothing new is known."""
        if self._look is not None and not self._look.ended:
            return {}
        late, self._look = {} if self._look is None else await self._look.result(), None
        known = {each: late[each] for each in wanted if each in late}
        return known | await self._looked([each for each in wanted if each not in known])

    async def _looked(self, wanted: Sequence[PciAddress]) -> dict[PciAddress, HostUses]:
        if not wanted:
            return {}
        look = self._look = threads.start(_uses, self._root, wanted)
        with anyio.move_on_after(self._deadline):
            found = await look.result()
            self._look = None
            return found
        look.when_ended(functools.partial(self._wakes.wake, None))
        return {}


async def _still_running(calls: list[threads.Call[None]]) -> list[threads.Call[None]]:
    """The threads that have not ended; raises what a thread raised, which is a fault of the scanner."""
    for call in calls:
        if call.ended:
            await call.result()
    return [call for call in calls if not call.ended]


def _no_list() -> KernelRefused:
    return KernelRefused(
        "the list of devices below /sys cannot be read: the kernel does not answer",
        "look for blocked tasks in the kernel log of the host (dmesg there)",
        path="/sys",
    )


def _uses(root: Root, addresses: Sequence[PciAddress]) -> dict[PciAddress, HostUses]:
    from nodeagent.kernel.scan import uses  # here: a node whose devices are all on VFIO has no use for it

    return uses.look(root, addresses)
