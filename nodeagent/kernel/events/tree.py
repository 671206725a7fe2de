# SPDX-License-Identifier: Apache-2.0
"""Watches a tree of files that stands for sysfs: tests, the demo, a replayed machine.

Files are changed by ordinary programs there, so inotify sees all. Watched are the directories that list
things, each driver's directory, and each function's own one, as far as the kernel's limit on watches
allows without leaving nothing for others; what is left out is counted, and seen by the slow timer.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, pci
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.ids import mdev_uuid, pci_address

_DRIVERS = "/sys/bus/pci/drivers"
_LISTS = (DEVICES, mdevs.DEVICES, pci.GROUPS)
_ANY = (mdevs.PARENTS, "/sys/class/iommu", "/sys/devices/system/node")
_LIMIT = 16384
_BURST = 64  # directories armed between two turns of the event loop


class TreeEvents:
    """Calls ``wake`` with a key, or None for everything, when something in the tree changes."""

    def __init__(self, root: Root, watcher: Watcher, wake: Callable[[str | None], None]) -> None:
        self._root = root
        self._watcher = watcher
        self._wake = wake
        self._functions: set[str] = set()
        self._drivers: set[str] = set()
        self._vgpus: set[str] = set()  # functions whose directory nvidia is watched
        self._limit = min(_LIMIT, _allowed() // 2)
        self.left_out = 0  # functions that are not watched, so that others find watches

    async def run(self, on_armed: Callable[[], None]) -> None:
        """Arm everything, say so, then wait: the changes come through ``Watcher``."""
        try:
            await self._arm()
            on_armed()
            await anyio.sleep_forever()
        finally:
            self._disarm()

    async def _arm(self) -> None:
        for directory in _LISTS:
            self._watcher.watch(self._root.path(directory), self._listed)
        for directory in _ANY:
            self._watcher.watch(self._root.path(directory), self._any)
        self._watcher.watch(self._root.path(_DRIVERS), self._driver_listed)
        self._list_drivers()
        for count, name in enumerate(self._root.names(DEVICES)):
            self._add_function(name)
            if count % _BURST == 0:
                await anyio.lowlevel.checkpoint()

    def _disarm(self) -> None:
        for directory in _LISTS:
            self._watcher.unwatch(self._root.path(directory), self._listed)
        for directory in _ANY:
            self._watcher.unwatch(self._root.path(directory), self._any)
        self._watcher.unwatch(self._root.path(_DRIVERS), self._driver_listed)
        for name in self._drivers:
            self._watcher.unwatch(self._root.path(f"{_DRIVERS}/{name}"), self._driver_changed)
        self._drivers = set()
        for name in tuple(self._functions):
            self._remove_function(name)
        self.left_out = 0

    def _listed(self, change: Change) -> None:
        directory = self._root.host_path(change.directory)
        if change.name is None:  # anything may have happened
            self._list_functions()
            self._wake(None)
        elif directory == DEVICES:
            self._function_listed(change.name)
        elif mdev_uuid(change.name):
            self._wake(change.name)
        elif change.name.isdecimal():
            self._wake(f"{directory}/{change.name}")

    def _any(self, _: Change) -> None:
        self._wake(None)

    def _function_listed(self, name: str) -> None:
        if self._root.exists(f"{DEVICES}/{name}"):
            self._add_function(name)
        else:
            self._remove_function(name)
        if pci_address(name):
            self._wake(name)

    def _function_changed(self, change: Change) -> None:
        address = change.directory.rpartition("/")[2]
        if change.lost or change.name == "nvidia":
            self._watch_vgpu(address)
        if change.lost or _is_read(change.name or ""):
            self._wake(address)

    def _watch_vgpu(self, address: str) -> None:
        """The vGPU type of a VF is in a directory of its own, which comes and goes with NVIDIA's driver."""
        path = f"{DEVICES}/{address}/nvidia"
        if self._watcher.watches < self._limit and address not in self._vgpus and self._root.exists(path):
            self._vgpus.add(address)
            self._watcher.watch(self._root.path(path), self._vgpu_changed, contents=True)

    def _vgpu_changed(self, change: Change) -> None:
        self._wake(change.directory.split("/")[-2])

    def _driver_listed(self, _: Change) -> None:
        self._list_drivers()
        self._wake(None)

    def _driver_changed(self, change: Change) -> None:
        if change.name is not None and pci_address(change.name):
            self._wake(change.name)

    def _list_drivers(self) -> None:
        names = set(self._root.names(_DRIVERS))
        for name in names - self._drivers:
            self._watcher.watch(self._root.path(f"{_DRIVERS}/{name}"), self._driver_changed)
        for name in self._drivers - names:
            self._watcher.unwatch(self._root.path(f"{_DRIVERS}/{name}"), self._driver_changed)
        self._drivers = names

    def _list_functions(self) -> None:
        names = self._root.names(DEVICES)
        for name in self._functions.difference(names):
            self._remove_function(name)
        for name in names:
            self._add_function(name)

    def _add_function(self, name: str) -> None:
        if name in self._functions or pci_address(name) != name:
            return
        self._functions.add(name)
        self._watch_vgpu(name)
        if self._watcher.watches < self._limit:
            path = self._root.path(f"{DEVICES}/{name}")
            self._watcher.watch(path, self._function_changed, contents=True)
        else:
            self.left_out += 1

    def _remove_function(self, name: str) -> None:
        if name in self._functions:
            self._functions.discard(name)
            self._watcher.unwatch(self._root.path(f"{DEVICES}/{name}"), self._function_changed)
        if name in self._vgpus:
            self._vgpus.discard(name)
            self._watcher.unwatch(self._root.path(f"{DEVICES}/{name}/nvidia"), self._vgpu_changed)


def _is_read(name: str) -> bool:
    """True for what a regular scan reads of a function: anything else that is written there wakes nobody."""
    return name in pci.READ or name == mdevs.TYPES or name.startswith("virtfn")


def _allowed() -> int:
    """How many watches the kernel allows; the tree is watched by the real kernel, not by its own."""
    text = Root().text("/proc/sys/fs/inotify/max_user_watches") or ""
    return int(text) if text.isdecimal() else _LIMIT
