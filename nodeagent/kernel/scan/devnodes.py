# SPDX-License-Identifier: Apache-2.0
"""Reads the device nodes that rules and CDI files name: which there are, and what stands behind each.

What is below /dev is followed inside /dev alone: a link that leads elsewhere is no node. The kernel tells
which device has a number (/sys/dev); of its own nodes NVIDIA's driver tells it in /proc. A node that was made
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
from nodeagent.kernel.scan.pci import NVIDIA_GPUS, NVIDIA_MAJOR, nvidia_minor
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
    by_pattern: dict[str, bool] = {}
    for each in wanted:
        if is_pattern(each):
            for path in _match(root, each):
                by_pattern.setdefault(path, True)
        else:
            by_pattern[each] = False
    reading = Reading(root)
    found = ((path, reading.node(path, listed=listed)) for path, listed in by_pattern.items())
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


def _match(root: Root, pattern: str) -> Iterator[str]:
    directory = pattern.rpartition("/")[0]
    target = _inside(root, directory) if directory != DEV else DEV
    for name in () if target is None else root.names(target):
        if fits(f"{directory}/{name}", pattern):
            yield f"{directory}/{name}"


def _inside(root: Root, path: str) -> str | None:
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


class Reading:
    """One look at some nodes; what all of them share is read once, when it is first wanted."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def node(self, path: str, *, listed: bool = False) -> DevNode | None:
        """The node of a path; None if there is none.

        ``listed``: a pattern means it. Such are no directories, and need a name that lasts.
        """
        real = _inside(self._root, path) if path.startswith(f"{DEV}/") else path
        if real is None:
            return None
        try:
            status = os.stat(self._root.path(real))  # noqa: PTH116 - text, not a Path
        except OSError:
            return None
        if listed and stat.S_ISDIR(status.st_mode):
            return None
        found = self._behind(status)
        real = self._of_group(status) or real
        alias = self._alias(real, found.parent) if listed else ""
        return found._replace(path=path, target="" if real == path else real, alias=alias)

    def _of_group(self, status: os.stat_result) -> str | None:
        """The kernel's own node of an IOMMU group, or of a VFIO device, that has this number.

        A node that somebody has made under another name is the same one.
        """
        if not stat.S_ISCHR(status.st_mode):
            return None
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        *_, kind, name = ("", "", *(self._root.target(f"/sys/dev/char/{number}") or "").split("/"))
        directory = _VFIO.get(kind)
        return directory and f"{directory}/{name}"

    def _behind(self, status: os.stat_result) -> DevNode:
        """What is behind a node of this number; it has no path yet."""
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else None
        if kind is None:
            return DevNode("")
        major, low = os.major(status.st_rdev), os.minor(status.st_rdev)
        if kind == "char" and major == NVIDIA_MAJOR:
            if low < _NVIDIA_SHARED and not self._nvidia and self._is_registered(major):
                return DevNode("", guessed=True)  # its driver lists no GPU here
            return _of_nvidia(low, self._nvidia)
        return self._shown(f"/sys/dev/{kind}/{major}:{low}")

    def _is_registered(self, major: int) -> bool:
        """True if a driver has registered this major number for character devices (register_chrdev)."""
        characters, _, _ = (self._root.text("/proc/devices") or "").partition("Block devices:")
        return any(line.split()[:1] == [str(major)] for line in characters.splitlines())

    def _shown(self, at: str) -> DevNode:
        """What is shown there: the device to which it belongs, and the PCI functions that it is on."""
        parent = self._device(f"{at}/device")  # what is itself on a bus has no such link: a USB device
        return _on(self._functions(parent or self._device(at)))._replace(parent=parent)

    def _functions(self, real: str | None) -> tuple[PciAddress, ...]:
        """Those on the way to a device; of an NVMe subsystem, which is on none of them, its controllers."""
        subsystem = _SUBSYSTEM.match(real or "")
        places = [real]
        if subsystem is not None:
            names = sorted(filter(_CONTROLLER.fullmatch, self._root.names(subsystem[0])))
            places = [self._device(f"{subsystem[0]}/{name}") for name in names]
        return tuple(found for place in places if (found := _function(place)) is not None)

    def _device(self, link: str) -> str | None:
        if not self._root.exists(link):
            return None
        real = self._root.host_path(os.path.realpath(self._root.path(link)))
        return real if real.startswith("/sys/") else None

    def _alias(self, real: str, parent: str | None) -> str:
        for name in self._aliases.get(real, ()):
            kind, link = name
            if kind == "by-id" and not self._told_apart(link, parent):
                continue
            return link
        return ""

    def _told_apart(self, link: str, parent: str | None) -> bool:
        """True if no other device can have this by-id link: a USB device's has its serial number in it."""
        parts = (parent or "").split("/")
        for length in range(len(parts), 3, -1):
            above = "/".join(parts[:length])
            if self._root.exists(f"{above}/idVendor"):
                serial = self._root.text(f"{above}/serial") or ""
                return bool(serial) and _plain(serial) in _plain(link)
        return True

    @cached_property
    def _aliases(self) -> dict[str, list[tuple[str, str]]]:
        """Node → its lasting names, and where they stand, the best first."""
        found: dict[str, list[tuple[str, str]]] = {}
        for kind in LASTING:
            for place in self._root.names(DEV):
                for name in self._root.names(f"{DEV}/{place}/{kind}"):
                    real = _inside(self._root, f"{DEV}/{place}/{kind}/{name}")
                    if real is not None:
                        found.setdefault(real, []).append((kind, f"{place}/{name}"))
        return found

    @cached_property
    def _nvidia(self) -> dict[PciAddress, list[str | None]]:
        """The GPUs that its driver has → their numbers; empty for one that does not answer."""
        gpus = [PciAddress(name) for name in self._root.names(NVIDIA_GPUS)]
        return {
            gpu: read_with_timeout(f"number of {gpu}", partial(nvidia_minor, self._root, gpu)) for gpu in gpus
        }


def _of_nvidia(number: int, known: Mapping[PciAddress, list[str | None]]) -> DevNode:
    """What is behind a node of NVIDIA's: of a GPU, or of the driver itself.

    If it is no GPU's that tells its number, it may be that of each that does not.
    """
    if number >= _NVIDIA_SHARED:
        return DevNode("")
    if found := tuple(gpu for gpu, told in known.items() if told == [str(number)]):
        return _on(found)
    silent = tuple(gpu for gpu, told in known.items() if told in ([], [None]))
    return _on(silent)._replace(vacant=not silent, guessed=bool(silent))


def _on(functions: tuple[PciAddress, ...]) -> DevNode:
    return DevNode("", function=functions[0] if functions else None, others=functions[1:])


def _function(parent: str | None) -> PciAddress | None:
    """The last PCI address on the way to a device."""
    parts = reversed((parent or "").split("/"))
    return next((PciAddress(part) for part in parts if pci_address(part) == part), None)


def _plain(text: str) -> str:
    """Without what udev replaces in names of links."""
    return "".join(letter if letter.isalnum() else "_" for letter in text.strip())
