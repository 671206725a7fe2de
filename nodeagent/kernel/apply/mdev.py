# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: how one is made and removed, and how that shows (Linux, drivers/vfio/mdev)."""

from __future__ import annotations

import errno

from nodeagent.kernel.apply import write
from nodeagent.kernel.apply.write import Write
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs
from nodeagent.model.action import CreateMdev, RemoveMdev


def create(root: Root, action: CreateMdev, patience: float) -> None:
    """Ready is what a driver has: the link exists when ``bind`` is announced.

    :raises KernelRefused: as ``write.verified``; at once if the id exists or no room is said.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    mdev_type = f"{mdevs.PARENTS}/{action.parent}/mdev_supported_types/{action.type_id}"
    path = f"{mdev_type}/create"
    if root.exists(f"{mdevs.PARENTS}/{action.parent}/{action.uuid}"):
        raise write.refused(errno.EEXIST, path)
    if root.text(f"{mdev_type}/available_instances") == "0":  # parents of one card share their room
        raise write.refused(errno.ENOSPC, path)
    write.verified(
        root,
        Write(path, action.uuid, f"no driver has taken {action.uuid}"),
        lambda: root.exists(f"{instance}/driver") and root.link(f"{instance}/mdev_type") == action.type_id,
        patience,
    )


def remove(root: Root, action: RemoveMdev, patience: float) -> None:
    """Blocks for as long as anybody has it open; nothing if it is gone already.

    :raises KernelRefused: as ``write.verified``.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    if root.exists(instance):
        step = Write(f"{instance}/remove", "1", f"{action.uuid} is still there")
        write.verified(root, step, lambda: not root.exists(instance), patience)
