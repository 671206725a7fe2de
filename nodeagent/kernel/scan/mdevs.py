# SPDX-License-Identifier: Apache-2.0
"""Reads mediated device instances and the parents that offer types.

An instance whose removal is blocked by its user has left the bus and is seen in its group only. One
without a driver is dead, and kept: deciding is the business of ``policy``. Without the module mdev the
directories are absent, which is no error.
"""

from __future__ import annotations

from nodeagent.kernel.root import Directory, Root, gone
from nodeagent.kernel.scan.pci import has_cdev, hexadecimal, natural, vfio_device
from nodeagent.model.host import Mdev, MdevType
from nodeagent.model.ids import GroupNumber

DEVICES = "/sys/bus/mdev/devices"
PARENTS = "/sys/class/mdev_bus"
TYPES = "mdev_supported_types"  # in a parent's directory


def instance(root: Root, uuid: str) -> Mdev | None:
    """The instance as it is now; None if it is not on the mdev bus."""
    try:
        with root.directory(f"{DEVICES}/{uuid}") as directory:
            return _instance(root, uuid, directory)
    except OSError as error:
        return None if gone(error) else Mdev(uuid, unreadable=f"not readable: {error.strerror}")


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
    )


def _of_parent(root: Root, parent: str | None, name: str) -> str | None:
    return None if parent is None else root.text(f"{PARENTS}/{parent}/{name}")


def _parent(target: str | None) -> str | None:
    """The directory above the instance on its real path."""
    parts = target.split("/") if target is not None else []
    return parts[-2] if len(parts) > 1 and parts[-2] not in ("..", "devices") else None


def types(root: Root, parent: str) -> tuple[MdevType, ...] | None:
    """The types that a parent offers, by name; None if it is no parent (any more)."""
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
