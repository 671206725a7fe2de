# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and VFIO devices of a simulated host.

A group is in sysfs while it has a member. Its node in /dev/vfio is there from the first VFIO device of the
group to the last one whose unbind has ended; a VFIO device gets the lowest free number.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections import Counter

from nodeagent.sim import files
from nodeagent.sim.tree import LOCAL_MAJOR, Tree

_UNBOUND = "/.unbound"
DRIVERS = ("vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci")


def join_group(tree: Tree, group: int, address: str, real: str) -> None:
    """A device, whose directory is ``real``, becomes a member."""
    base = _directory(group)
    files.directory(tree.path(f"{base}/devices"))
    files.write_new(tree.path(f"{base}/type"), "DMA\n")
    files.write_new(tree.path(f"{base}/reserved_regions"), "0x00000000fee00000 0x00000000feefffff msi\n")
    tree.link(f"{base}/devices/{address}", real)
    tree.link(f"{real}/iommu_group", base)


def leave_group(tree: Tree, group: int, address: str) -> None:
    """A device is no member any more; the group ends with its last one."""
    base = _directory(group)
    tree.remove(f"{base}/devices/{address}")
    if not os.listdir(tree.path(f"{base}/devices")):
        files.remove_tree(tree.path(base))


def _directory(group: int) -> str:
    return f"/sys/kernel/iommu_groups/{group}"


class VfioDevices:
    """The numbers of VFIO devices, and who keeps the nodes of groups."""

    def __init__(self, tree: Tree, cdev: bool) -> None:
        self._tree = tree
        self._cdev = cdev
        self._free: list[int] = []
        self._most = 0
        self._removals = itertools.count()
        self._keepers: Counter[int] = Counter()  # group → devices that keep its node

    def add(self, real: str, group: int | None) -> int:
        """A VFIO driver takes the device whose directory is ``real``; the N of its vfioN."""
        number = self._lowest_free()
        if group is not None:
            self._tree.ensure_node(f"/dev/vfio/{group}")
            self._keepers[group] += 1
        base = f"{real}/vfio-dev/vfio{number}"
        files.directory(self._tree.path(base))
        if self._cdev:
            files.write(self._tree.path(f"{base}/dev"), f"{LOCAL_MAJOR}:{number}\n")
            self._tree.ensure_node(f"/dev/vfio/devices/vfio{number}")
        return number

    def _lowest_free(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._most += 1
        return self._most - 1

    def remove(self, real: str, number: int) -> None:
        """The driver lets go of the device; the group's node stays until ``give_up_node``."""
        # kept: a file system would give its inode to the next one, which the kernel does not
        aside = f"{_UNBOUND}/{next(self._removals)}"
        files.move(self._tree.path(f"{real}/vfio-dev"), self._tree.path(f"{aside}/vfio-dev"))
        self._tree.remove(f"/dev/vfio/devices/vfio{number}")
        heapq.heappush(self._free, number)

    def give_up_node(self, group: int) -> None:
        """One device less keeps the group's node."""
        self._keepers[group] -= 1
        if not self._keepers[group]:
            self._tree.remove(f"/dev/vfio/{group}")
