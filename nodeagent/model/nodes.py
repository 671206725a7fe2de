# SPDX-License-Identifier: Apache-2.0
"""Device nodes as the kernel shows them, and CDI specification files, which name device nodes.

A DevNode says where the links of a path lead, and which hardware stands behind it. Known of the nodes that
rules or CDI files name, and of no others. A path without a node is not there. CDI files (Container Device
Interface) are written by other tools and read by runtimes, whose rules are followed here: a file with any
error counts for nothing, a directory of a higher rank goes before, and a name that one directory has twice is
that of no device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


class CdiDevice(NamedTuple):
    """One device of a file. ``nodes`` have to exist; ``edits`` is the same for those that change the same.

    ``numbered`` nodes need not: the file has their numbers, by which runtimes make them.
    """

    name: str
    nodes: tuple[str, ...] = ()
    edits: str = ""
    numbered: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All of its nodes."""
        return (*self.nodes, *self.numbered)


class CdiFile(NamedTuple):
    """A file, or a directory that cannot be read (then it has a ``fault`` and nothing else).

    ``fault``: why nothing of it counts, with the place in it; its devices are then those that it had before.
    ``rank`` is that of its directory, ``stamp`` tells whether it was written again.
    """

    path: str
    kind: str = ""
    devices: tuple[CdiDevice, ...] = ()
    fault: str = ""
    rank: int = 0
    stamp: tuple[int, ...] = ()


class CdiEntry(NamedTuple):
    """The device of a qualified name (``nvidia.com/gpu=0``). ``rivals``: files that have it as well."""

    name: str
    device: CdiDevice
    file: CdiFile
    rivals: tuple[str, ...] = ()


def resolve_cdi_names(files: Mapping[str, CdiFile]) -> dict[str, CdiEntry]:
    """Qualified name → its device, in the order of files and of devices in them."""
    found: dict[str, CdiEntry] = {}
    for file in sorted(files.values(), key=lambda file: (bool(file.fault), file.rank, file.path)):
        for device in file.devices:
            name = f"{file.kind}={device.name}"
            found[name] = _counting(found.get(name), CdiEntry(name, device, file))
    return found


def cdi_nodes(files: Mapping[str, CdiFile]) -> tuple[str, ...]:
    """The nodes of all devices; only places of device nodes are looked at."""
    named = (path for file in files.values() for device in file.devices for path in device.paths)
    return tuple(path for path in dict.fromkeys(named) if is_node_path(path))


def is_node_path(path: str) -> bool:
    """True for a path in /dev, or in a /dev below /run: that of a driver in a container."""
    return "/../" not in path and (path.startswith("/dev/") or (path.startswith("/run/") and "/dev/" in path))


def _counting(before: CdiEntry | None, now: CdiEntry) -> CdiEntry:
    """Which of two counts; the later file is of the same rank or a higher one, or is at fault."""
    if before is None:
        return now
    if now.file.fault:
        return before
    if before.file.rank == now.file.rank:
        return before._replace(rivals=(*before.rivals, now.file.path))
    return now._replace(rivals=before.rivals)  # runtimes drop a name that was twice in a lower one, too
