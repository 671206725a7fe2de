# SPDX-License-Identifier: Apache-2.0
"""What CDI specification files on the host say (Container Device Interface), as far as it decides anything.

Other tools write them, runtimes read them, and by their rules a name counts: a file that is wrong anywhere
counts for nothing, a directory of a higher rank goes before, and one name twice in one directory is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
    """What a qualified name (``nvidia.com/gpu=0``) stands for. ``rivals``: files that have it as well."""

    name: str
    device: CdiDevice
    file: CdiFile
    rivals: tuple[str, ...] = ()


def entries(files: Mapping[str, CdiFile]) -> dict[str, CdiEntry]:
    """Qualified name → what it stands for, in the order of files and of devices in them."""
    found: dict[str, CdiEntry] = {}
    for file in sorted(files.values(), key=lambda file: (bool(file.fault), file.rank, file.path)):
        for device in file.devices:
            name = f"{file.kind}={device.name}"
            found[name] = _counting(found.get(name), CdiEntry(name, device, file))
    return found


def nodes(files: Mapping[str, CdiFile]) -> tuple[str, ...]:
    """The nodes of all devices; only places of device nodes are looked at."""
    named = (path for file in files.values() for device in file.devices for path in device.paths)
    return tuple(path for path in dict.fromkeys(named) if looked_at(path))


def looked_at(path: str) -> bool:
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
