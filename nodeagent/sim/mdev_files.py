# SPDX-License-Identifier: Apache-2.0
"""The files of mdevs: parents with types, instances with links, groups and nodes.

Shows what it is given and decides nothing. What tells others that an instance is there, the link on the mdev
bus, comes by ``announce``, when its files can be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeagent.model.host import Host, Mdev, MdevType
from nodeagent.sim import files
from nodeagent.sim.functions import BUS
from nodeagent.sim.mdev_kernel import Type
from nodeagent.sim.tree import Tree

_PARENTS = "/sys/class/mdev_bus"
_INSTANCES = "/sys/bus/mdev/devices"
_DRIVER = "/sys/bus/mdev/drivers/nvidia-vgpu-vfio"
_REMOVED = "/.removed"


class MdevFiles:
    """``writable`` are the host paths of the directories with a ``create`` or ``remove``."""

    def __init__(self, tree: Tree) -> None:
        self.writable: set[str] = set()
        self._tree = tree
        self._rooms: dict[str, str] = {}  # file available_instances → what it says
        for path in (_PARENTS, _INSTANCES, _DRIVER):
            files.directory(tree.path(path))

    def load(self, parent: str, types: Iterable[Type]) -> None:
        """The types of a parent appear."""
        for mdev_type in types:
            base = f"{self._types(parent)}/{mdev_type.id}"
            files.directory(self._tree.path(f"{base}/devices"))
            files.write(self._tree.path(f"{base}/name"), f"{mdev_type.name or mdev_type.id}\n")
            files.write(self._tree.path(f"{base}/device_api"), "vfio-pci\n")
            files.write(self._tree.path(f"{base}/create"), "")
            self.writable.add(base)

    def announce_parent(self, parent: str) -> None:
        """The parent is one from now on."""
        self._tree.link(f"{_PARENTS}/{parent}", self._tree.real(f"{BUS}/{parent}"))

    def unload(self, parent: str, types: Iterable[Type]) -> None:
        """The types of a parent go."""
        self._tree.remove(f"{_PARENTS}/{parent}")
        base = self._types(parent)
        for mdev_type in types:
            self.writable.discard(f"{base}/{mdev_type.id}")
            self._rooms.pop(f"{base}/{mdev_type.id}/available_instances", None)
        files.remove_tree(self._tree.path(base))

    def show(self, before: Host, now: Host) -> None:
        """Bring the files from one state to the other, but for the links on the bus of what is new.

        A group's end and an instance's beginning come last: who looks then sees the room as it is.
        """
        ended = before.groups.keys() - now.groups.keys()
        for uuid in before.mdevs.keys() - now.mdevs.keys():
            self._remove(before.mdevs[uuid], gone=before.mdevs[uuid].group in ended)
        for parent, types in now.mdev_parents.items():
            if types != before.mdev_parents.get(parent):
                self._show_room(parent, types)
        for number in ended:
            self._tree.remove(f"/dev/vfio/{number}")
            files.remove_tree(self._tree.path(f"/sys/kernel/iommu_groups/{number}"))
        for uuid in now.mdevs.keys() - before.mdevs.keys():
            self._add(now.mdevs[uuid])

    def announce(self, mdev: Mdev) -> None:
        """The bus lists the instance."""
        self._tree.link(f"{_INSTANCES}/{mdev.uuid}", f"{self._tree.real(f'{BUS}/{mdev.parent}')}/{mdev.uuid}")

    def _show_room(self, parent: str, types: Iterable[MdevType]) -> None:
        for mdev_type in types:
            directory = f"{self._types(parent)}/{mdev_type.type_id}"
            path, room = f"{directory}/available_instances", str(mdev_type.available)
            if Path(self._tree.path(directory)).is_dir() and self._rooms.get(path) != room:
                self._rooms[path] = room
                files.write(self._tree.path(path), f"{room}\n")

    def _add(self, mdev: Mdev) -> None:
        real = f"{self._tree.real(f'{BUS}/{mdev.parent}')}/{mdev.uuid}"
        group = f"/sys/kernel/iommu_groups/{mdev.group}"
        files.directory(self._tree.path(f"{real}/vfio-dev/vfio{mdev.group}"))
        files.write(self._tree.path(f"{real}/remove"), "")
        self._tree.link(f"{real}/mdev_type", f"{self._types(mdev.parent)}/{mdev.type_id}")
        files.write(self._tree.path(f"{group}/type"), "unknown\n")
        self._tree.link(f"{group}/devices/{mdev.uuid}", real)
        self._tree.link(f"{real}/iommu_group", group)
        self._tree.node(f"/dev/vfio/{mdev.group}")
        if mdev.driver is not None:
            self._tree.link(f"{real}/driver", _DRIVER)
        self.writable.add(real)

    def _remove(self, mdev: Mdev, gone: bool) -> None:
        """A removal that waits leaves the bus at once; group, node and directory stay until its end."""
        real = self._tree.real(f"{_INSTANCES}/{mdev.uuid}")
        self.writable.discard(real)
        self._tree.remove(f"{_INSTANCES}/{mdev.uuid}")
        for name in ("driver", "mdev_type", "remove"):
            self._tree.remove(f"{real}/{name}")
        if gone:  # kept: a file system would give its inode to the next one, which the kernel does not
            files.move(self._tree.path(real), self._tree.path(f"{_REMOVED}/{mdev.uuid}"))

    def _types(self, parent: str | None) -> str:
        return f"{self._tree.real(f'{BUS}/{parent}')}/mdev_supported_types"
