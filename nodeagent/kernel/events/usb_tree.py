# SPDX-License-Identifier: Apache-2.0
"""Watches the USB devices of a tree of files, while somebody wishes for any (see ``tree``)."""

from __future__ import annotations

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import usb
from nodeagent.kernel.scan.usb_row import DEVICES, wake_key
from nodeagent.kernel.wakes import CountedWakes


class UsbWatches:
    """Wakes with the key of a device that comes, goes, or has another attribute."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._watched: set[str] = set()
        watcher.watch(root.path(DEVICES), self._listed)
        self._follow()

    def close(self) -> None:
        """End all watches."""
        self._watcher.unwatch(self._root.path(DEVICES), self._listed)
        self._only(set())

    def _listed(self, change: Change) -> None:
        self._follow()
        if change.name is None:
            self._wakes.wake(None)
        elif ":" not in change.name:
            self._wakes.wake(wake_key(change.name))

    def _changed(self, change: Change) -> None:
        self._wakes.wake(wake_key(change.directory.rpartition("/")[2]))

    def _follow(self) -> None:
        self._only(set(usb.names(self._root)))

    def _only(self, names: set[str]) -> None:
        for name in names - self._watched:
            self._watcher.watch(self._root.path(f"{DEVICES}/{name}"), self._changed, contents=True)
        for name in self._watched - names:
            self._watcher.unwatch(self._root.path(f"{DEVICES}/{name}"), self._changed)
        self._watched = names
