# SPDX-License-Identifier: Apache-2.0
"""Watches the directory of each PCI function in a tree of files, and what NVIDIA's driver adds below it.

As far as the kernel's limit on watches allows without leaving nothing for others: what is left out is
counted, and seen by the slow timer.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, pci
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.kernel.wakes import CountedWakes
from nodeagent.model.ids import pci_address

_LIMIT = 16384


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
