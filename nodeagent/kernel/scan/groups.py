# SPDX-License-Identifier: Apache-2.0
"""Reads one IOMMU group: its members, its type, and whether VFIO has created its device node."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from nodeagent.kernel.root import Root, is_gone, raise_if_out_of_resources
from nodeagent.kernel.scan.pci import VFIO
from nodeagent.kernel.scan.readers import Item, Reader
from nodeagent.model.host import Group, Host
from nodeagent.model.ids import GroupNumber, mdev_uuid, pci_order

GROUPS = "/sys/kernel/iommu_groups"
_CLASS = "/sys/class/vfio"
_NAMED = re.compile(r"(?:/dev/vfio/(?:noiommu-)?|/sys/kernel/iommu_groups/)(\d{1,10})")  # an int of C


def group(root: Root, number: GroupNumber) -> Group | None:
    """Return the group with its members in address order; None if it does not exist."""
    path = f"{GROUPS}/{number}"
    try:
        members = os.listdir(root.path(f"{path}/devices"))
    except OSError as error:
        raise_if_out_of_resources(error)
        return None if is_gone(error) else Group(number)
    domain = root.text(f"{path}/type")
    name = _group_name(root, path, members) if domain in (None, "unknown") else None
    own = _own_node(root, f"noiommu-{number}" if name == "vfio-noiommu" else f"{number}")
    regions = root.text(f"{path}/reserved_regions") or ""
    return Group(
        number=number,
        members=tuple(members if len(members) < 2 else sorted(members, key=pci_order)),
        kind=domain,
        name=name,
        node=own is True,
        # a line has begin, end and type; direct-relaxable (Linux 5.3) is for regions that only the drivers of
        # the firmware use: display, USB (Documentation/ABI/testing/sysfs-kernel-iommu_groups)
        direct=" direct\n" in f"{regions}\n",
        stale=own is False,
    )


def _own_node(root: Root, name: str) -> bool | None:
    """Return True if the group's device node has the group's number, False if it has another one, None
    without a node.

    The kernel removes or replaces only device nodes that it has created itself (drivers/base/devtmpfs.c). A
    node that was created manually remains when VFIO gives the group another number; it then belongs to
    another group.
    """
    try:
        status = os.stat(root.path(f"{VFIO}/{name}"))  # noqa: PTH116 - text, not a Path
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return True
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return root.text(f"{_CLASS}/{name}/dev") in (None, number)


def _group_name(root: Root, path: str, members: Iterable[str]) -> str | None:
    """Return the name of an IOMMU group of functions; only a group without a default domain has a name.

    VFIO creates groups named vfio-noiommu for PCI functions without an IOMMU, and with the same name for
    mdevs, which need no IOMMU (vfio_noiommu_group_alloc in drivers/vfio/group.c). The name of a group of
    mdevs is not returned.
    """
    return None if any(mdev_uuid(member) for member in members) else root.text(f"{path}/name")


def _list(root: Root) -> list[GroupNumber]:
    return sorted(GroupNumber(int(name)) for name in root.names(GROUPS) if name.isdecimal())


def _named(key: str, _: Host) -> tuple[GroupNumber, ...] | None:
    match = _NAMED.fullmatch(key)
    return None if match is None else (GroupNumber(int(match[1])),)


def _unanswered(number: GroupNumber, previous: Host) -> Group:
    return previous.groups.get(number) or Group(number)


def _follow(number: GroupNumber, now: Group | None, previous: Host) -> Iterable[Item]:
    """Return all mdev parents if an mdev has left the group, because their free capacity changes without an
    event.

    The parent of the removed mdev is no longer known. A removal that waits for a process first removes the
    mdev from its bus, and frees its capacity at the end.
    """
    before = previous.groups.get(number)
    members = () if now is None else now.members
    if before is not None and any(mdev_uuid(member) for member in before.members if member not in members):
        yield from (Item("mdev_parents", name) for name in previous.mdev_parents)


def _reads_as_known(root: Root, known: Group) -> bool:
    return group(root, known.number) == known


READER = Reader("groups", _list, group, _unanswered, _named, _follow, _reads_as_known)
