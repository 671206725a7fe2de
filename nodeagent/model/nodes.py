# SPDX-License-Identifier: Apache-2.0
"""Device nodes as the kernel shows them, and CDI specification files, which name device nodes.

A DevNode is a device node with its requested path, the target of that path's links, and its hardware. Only
device nodes that rules or CDI files name are included, as far as they exist. Other tools write CDI files
(Container Device Interface), and container runtimes read them. nodeagent follows the rules of container
runtimes: a file with any error is ignored, a directory of higher rank has precedence, and a name that occurs
twice in one directory is ignored.
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
    """One device node; ``path`` is the path in the rule or CDI file.

    ``target``: the path of the device node itself, if ``path`` is a link. ``alias``: the persistent name of
    the device node from udev's links, such as ``serial/usb-FTDI_A50285BI``. ``parent``: the sysfs directory
    of the device. ``vacant``: the device node exists, but no device has its device number. ``others``:
    further PCI functions of the device node, since an NVMe disk may have several controllers. ``guessed``: it
    is unknown which of ``function`` and ``others`` the device node belongs to.
    """

    path: str
    target: str = ""
    alias: str = ""
    parent: str | None = None
    function: PciAddress | None = None  # the PCI function that contains the device
    vacant: bool = False
    others: tuple[PciAddress, ...] = ()
    guessed: bool = False

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """Return all PCI functions of the device node."""
        return self.others if self.function is None else (self.function, *self.others)

    @property
    def real(self) -> str:
        """Return the path of the device node itself, even if the requested path is a link."""
        return self.target or self.path

    def covers(self, path: str) -> bool:
        """Return True if ``path`` is the path of this device node, or is below this directory."""
        return path == self.real or path.startswith(f"{self.real.rstrip('/')}/")


def of_groups(path: str) -> bool:
    """Return True if the path or pattern means device nodes of IOMMU groups; one process can open each."""
    return _OF_GROUPS.fullmatch(_ANY.sub("0", path)) is not None


def is_pattern(path: str) -> bool:
    """Return True if the path is a pattern."""
    return not WILD.isdisjoint(path)


def fits(path: str, wanted: str) -> bool:
    """Return True if ``wanted``, a path or a pattern in its last component, matches the path."""
    if path == wanted or not is_pattern(wanted):
        return path == wanted
    directory, _, name = path.rpartition("/")
    place, _, pattern = wanted.rpartition("/")
    return directory == place and fnmatchcase(name, pattern)


class CdiDevice(NamedTuple):
    """One device of a CDI file. ``nodes`` are the device nodes that must exist; ``edits`` is equal for equal
    container edits.

    ``numbered`` device nodes need not exist: the CDI file has their device numbers, from which runtimes
    create them.
    """

    name: str
    nodes: tuple[str, ...] = ()
    edits: str = ""
    numbered: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all its nodes."""
        return (*self.nodes, *self.numbered)


class CdiFile(NamedTuple):
    """A CDI file, or a directory that cannot be read (then only ``fault`` is set).

    ``fault``: the error that makes the file unusable, with its place; its devices are then those before the
    error. ``rank`` is the precedence of the file's directory; ``stamp`` changes when the file is written.
    """

    path: str
    kind: str = ""
    devices: tuple[CdiDevice, ...] = ()
    fault: str = ""
    rank: int = 0
    stamp: tuple[int, ...] = ()


class CdiEntry(NamedTuple):
    """The device of a qualified name (``nvidia.com/gpu=0``). ``rivals``: other files that define a device
    with the same qualified name.
    """

    name: str
    device: CdiDevice
    file: CdiFile
    rivals: tuple[str, ...] = ()


def resolve_cdi_names(files: Mapping[str, CdiFile]) -> dict[str, CdiEntry]:
    """Return the devices by qualified name, in the order of the files and of the devices in them."""
    found: dict[str, CdiEntry] = {}
    for file in sorted(files.values(), key=lambda file: (bool(file.fault), file.rank, file.path)):
        for device in file.devices:
            name = f"{file.kind}={device.name}"
            found[name] = _counting(found.get(name), CdiEntry(name, device, file))
    return found


def cdi_nodes(files: Mapping[str, CdiFile]) -> tuple[str, ...]:
    """Return the device nodes of all CDI devices, without paths that cannot be device nodes."""
    named = (path for file in files.values() for device in file.devices for path in device.paths)
    return tuple(path for path in dict.fromkeys(named) if is_node_path(path))


def is_node_path(path: str) -> bool:
    """Return True for a path in /dev, or in a /dev below /run, which a containerized driver has."""
    return "/../" not in path and (path.startswith("/dev/") or (path.startswith("/run/") and "/dev/" in path))


def _counting(before: CdiEntry | None, now: CdiEntry) -> CdiEntry:
    """Return which of two CDI devices with one name applies; ``now`` is from a file of the same or a higher
    rank, or from an invalid file.
    """
    if before is None:
        return now
    if now.file.fault:
        return before
    if before.file.rank == now.file.rank:
        return before._replace(rivals=(*before.rivals, now.file.path))
    # runtimes also ignore a name that occurs twice in a lower directory
    return now._replace(rivals=before.rivals)
