# SPDX-License-Identifier: Apache-2.0
"""Watches the directories in which device nodes come and go; of /dev itself only the nodes asked for count.

On a host inotify sees these: udev and devtmpfs make the nodes with ordinary system calls.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.base.watching import Change, Watcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.wakes import CountedWakes

_VFIO_DIRECTORIES = ("/dev/vfio", "/dev/vfio/devices")
_COMMON = frozenset({"/dev/iommu"})


class NodeWatches:
    """Wakes with the path of a node, or for everything where a directory comes or goes as a whole."""

    def __init__(self, root: Root, watcher: Watcher, wakes: CountedWakes) -> None:
        self._root = root
        self._watcher = watcher
        self._wakes = wakes
        self._nodes: frozenset[str] = frozenset()
        self._directories: frozenset[str] = frozenset()

    def set_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes, too, from now on; list them after this call."""
        self._nodes = frozenset(paths)
        parents = {path.rpartition("/")[0] for path in self._nodes | _COMMON}
        self._watch(frozenset(parents).union(_VFIO_DIRECTORIES))

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
        elif path.startswith("/dev/vfio/") or path in self._nodes or path in _COMMON:
            self._wakes.wake(path)
