# SPDX-License-Identifier: Apache-2.0
"""From Wakes to the newest Host: gathers bursts, looks again at what was named, keeps the names of devices.

The only writer of the Host. Looks are made one after the other, so an older reading never overwrites a
newer one. Events are gathered for a moment after the last one, never longer than a bound; a slow timer is
one more Wake for everything. Does not know what the Host is for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio

from nodeagent.agent.changing import ledger
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Watcher
from nodeagent.kernel import pciids
from nodeagent.kernel.events.source import EventSource, Statistics
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import hints, vgpus
from nodeagent.kernel.scan.runner import ScanRunner
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, pci_address, vgpu_key

QUIET = 0.01  # seconds without an event that end a burst: a driver change sends four within 2 ms
DEADLINE = 0.5  # seconds that one device may take to be read
POLL = 5.0  # seconds between looks where the kernel sends no events
ARMING = 2.0  # seconds that the first look waits for the source of events
BOUND = 0.5  # seconds after which a burst that does not end is looked at all the same

Names = Mapping[str, str]


class Observer:
    """Owns the cells of the Host, of the names, and of the looks that have ended."""

    def __init__(
        self,
        root: Root,
        watcher: Watcher,
        *,
        resync: Callable[[], float],
        node_paths: Sequence[str],
        on_change: Callable[[], None],
    ) -> None:
        self.host: Latest[Host] = Latest(Host(), on_change)
        self.names: Latest[Names] = Latest({}, on_change)
        self.looked: Latest[int] = Latest(0)  # the number of the last look that has ended
        self.wakes = Wakes()
        self._root = root
        self._resync = resync
        self._nodes = tuple(node_paths)
        self._runner = ScanRunner(root, self.wakes, deadline=DEADLINE)
        self._watch = EventSource(root, watcher, self.wakes)
        self._watch.set_nodes(self._nodes)
        self._asked_names: set[tuple[str, str]] = set()
        self._vgpus: dict[str, str] = {}
        self._hung: frozenset[str] = frozenset()
        self._lost = 0
        self._failed: KernelRefused | None = None  # why the last look brought nothing
        self._begun = 0

    @property
    def statistics(self) -> Statistics:
        """Where Wakes come from."""
        return self._watch.statistics()

    @property
    def looks(self) -> int:
        """How many looks were begun."""
        return self._begun

    @property
    def stuck(self) -> tuple[str, ...]:
        """What cannot be read at this moment."""
        return self._runner.stuck

    def set_nodes(self, paths: Sequence[str]) -> None:
        """Watch these device nodes from now on."""
        if tuple(paths) != self._nodes:
            self._nodes = tuple(paths)
            self._watch.set_nodes(self._nodes)
            self.wake()

    def wake(self, keys: frozenset[str] | None = None) -> None:
        """Look again soon at what the keys name, or at everything."""
        for key in (None,) if keys is None else keys:
            self.wakes.wake(key)

    async def watch(self) -> None:
        """Take events, for ever."""
        await self._watch.run()

    async def listening(self) -> None:
        """Wait, but not long, until no change can be missed any more."""
        with anyio.move_on_after(ARMING):
            await self._watch.armed.wait()
        if self.statistics.source == "poll":
            error = "a user namespace of its own gets no kernel events"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=f"{self._slow():g}", error=error)

    async def first(self) -> None:
        """The first look, before anything is offered."""
        await self._one_look()

    async def run(self) -> None:
        """Look again whenever something was named, for ever."""
        await self._warn_of_old_errors()
        while True:
            if not self.wakes.due:
                await self._next_wake()
            await self._gather()
            await self._one_look()

    async def glance(self, ids: Sequence[str]) -> None:
        """Look again if these functions, mdevs and nodes, or the groups, are not what the Host says.

        Waits for as long as the kernel does not answer; the list says so meanwhile.
        """
        keys = frozenset(ids)
        overdue = asyncio.get_running_loop().call_later(DEADLINE, self.wake, keys)
        try:
            unchanged = await self._runner.recheck(ids, self.host.get())
        finally:
            overdue.cancel()
        if not unchanged:
            await self._next_look(keys)
            if self._failed is not None:  # what has changed could not be read: the Host is the old one
                raise self._failed

    async def refresh(self, ids: Collection[str]) -> None:
        """Look again at those ids that are on the host, and wait for it, but not long."""
        host = self.host.get()
        keys = frozenset(each for each in ids if host.device(each) is not None)
        if keys:
            await self.look_at(keys)

    async def look_at(self, keys: frozenset[str]) -> None:
        """Look at what the keys name, and wait for a look that begins now, but not long."""
        with anyio.move_on_after(2 * DEADLINE):
            await self._next_look(keys)

    async def _next_look(self, keys: frozenset[str]) -> None:
        self.wake(keys)
        wanted = self._begun + 1
        while self.looked.get() < wanted:
            await self.looked.newer(self.looked.version)

    async def _next_wake(self) -> None:
        seen = self.wakes.version
        with anyio.move_on_after(self._slow()):
            await self.wakes.newer(seen)
            return
        self.wake()

    def _slow(self) -> float:
        """Seconds after which all is looked at without an event; fewer where the kernel sends none."""
        return min(self._resync(), POLL) if self.statistics.source == "poll" else self._resync()

    async def _gather(self) -> None:
        """Wait until no event has come for a moment, but not longer than the bound."""
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            seen = self.wakes.version
            with anyio.move_on_after(QUIET):
                await self.wakes.newer(seen)
                continue
            return

    async def _one_look(self) -> None:
        keys = self.wakes.take()
        self._tell_losses()
        self._begun += 1
        before, self._failed = self.host.get(), None
        try:
            host = await self._runner.scan(keys, before, self._nodes, self.wakes.recoveries)
            self.wakes.settle(host)
            await self._name(host)
        except KernelRefused as error:
            log.event(log.HOST_READ_SLOW, what=error.path, seconds=str(DEADLINE))
            host, self._failed = before, error
        except Exception:
            self.wake()
            raise
        self._tell_hangs()
        self.host.set(host)
        self.looked.set(self._begun)

    def _tell_hangs(self) -> None:
        stuck = frozenset(self._runner.stuck)
        for key in sorted(stuck - self._hung):
            log.event(log.HOST_READ_SLOW, what=key, seconds=str(DEADLINE), pci_address=pci_address(key))
        for key in sorted(self._hung - stuck):
            log.event(log.HOST_READ_BACK, what=key, pci_address=pci_address(key))
        self._hung = stuck

    async def _name(self, host: Host) -> None:
        """Look up the names of ids that were not seen before; in a thread, for the files are large."""
        wanted = _to_name(host)
        new_vgpus = {number for number, name in vgpus.seen(host).items() if self._is_new(number, name)}
        if wanted <= self._asked_names and not new_vgpus:
            return
        self._asked_names |= wanted
        if new_vgpus:  # a name that was known stays: a VF that gets its type lists it no more
            known = {number: name for number, name in self._vgpus.items() if name}
            self._vgpus = await threads.call(ledger.named, self._root, host) | known
        found = await threads.call(pciids.names, self._root, frozenset(self._asked_names))
        told = {vgpu_key(number): name for number, name in self._vgpus.items() if name}
        self.names.set({**found, **told})

    def _is_new(self, number: str, name: str) -> bool:
        """True if a type was not seen before, or had no name."""
        return number not in self._vgpus or (bool(name) and not self._vgpus[number])

    async def _warn_of_old_errors(self) -> None:
        """AER verdicts are lost when the daemon restarts; counters of fatal errors are all that is left."""
        vfio = [function for function in self.host.get().functions.values() if function.vfio]
        with anyio.move_on_after(DEADLINE):
            for address, count in await threads.call(_fatal_errors, self._root, vfio):
                log.event(
                    log.AER_WARNING,
                    pci_address=address,
                    text=f"{count} fatal ones were counted before nodeagent started",
                )

    def _tell_losses(self) -> None:
        if self.statistics.lost > self._lost:
            self._lost = self.statistics.lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)


def _to_name(host: Host) -> set[tuple[str, str]]:
    """Vendor and device of what may be offered, and of the parents of mdevs."""
    parents = {mdev.parent for mdev in host.mdevs.values()}
    return {
        (function.vendor, function.device)
        for function in host.functions.values()
        if (function.vfio or function.vgpu or function.address in parents)
        and function.vendor
        and function.device
    }


def _fatal_errors(root: Root, functions: Sequence[PciFunction]) -> list[tuple[PciAddress, int]]:
    found = ((function.address, hints.fatal_errors(root, function.address)) for function in functions)
    return [(address, count) for address, count in found if count]
