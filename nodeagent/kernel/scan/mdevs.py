# SPDX-License-Identifier: Apache-2.0
"""Reads mediated device instances and the parents that offer types; also the machine id.

An mdev whose removal waits for a process has left the bus and is only listed in its group. An mdev without
a driver is kept as unusable, since ``policy`` makes the decisions. Without the module mdev the directories
do not exist, which is not an error. The machine id of systemd (machine-id(5)), from which the UUIDs of
mdevs are derived, is the same after each boot and different on each node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeagent.kernel.root import Directory, Root, is_gone
from nodeagent.kernel.scan.pci import has_cdev, hexadecimal, natural, vfio_device
from nodeagent.kernel.scan.readers import NOT_READABLE, Item, Reader, group_of
from nodeagent.model.host import Host, Mdev, MdevType
from nodeagent.model.ids import GroupNumber, mdev_uuid

DEVICES = "/sys/bus/mdev/devices"
PARENTS = "/sys/class/mdev_bus"
TYPES = "mdev_supported_types"  # in the directory of a parent
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def instance(root: Root, uuid: str) -> Mdev | None:
    """Return the current state of an mdev; None if it is not on the mdev bus."""
    try:
        with root.directory(f"{DEVICES}/{uuid}") as directory:
            return _instance(root, uuid, directory)
    except OSError as error:
        return None if is_gone(error) else Mdev(uuid, unreadable=f"not readable: {error.strerror}")


def _instance(root: Root, uuid: str, at: Directory) -> Mdev:
    group = natural(at.link("iommu_group"))
    parent = _parent(root.target(f"{DEVICES}/{uuid}"))
    device = vfio_device(at)
    return Mdev(
        uuid=uuid,
        parent=parent,
        type_id=at.link("mdev_type"),
        type_name=at.text("mdev_type/name"),
        driver=at.link("driver"),
        group=None if group is None else GroupNumber(group),
        numa_node=natural(_of_parent(root, parent, "numa_node")),
        vendor=hexadecimal(_of_parent(root, parent, "vendor"), 4),
        vfio_device=device,
        cdev=device is not None and has_cdev(root, at, device),
        inode=at.inode,
    )


def _of_parent(root: Root, parent: str | None, name: str) -> str | None:
    return None if parent is None else root.text(f"{PARENTS}/{parent}/{name}")


def _parent(target: str | None) -> str | None:
    """Return the parent directory of the mdev in its sysfs path."""
    parts = target.split("/") if target is not None else []
    return parts[-2] if len(parts) > 1 and parts[-2] not in ("..", "devices") else None


def types(root: Root, parent: str) -> tuple[MdevType, ...] | None:
    """Return the types that a parent offers, sorted by name; None if the device is not a parent."""
    path = f"{PARENTS}/{parent}/{TYPES}"
    if not root.exists(path):
        return None
    return tuple(_type(root, path, type_id) for type_id in root.names(path))


def _type(root: Root, path: str, type_id: str) -> MdevType:
    return MdevType(
        type_id=type_id,
        name=root.text(f"{path}/{type_id}/name"),
        available=natural(root.text(f"{path}/{type_id}/available_instances")),
    )


def instances_on(root: Root, parents: Iterable[str]) -> frozenset[str]:
    """Return the UUIDs of all mdevs below these parents; this takes less time than a scan."""
    names = (name for parent in parents for name in root.names(f"{PARENTS}/{parent}"))
    return frozenset(name for name in names if mdev_uuid(name) == name)


def read_machine_id(root: Root) -> str:
    """Return the machine id, 32 hexadecimal digits; "" if there is none, as on a new system."""
    text = (root.text("/etc/machine-id") or "").lower()
    return text if _MACHINE_ID.fullmatch(text) else ""


def parse_machine_id(text: str) -> str:
    """Return a configured machine id without dashes and in lower case; "" if it is invalid."""
    digits = text.strip().replace("-", "").lower()
    return digits if _MACHINE_ID.fullmatch(digits) else ""


def _list(root: Root) -> list[str]:
    return [name for name in root.names(DEVICES) if mdev_uuid(name) == name]


def _named(key: str, _: Host) -> tuple[str, ...] | None:
    uuid = mdev_uuid(key)
    return None if uuid is None else (uuid,)


def _unanswered(key: str, previous: Host) -> Mdev:
    return (previous.mdevs.get(key) or Mdev(key))._replace(unreadable=NOT_READABLE)


def _reads_as_known(root: Root, known: Mdev) -> bool:
    return instance(root, known.uuid) == known


def _follow(uuid: str, now: Mdev | None, previous: Host) -> Iterable[Item]:
    """Return the previous and the current group and parent of the mdev."""
    for mdev in (previous.device(uuid), now):
        if isinstance(mdev, Mdev):
            yield from group_of(mdev.group)
            if mdev.parent is not None:
                yield Item("mdev_parents", mdev.parent)


def _list_parents(root: Root) -> tuple[str, ...]:
    return root.names(PARENTS)


def _known_types(parent: str, previous: Host) -> tuple[MdevType, ...] | None:
    return previous.mdev_parents.get(parent)


READER = Reader("mdevs", _list, instance, _unanswered, _named, _follow, _reads_as_known)
PARENTS_READER = Reader("mdev_parents", _list_parents, types, _known_types)  # no event names a parent
