# SPDX-License-Identifier: Apache-2.0
"""Reads the device nodes that rules and CDI files name, and the hardware behind each.

Links below /dev are followed inside /dev only: a link that leads elsewhere is not a device node. The kernel
lists the device of each device number (/sys/dev); NVIDIA's driver lists those of its own nodes in /proc. A
device node that was created manually may remain after its device was removed; such a node has no hardware.
udev's links give persistent names; by-id links are not used for USB devices without a serial number, because
two such devices would share a name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial

from nodeagent.kernel.root import Root, read_with_timeout
from nodeagent.kernel.scan import nvidia
from nodeagent.model.ids import PciAddress, pci_address
from nodeagent.model.nodes import DevNode, fits, is_pattern

DEV = "/dev"
LASTING = ("by-id", "by-path")  # directories of links that udev creates, in the order of preference
CLASSES = {"ttyUSB": "serial", "ttyACM": "serial", "video": "v4l"}  # names in /dev → directory of their links
# directories in sysfs → directory of their nodes
_VFIO = {"vfio": "/dev/vfio", "vfio-dev": "/dev/vfio/devices"}
_LINKS = 40  # as many as the kernel follows
_NVIDIA_SHARED = 254  # minor numbers from here on belong to the driver itself
# nvme_init_subsystem in drivers/nvme/host/core.c: links to the controllers beside the disks
_SUBSYSTEM, _CONTROLLER = re.compile(r"/sys/.*/nvme-subsystem/[^/]+"), re.compile(r"nvme\d+")
_CLASSES, _USB_DEVICES, _USB = "/sys/class", "/sys/bus/usb/devices", f"{DEV}/bus/usb"


def read(root: Root, wanted: Iterable[str]) -> dict[str, DevNode]:
    """Return the device nodes by path, for all paths and all matches of patterns. May block."""
    paths: dict[str, bool] = {}  # → True if only a pattern matches the path
    for each in wanted:
        if is_pattern(each):
            for path in _find_matches(root, each):
                paths.setdefault(path, True)
        else:
            paths[each] = False
    reader = _NodeReader(root)
    found = ((path, reader.node(path, by_pattern=by_pattern)) for path, by_pattern in paths.items())
    return {path: node for path, node in found if node is not None}


def watched_directories(wanted: str) -> tuple[str, ...]:
    """Return the directories in which a change affects these nodes or their persistent names."""
    directory, _, name = wanted.rpartition("/")
    if not is_pattern(wanted):
        return (directory,)
    below = {f"{DEV}/{where}" for begin, where in CLASSES.items() if name.startswith(begin)}
    if directory != DEV:
        below.add(directory)
    return (directory, *(f"{place}/{kind}" for place in sorted(below) for kind in LASTING))


def _find_matches(root: Root, pattern: str) -> Iterator[str]:
    directory = pattern.rpartition("/")[0]
    target = _resolve_in_dev(root, directory) if directory != DEV else DEV
    for name in () if target is None else root.names(target):
        if fits(f"{directory}/{name}", pattern):
            yield f"{directory}/{name}"


def _resolve_in_dev(root: Root, path: str) -> str | None:
    """Return the target of the links of a path below /dev; None if it is outside /dev or does not exist."""
    left, at = path.split("/")[2:], DEV
    for _ in range(_LINKS + len(left)):
        if not left:
            return at
        part, left = left[0], left[1:]
        if part in ("", "."):
            continue
        if part == "..":
            if at == DEV:
                return None
            at = at.rpartition("/")[0]
            continue
        target = root.target(f"{at}/{part}")
        if target is None:
            at = f"{at}/{part}"
        elif target.startswith("/"):
            if not target.startswith(f"{DEV}/"):
                return None
            at, left = DEV, [*target.split("/")[2:], *left]
        else:
            left = [*target.split("/"), *left]
    return None


class _NodeReader:
    """Reads some device nodes; facts that several nodes share are read once, when they are first needed."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def node(self, path: str, *, by_pattern: bool = False) -> DevNode | None:
        """Return the device node at a path; None if it does not exist.

        ``by_pattern``: the path matches a pattern, so it must not be a directory and needs a persistent
        name.
        """
        real = _resolve_in_dev(self._root, path) if path.startswith(f"{DEV}/") else path
        if real is None:
            return None
        try:
            status = os.stat(self._root.path(real))  # noqa: PTH116 - text, not a Path
        except OSError:
            return None
        if by_pattern and stat.S_ISDIR(status.st_mode):
            return None
        found = self._find_hardware(status)
        real = self._find_vfio_node(status) or real
        alias = self._find_lasting_name(real, found.parent) if by_pattern else ""
        return found._replace(path=path, target="" if real == path else real, alias=alias)

    def _find_vfio_node(self, status: os.stat_result) -> str | None:
        """Return the kernel's own node of an IOMMU group or VFIO device with this device number.

        A device node that was created manually under another name counts as this device node.
        """
        if not stat.S_ISCHR(status.st_mode):
            return None
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        *_, kind, name = ("", "", *(self._root.target(f"/sys/dev/char/{number}") or "").split("/"))
        directory = _VFIO.get(kind)
        return directory and f"{directory}/{name}"

    def _find_hardware(self, status: os.stat_result) -> DevNode:
        """Return a device node with the hardware behind a device number, but still without a path."""
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else None
        if kind is None:
            return DevNode("")
        major, low = os.major(status.st_rdev), os.minor(status.st_rdev)
        if kind == "char" and major == nvidia.MAJOR:
            if low < _NVIDIA_SHARED and not self._nvidia and self._is_registered(major):
                return DevNode("", guessed=True)  # NVIDIA's driver lists no GPU here
            return _find_nvidia_hardware(low, self._nvidia)
        return self._read_sysfs(f"/sys/dev/{kind}/{major}:{low}")

    def _is_registered(self, major: int) -> bool:
        """Return True if a driver has registered this major number (register_chrdev)."""
        characters, _, _ = (self._root.text("/proc/devices") or "").partition("Block devices:")
        return any(line.split()[:1] == [str(major)] for line in characters.splitlines())

    def _read_sysfs(self, at: str) -> DevNode:
        """Return the device of this sysfs entry, and the PCI functions that contain it."""
        # a device that is itself on a bus has no such link: a USB device
        parent = self._device(f"{at}/device")
        return _node_of(self._functions(parent or self._device(at)))._replace(parent=parent)

    def _functions(self, real: str | None) -> tuple[PciAddress, ...]:
        """Return the PCI functions above a device in sysfs; for an NVMe subsystem, the functions of its
        controllers.
        """
        subsystem = _SUBSYSTEM.match(real or "")
        places = [real]
        if subsystem is not None:
            names = sorted(filter(_CONTROLLER.fullmatch, self._root.names(subsystem[0])))
            places = [self._device(f"{subsystem[0]}/{name}") for name in names]
        return tuple(found for place in places if (found := _last_function(place)) is not None)

    def _device(self, link: str) -> str | None:
        if not self._root.exists(link):
            return None
        real = self._root.host_path(os.path.realpath(self._root.path(link)))
        return real if real.startswith("/sys/") else None

    def _find_lasting_name(self, real: str, parent: str | None) -> str:
        for name in self._lasting_names.get(real, ()):
            kind, link = name
            if kind == "by-id" and not self._is_unique(link, parent):
                continue
            return link
        return ""

    def _is_unique(self, link: str, parent: str | None) -> bool:
        """Return True if no other device can have this by-id link: for USB, if it contains the serial
        number.
        """
        parts = (parent or "").split("/")
        for length in range(len(parts), 3, -1):
            above = "/".join(parts[:length])
            if self._root.exists(f"{above}/idVendor"):
                serial = self._root.text(f"{above}/serial") or ""
                return bool(serial) and _replace_as_udev(serial) in _replace_as_udev(link)
        return True

    @cached_property
    def _lasting_names(self) -> dict[str, list[tuple[str, str]]]:
        """Return the persistent names of each node with their directories, in the order of preference."""
        found: dict[str, list[tuple[str, str]]] = {}
        for kind in LASTING:
            for place in self._root.names(DEV):
                for name in self._root.names(f"{DEV}/{place}/{kind}"):
                    real = _resolve_in_dev(self._root, f"{DEV}/{place}/{kind}/{name}")
                    if real is not None:
                        found.setdefault(real, []).append((kind, f"{place}/{name}"))
        return found

    @cached_property
    def _nvidia(self) -> dict[PciAddress, list[str | None]]:
        """Return the minor number of each GPU that NVIDIA's driver lists; an empty list for a GPU that does
        not answer.
        """
        gpus = [PciAddress(name) for name in self._root.names(nvidia.GPUS)]
        return {
            gpu: read_with_timeout(f"number of {gpu}", partial(nvidia.read_minor, self._root, gpu))
            for gpu in gpus
        }


def _find_nvidia_hardware(number: int, known: Mapping[PciAddress, list[str | None]]) -> DevNode:
    """Return the GPU behind a device node of NVIDIA's driver; no hardware for a node of the driver itself.

    A minor number that no GPU reports may belong to any GPU whose number is unknown.
    """
    if number >= _NVIDIA_SHARED:
        return DevNode("")
    if found := tuple(gpu for gpu, minor in known.items() if minor == [str(number)]):
        return _node_of(found)
    unanswered = tuple(gpu for gpu, minor in known.items() if minor in ([], [None]))
    return _node_of(unanswered)._replace(vacant=not unanswered, guessed=bool(unanswered))


def _node_of(functions: tuple[PciAddress, ...]) -> DevNode:
    return DevNode("", function=functions[0] if functions else None, others=functions[1:])


def _last_function(parent: str | None) -> PciAddress | None:
    """Return the last PCI address in the path of a device."""
    parts = reversed((parent or "").split("/"))
    return next((PciAddress(part) for part in parts if pci_address(part) == part), None)


def _replace_as_udev(text: str) -> str:
    """Return the text with the characters that udev replaces in names of links."""
    return "".join(letter if letter.isalnum() else "_" for letter in text.strip())
