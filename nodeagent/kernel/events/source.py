# SPDX-License-Identifier: Apache-2.0
"""Watch: says when to look again, and at what.

On the running kernel changes come as uevents, and /dev by inotify: sysfs itself reports nothing to inotify
for what the kernel does. Where the root is a tree of files (tests, demo, replay) inotify watches the tree.
Where no uevent can arrive only /dev is watched and the caller's slow timer does the rest. A Wake carries no
truth; gathering and settling is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import anyio

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.events import uevents
from nodeagent.kernel.events.tree import TreeEvents
from nodeagent.kernel.root import Root
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress

Source = Literal["uevents", "tree", "poll"]

_VFIO_DIRECTORIES = ("/dev/vfio", "/dev/vfio/devices")
_COMMON = frozenset({"/dev/iommu"})


@dataclass(frozen=True, slots=True)
class Statistics:
    """Where Wakes come from, and counts since the start.

    ``lost``: how often events were lost (everything was looked at again); ``foreign``: messages of
    senders other than the kernel; ``unwatched``: directories that the kernel's limit leaves unwatched now.
    """

    source: Source
    events: int = 0
    lost: int = 0
    foreign: int = 0
    unwatched: int = 0


class EventSource:
    """Watches the host below one root.

    ``on_wake`` gets the key of what to look at again (see ``scan_keys``), or None for everything;
    ``on_recovery`` the verdict of AER events.
    """

    def __init__(
        self,
        root: Root,
        watcher: Watcher,
        on_wake: Callable[[str | None], None],
        on_recovery: Callable[[PciAddress, Recovery | None], None],
    ) -> None:
        self._root = root
        self._watcher = watcher
        self._on_wake = on_wake
        self._on_recovery = on_recovery
        self._nodes: frozenset[str] = frozenset()
        self._directories: frozenset[str] = frozenset()
        self._reader: uevents.Reader | None = None
        self._tree = None if root.is_host else TreeEvents(root, watcher, self._wake)
        self.armed = anyio.Event()  # set when no change can be missed any more: look after that
        self._changes = 0
        self._lost = 0
        self.set_nodes(())

    def set_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes, too, from now on; look at them after this call."""
        self._nodes = frozenset(paths)
        parents = {path.rpartition("/")[0] for path in self._nodes | _COMMON}
        wanted = frozenset(parents).union(_VFIO_DIRECTORIES)
        for directory in sorted(wanted - self._directories):
            self._watcher.watch(self._root.path(directory), self._node_changed)
        for directory in self._directories - wanted:
            self._watcher.unwatch(self._root.path(directory), self._node_changed)
        self._directories = wanted

    def statistics(self) -> Statistics:
        """The counts of now."""
        reader = self._reader
        return Statistics(
            source=self._source(),
            events=self._changes + (reader.events if reader else 0),
            lost=self._lost + self._watcher.overflows + (reader.lost if reader else 0),
            foreign=reader.foreign if reader else 0,
            unwatched=len(self._watcher.unwatched) + (self._tree.left_out if self._tree else 0),
        )

    def close(self) -> None:
        """End the watches on directories of device nodes."""
        for directory in self._directories:
            self._watcher.unwatch(self._root.path(directory), self._node_changed)
        self._directories = frozenset()

    async def run(self) -> None:
        """Watch until cancelled. :raises KernelRefused: if the source of events fails."""
        if self._tree is not None:
            await self._tree.run(self._arm)
        elif uevents.arrive_here(self._root):
            await self._read_uevents()
        else:
            self._arm()
            await anyio.sleep_forever()

    def _arm(self) -> None:
        self.armed.set()
        self._wake(None)

    async def _read_uevents(self) -> None:
        with uevents.open_socket() as sock:
            self._reader = uevents.Reader(sock, self._event, self._all)
            self._arm()  # the socket listens from here on
            try:
                await self._reader.run()
            finally:
                self._changes += self._reader.events
                self._lost += self._reader.lost
                self._reader = None

    def _source(self) -> Source:
        if self._tree is not None:
            return "tree"
        return "uevents" if self._reader is not None else "poll"

    def _event(self, event: uevents.Uevent) -> None:
        verdict = uevents.recovery(event)
        if verdict is not None:
            self._on_recovery(*verdict)
        if uevents.concerns(event):
            self._on_wake(uevents.key(event))

    def _all(self) -> None:
        self._wake(None)

    def _wake(self, key: str | None) -> None:
        self._changes += 1
        self._on_wake(key)

    def _node_changed(self, change: Change) -> None:
        """A name in a directory of device nodes came or went; in /dev only those asked for count."""
        path = f"{self._root.host_path(change.directory)}/{change.name}"
        if change.lost:
            self._wake(None)
        elif path.startswith("/dev/vfio/") or path in self._nodes or path in _COMMON:
            self._wake(path)
