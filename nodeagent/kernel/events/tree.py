# SPDX-License-Identifier: Apache-2.0
"""Watches a tree of files that stands for sysfs: tests, the demo, a replayed machine.

Files are changed by ordinary programs there, so inotify sees all. Watched are the directories that list
things, each driver's directory, and each function's own one with what NVIDIA's driver adds below it, as far
as the kernel's limit on watches allows without leaving nothing for others: what is left out is counted, and
seen by the slow timer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio.lowlevel

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import groups, mdevs, pci
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.kernel.wakes import CountedWakes
from nodeagent.model.ids import mdev_uuid, pci_address

if TYPE_CHECKING:
    from nodeagent.kernel.events.usb_tree import UsbWatches

_DRIVERS = "/sys/bus/pci/drivers"
_LISTS = (DEVICES, mdevs.DEVICES, groups.GROUPS)
_ANY = (mdevs.PARENTS, "/sys/class/iommu", "/sys/devices/system/node")
_BURST = 64  # directories armed between two turns of the event loop
_LIMIT = 16384


class TreeEvents:
    """Wakes with a key, or for everything, when something in the tree changes."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._functions = FunctionWatches(root, watcher, wakes)
        self._drivers: set[str] = set()
        self._usb: UsbWatches | None = None

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

    def watch_usb(self, wanted: bool) -> None:
        """Watch USB devices as well, or no more."""
        if wanted and self._usb is None:
            from nodeagent.kernel.events.usb_tree import UsbWatches  # here: most nodes wish for none

            self._usb = UsbWatches(self._root, self._watcher, self._wakes)
        elif not wanted and self._usb is not None:
            self._usb.close()
            self._usb = None

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


class FunctionWatches:
    """Wakes with the address of a function when something that a scan reads of it changes."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._functions: set[str] = set()
        self._vgpus: set[str] = set()  # functions whose directory nvidia is watched
        self._limit = min(_LIMIT, _allowed() // 2)
        self.left_out = 0  # functions that are not watched, so that others find watches

    def keep_only(self, names: Iterable[str]) -> None:
        """End the watches of all functions but these."""
        for name in self._functions.difference(names):
            self.remove(name)

    def add(self, name: str) -> None:
        """Watch a function, unless it is watched, or the name is no function's."""
        if name in self._functions or pci_address(name) != name:
            return
        self._functions.add(name)
        self._watch_vgpu(name)
        if self._watcher.watches < self._limit:
            path = self._root.path(f"{DEVICES}/{name}")
            self._watcher.watch(path, self._changed, contents=True)
        else:
            self.left_out += 1

    def remove(self, name: str) -> None:
        """Watch a function no more."""
        if name in self._functions:
            self._functions.discard(name)
            self._watcher.unwatch(self._root.path(f"{DEVICES}/{name}"), self._changed)
        if name in self._vgpus:
            self._vgpus.discard(name)
            self._watcher.unwatch(self._root.path(f"{DEVICES}/{name}/nvidia"), self._vgpu_changed)

    def clear(self) -> None:
        """End all watches."""
        self.keep_only(())
        self.left_out = 0

    def _changed(self, change: Change) -> None:
        address = change.directory.rpartition("/")[2]
        if change.lost or change.name == "nvidia":
            self._watch_vgpu(address)
        if change.lost or _is_read(change.name or ""):
            self._wakes.wake(address)

    def _watch_vgpu(self, address: str) -> None:
        """The vGPU type of a VF is in a directory of its own, which comes and goes with NVIDIA's driver."""
        path = f"{DEVICES}/{address}/nvidia"
        if self._watcher.watches < self._limit and address not in self._vgpus and self._root.exists(path):
            self._vgpus.add(address)
            self._watcher.watch(self._root.path(path), self._vgpu_changed, contents=True)

    def _vgpu_changed(self, change: Change) -> None:
        self._wakes.wake(change.directory.split("/")[-2])


def _is_read(name: str) -> bool:
    """True for what a regular scan reads of a function: anything else that is written there wakes nobody."""
    return name in pci.READ or name == mdevs.TYPES or name.startswith("virtfn")


def _allowed() -> int:
    """How many watches the kernel allows; the tree is watched by the real kernel, not by its own."""
    text = Root().text("/proc/sys/fs/inotify/max_user_watches") or ""
    return int(text) if text.isdecimal() else _LIMIT
