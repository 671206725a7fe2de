# SPDX-License-Identifier: Apache-2.0
"""A device node as the kernel shows it: where its links lead, and which hardware stands behind it.

Known of the nodes that rules or CDI files name, and of no others. A path without a node is not there.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from nodeagent.model.ids import PciAddress

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"
WILD = frozenset("*?[")
# as the kernel names them (drivers/vfio/group.c and vfio_main.c), or a directory with such nodes in it
_OF_GROUPS = re.compile(r"(/run/.+)?/dev(/vfio(/(noiommu-)?\d+|/devices(/.+)?)?)?/?")
_ANY = re.compile(r"[*?]|\[[^]]*\]")


class DevNode(NamedTuple):
    """One device node, by the path that was looked for.

    ``target``: the node itself, where the path is a link. ``alias``: its lasting name, such as
    ``serial/usb-FTDI_A50285BI``, from the links of udev. ``parent``: the directory in sysfs of the device to
    which it belongs. ``vacant``: the node is there, and no device has its number. ``others``: more functions
    behind it, for an NVMe disk may have several controllers. ``guessed``: nothing tells which of them it is.
    """

    path: str
    target: str = ""
    alias: str = ""
    parent: str | None = None
    function: PciAddress | None = None  # the PCI function behind it, whatever is between
    vacant: bool = False
    others: tuple[PciAddress, ...] = ()
    guessed: bool = False

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """All PCI functions behind it."""
        return self.others if self.function is None else (self.function, *self.others)

    @property
    def real(self) -> str:
        """The path of the node itself."""
        return self.target or self.path

    def covers(self, path: str) -> bool:
        """True if this is the node of that path, or a directory with it: runtimes give all that is in one."""
        return path == self.real or path.startswith(f"{self.real.rstrip('/')}/")


def of_groups(path: str) -> bool:
    """True if the path, or what a pattern clearly means, is a node of IOMMU groups: one process opens one."""
    return _OF_GROUPS.fullmatch(_ANY.sub("0", path)) is not None


def is_pattern(path: str) -> bool:
    """True if the path stands for all nodes that it fits."""
    return not WILD.isdisjoint(path)


def fits(path: str, wanted: str) -> bool:
    """True if ``wanted``, a path or a pattern in the last part of one, means this path."""
    if path == wanted or not is_pattern(wanted):
        return path == wanted
    directory, _, name = path.rpartition("/")
    place, _, pattern = wanted.rpartition("/")
    return directory == place and fnmatchcase(name, pattern)
