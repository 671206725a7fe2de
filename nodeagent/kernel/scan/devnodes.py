# SPDX-License-Identifier: Apache-2.0
"""Reads the device nodes that rules and CDI files name: which there are, and the hardware behind each.

Links below /dev are followed inside /dev alone: one that leads elsewhere is no node. The kernel lists the
device of each number (/sys/dev); NVIDIA's driver lists those of its own nodes in /proc. A node that was made
by hand may stay when its device has gone: then nothing is behind it. udev's links give lasting names; by-id
is not taken for a USB device without a serial number, since its twins would share that name.
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
LASTING = ("by-id", "by-path")  # directories of links that udev makes, the better one first
CLASSES = {"ttyUSB": "serial", "ttyACM": "serial", "video": "v4l"}  # names in /dev → where their links are
_VFIO = {"vfio": "/dev/vfio", "vfio-dev": "/dev/vfio/devices"}  # directories in sysfs → of their nodes
_LINKS = 40  # as many as the kernel follows
_NVIDIA_SHARED = 254  # from here on the minor numbers are those of the driver itself
# nvme_init_subsystem in drivers/nvme/host/core.c: links to the controllers beside the disks
_SUBSYSTEM, _CONTROLLER = re.compile(r"/sys/.*/nvme-subsystem/[^/]+"), re.compile(r"nvme\d+")
_CLASSES, _USB_DEVICES, _USB = "/sys/class", "/sys/bus/usb/devices", f"{DEV}/bus/usb"


def read(root: Root, wanted: Iterable[str]) -> dict[str, DevNode]:
    """Path → node, of all paths and all that patterns match. May block."""
    paths: dict[str, bool] = {}  # → whether only a pattern means it
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
    """The directories in which a change concerns these nodes or their lasting names."""
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
    """Where the links of a path below /dev lead; None if that is outside, or nowhere in the end."""
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
    """One look at some nodes; what all of them share is read once, when it is first wanted."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def node(self, path: str, *, by_pattern: bool = False) -> DevNode | None:
        """The node of a path; None if there is none.

        ``by_pattern``: a pattern means it. Such are no directories, and need a name that lasts.
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
        """The kernel's own node of an IOMMU group, or of a VFIO device, that has this number.

        A node that was made by hand under another name is the same one.
        """
        if not stat.S_ISCHR(status.st_mode):
            return None
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        *_, kind, name = ("", "", *(self._root.target(f"/sys/dev/char/{number}") or "").split("/"))
        directory = _VFIO.get(kind)
        return directory and f"{directory}/{name}"

    def _find_hardware(self, status: os.stat_result) -> DevNode:
        """The hardware behind a node of this number; it has no path yet."""
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else None
        if kind is None:
            return DevNode("")
        major, low = os.major(status.st_rdev), os.minor(status.st_rdev)
        if kind == "char" and major == nvidia.MAJOR:
            if low < _NVIDIA_SHARED and not self._nvidia and self._is_registered(major):
                return DevNode("", guessed=True)  # its driver lists no GPU here
            return _find_nvidia_hardware(low, self._nvidia)
        return self._read_sysfs(f"/sys/dev/{kind}/{major}:{low}")

    def _is_registered(self, major: int) -> bool:
        """True if a driver has registered this major number for character devices (register_chrdev)."""
        characters, _, _ = (self._root.text("/proc/devices") or "").partition("Block devices:")
        return any(line.split()[:1] == [str(major)] for line in characters.splitlines())

    def _read_sysfs(self, at: str) -> DevNode:
        """The device of this entry in sysfs, and the PCI functions above that."""
        parent = self._device(f"{at}/device")  # what is itself on a bus has no such link: a USB device
        return _node_of(self._functions(parent or self._device(at)))._replace(parent=parent)

    def _functions(self, real: str | None) -> tuple[PciAddress, ...]:
        """Those on the way to a device; of an NVMe subsystem, which is on none of them, its controllers."""
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
        """True if no other device can have this by-id link: a USB device's has its serial number in it."""
        parts = (parent or "").split("/")
        for length in range(len(parts), 3, -1):
            above = "/".join(parts[:length])
            if self._root.exists(f"{above}/idVendor"):
                serial = self._root.text(f"{above}/serial") or ""
                return bool(serial) and _replace_as_udev(serial) in _replace_as_udev(link)
        return True

    @cached_property
    def _lasting_names(self) -> dict[str, list[tuple[str, str]]]:
        """Node → its lasting names, and where they stand, the best first."""
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
        """The GPUs that its driver has → their numbers; empty for one that does not answer."""
        gpus = [PciAddress(name) for name in self._root.names(nvidia.GPUS)]
        return {
            gpu: read_with_timeout(f"number of {gpu}", partial(nvidia.read_minor, self._root, gpu))
            for gpu in gpus
        }


def _find_nvidia_hardware(number: int, known: Mapping[PciAddress, list[str | None]]) -> DevNode:
    """The hardware behind a node of NVIDIA's: a GPU, or none for a node of the driver itself.

    If it is no GPU's that tells its number, it may be that of each that does not.
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
    """The last PCI address on the way to a device."""
    parts = reversed((parent or "").split("/"))
    return next((PciAddress(part) for part in parts if pci_address(part) == part), None)


def _replace_as_udev(text: str) -> str:
    """Without what udev replaces in names of links."""
    return "".join(letter if letter.isalnum() else "_" for letter in text.strip())
