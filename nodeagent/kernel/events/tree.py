# SPDX-License-Identifier: Apache-2.0
"""Watches a tree of files that stands for sysfs: tests, the demo, a replayed machine.

Files are changed by ordinary programs there, so inotify sees all. Watched are the directories that list
things, each driver's directory, and each function's own one (``function_watches``).
"""

from __future__ import annotations

import anyio.lowlevel

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.events.function_watches import FunctionWatches
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import groups, mdevs
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.kernel.wakes import CountedWakes
from nodeagent.model.ids import mdev_uuid, pci_address

_DRIVERS = "/sys/bus/pci/drivers"
_LISTS = (DEVICES, mdevs.DEVICES, groups.GROUPS)
_ANY = (mdevs.PARENTS, "/sys/class/iommu", "/sys/devices/system/node")
_BURST = 64  # directories armed between two turns of the event loop


class TreeEvents:
    """Wakes with a key, or for everything, when something in the tree changes."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._functions = FunctionWatches(root, watcher, wakes)
        self._drivers: set[str] = set()

    @property
    def left_out(self) -> int:
        """How many functions are not watched, so that others find watches."""
        return self._functions.left_out

    async def arm(self) -> None:
        """Watch everything; from then on no change is missed. The changes come through ``Watcher``."""
        for directory in _LISTS:
            self._watcher.watch(self._root.path(directory), self._listed)
        for directory in _ANY:
            self._watcher.watch(self._root.path(directory), self._any)
        self._watcher.watch(self._root.path(_DRIVERS), self._driver_listed)
        self._watch_drivers(set(self._root.names(_DRIVERS)))
        for count, name in enumerate(self._root.names(DEVICES)):
            self._functions.add(name)
            if count % _BURST == 0:
                await anyio.lowlevel.checkpoint()

    def disarm(self) -> None:
        """End all watches."""
        for directory in _LISTS:
            self._watcher.unwatch(self._root.path(directory), self._listed)
        for directory in _ANY:
            self._watcher.unwatch(self._root.path(directory), self._any)
        self._watcher.unwatch(self._root.path(_DRIVERS), self._driver_listed)
        self._watch_drivers(set())
        self._functions.clear()

    def _listed(self, change: Change) -> None:
        directory = self._root.host_path(change.directory)
        if change.name is None:  # anything may have happened
            self._list_functions()
            self._wakes.wake(None)
        elif directory == DEVICES:
            self._function_listed(change.name)
        elif mdev_uuid(change.name):
            self._wakes.wake(change.name)
        elif change.name.isdecimal():
            self._wakes.wake(f"{directory}/{change.name}")

    def _any(self, _: Change) -> None:
        self._wakes.wake(None)

    def _function_listed(self, name: str) -> None:
        if self._root.exists(f"{DEVICES}/{name}"):
            self._functions.add(name)
        else:
            self._functions.remove(name)
        if pci_address(name):
            self._wakes.wake(name)

    def _list_functions(self) -> None:
        names = self._root.names(DEVICES)
        self._functions.keep_only(names)
        for name in names:
            self._functions.add(name)

    def _driver_listed(self, _: Change) -> None:
        self._watch_drivers(set(self._root.names(_DRIVERS)))
        self._wakes.wake(None)

    def _driver_changed(self, change: Change) -> None:
        if change.name is not None and pci_address(change.name):
            self._wakes.wake(change.name)

    def _watch_drivers(self, names: set[str]) -> None:
        for name in names - self._drivers:
            self._watcher.watch(self._root.path(f"{_DRIVERS}/{name}"), self._driver_changed)
        for name in self._drivers - names:
            self._watcher.unwatch(self._root.path(f"{_DRIVERS}/{name}"), self._driver_changed)
        self._drivers = names
