# SPDX-License-Identifier: Apache-2.0
"""The source of Wakes: what makes the kernel's changes known, on a host and elsewhere.

On the running kernel changes come as uevents, and /dev by inotify: sysfs itself reports nothing to
inotify for what the kernel does, but udev and devtmpfs make device nodes with ordinary system calls. Of
/dev itself only the nodes asked for count. Where the root is a tree of files (tests, demo, replay)
inotify watches the tree. Where no uevent can arrive only /dev is watched and the caller's slow timer does
the rest. A Wake carries no truth; gathering and settling is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.wakes import CountedWakes, Wakes
from nodeagent.model.nodes import fits
from nodeagent.model.usb import NODES

if TYPE_CHECKING:
    from nodeagent.kernel.events.tree import TreeEvents
    from nodeagent.kernel.events.uevents import Reader

Source = Literal["uevents", "tree", "poll"]
_VFIO_DIRECTORIES = ("/dev/vfio", "/dev/vfio/devices")
_COMMON = frozenset({"/dev/iommu"})
_LASTING = ("/by-id", "/by-path")  # directories of links; only those that are wanted are watched


class Statistics(NamedTuple):
    """Where Wakes come from, and counts since the start.

    ``lost``: how often events were lost (everything was scanned again); ``foreign``: messages of
    senders other than the kernel; ``unwatched``: directories that the kernel's limit leaves unwatched now.
    """

    source: Source
    events: int = 0
    lost: int = 0
    foreign: int = 0
    unwatched: int = 0


class KernelEvents:
    """The component that watches the host below one root, and wakes with what is to be scanned again."""

    name = "kernel events"

    def __init__(self, root: Root, watcher: Watcher, wakes: Wakes, timeouts: Timeouts) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._timeouts = timeouts
        self._counted = CountedWakes(wakes)
        self._nodes = NodeWatches(root, watcher, self._counted)
        self._tree = None if root.is_host else self._tree_events()
        self._reader: Reader | None = None
        self._lost = 0
        self._told = 0  # of the losses
        self.armed = anyio.Event()  # set when no change can be missed any more: scan after that
        self.watch_nodes(())

    def watch_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes, too, from now on; scan after this call.

        With the directory of their nodes USB devices are watched as well.
        """
        self._nodes.set_nodes(paths)
        if self._tree is not None:
            self._tree.watch_usb(self._nodes.wants(NODES))

    @property
    def statistics(self) -> Statistics:
        """The counts of now."""
        reader = self._reader
        elsewhere: Source = "poll" if reader is None else "uevents"
        return Statistics(
            source=elsewhere if self._tree is None else "tree",
            events=self._counted.count + (reader.events if reader else 0),
            lost=self._lost + self._watcher.overflows + (reader.lost if reader else 0),
            foreign=reader.foreign if reader else 0,
            unwatched=len(self._watcher.unwatched) + (self._tree.left_out if self._tree else 0),
        )

    def close(self) -> None:
        """End the watches on directories of device nodes."""
        self._nodes.close()
        if self._tree is not None:
            self._tree.watch_usb(False)

    async def run(self) -> None:
        """Watch until cancelled. :raises KernelRefused: if the source of events fails."""
        if self._tree is not None:
            await self._watch(self._tree)
        else:
            await self._read_uevents()

    async def listening(self, resync: float) -> None:
        """Wait, but not long, until no change can be missed any more; say so where the kernel sends none."""
        with anyio.move_on_after(self._timeouts.event_source_start):
            await self.armed.wait()
        if self.statistics.source == "poll":
            error = "a user namespace of its own gets no kernel events"
            seconds = f"{self.slow(resync):g}"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=seconds, error=error)

    def slow(self, resync: float) -> float:
        """Seconds after which all is scanned without an event; fewer than ``resync`` where none can come."""
        return min(resync, self._timeouts.host_poll) if self.statistics.source == "poll" else resync

    def tell_losses(self) -> None:
        """Say that events were lost, if that is new."""
        if self.statistics.lost > self._told:
            self._told = self.statistics.lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)

    def _tree_events(self) -> TreeEvents:
        from nodeagent.kernel.events.tree import TreeEvents  # here: a host has no use for it

        return TreeEvents(self._root, self._watcher, self._counted)

    def _arm(self) -> None:
        self.armed.set()
        self._counted.wake(None)

    async def _watch(self, tree: TreeEvents) -> None:
        try:
            await tree.arm()
            self._arm()
            await anyio.sleep_forever()
        finally:
            tree.disarm()

    async def _read_uevents(self) -> None:
        from nodeagent.kernel.events import uevents  # here: a tree of files has no use for it

        if not uevents.arrive_here(self._root):
            self._arm()
            await anyio.sleep_forever()
        with uevents.open_socket() as sock:
            reader = self._reader = uevents.Reader(sock, uevents.from_kernel)
            self._arm()  # the socket listens from here on
            try:
                while True:
                    for event in await reader.receive():
                        if event is None:
                            self._counted.wake(None)
                        else:
                            uevents.tell(event, self._wakes, usb=self._nodes.wants(NODES))
            finally:
                self._counted.count += reader.events
                self._lost += reader.lost
                self._reader = None


class NodeWatches:
    """Wakes with the path of a node, or for everything where a directory comes or goes as a whole."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes, *, common: bool = True) -> None:
        """``common``: those of VFIO as well."""
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._common = (
            {path.rpartition("/")[0] for path in _COMMON}.union(_VFIO_DIRECTORIES) if common else ()
        )
        self._nodes: frozenset[str] = frozenset()
        self._directories: frozenset[str] = frozenset()

    def set_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes, too, from now on; list them after this call."""
        self._nodes = frozenset(paths)
        self._watch(self._places().union(self._common))

    def _places(self) -> frozenset[str]:
        """The directories of the nodes, and of the links that name them for long."""
        if not self._nodes:
            return frozenset()
        from nodeagent.kernel.scan import devnodes  # here: few nodes have rules for such

        return frozenset(place for path in self._nodes for place in devnodes.places(path))

    def wants(self, path: str) -> bool:
        """True if it was asked for."""
        return path in self._nodes

    def close(self) -> None:
        """End all watches."""
        self._watch(frozenset())

    def _watch(self, wanted: frozenset[str]) -> None:
        for directory in sorted(wanted - self._directories):
            self._watcher.watch(self._root.path(directory), self._changed)
        for directory in self._directories - wanted:
            self._watcher.unwatch(self._root.path(directory), self._changed)
        self._directories = wanted

    def _changed(self, change: Change) -> None:
        path = f"{self._root.host_path(change.directory)}/{change.name}"
        if change.lost:
            self._wakes.wake(None)
        elif path.startswith("/dev/vfio/") or path in _COMMON or self._means(path):
            self._wakes.wake(path)

    def _means(self, path: str) -> bool:
        """True for one of the nodes, and for any name in a directory of links to such."""
        linked = path.rpartition("/")[0].endswith(_LASTING)
        return linked or any(fits(path, wanted) for wanted in self._nodes)
