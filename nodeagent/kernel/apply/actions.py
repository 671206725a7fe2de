# SPDX-License-Identifier: Apache-2.0
"""Apply: makes one change of the host, and sees that it is made.

What is there already is not written again. Every call may sleep in the kernel for as long as a virtual
machine runs, and belongs in a thread that can be left behind. Decides nothing: whether somebody uses the
thing is for the caller to find out before (``in_use``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import driver, vfs, write
from nodeagent.kernel.apply.write import Write
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, pci
from nodeagent.model.action import (
    Action,
    BindDrivers,
    ClearVgpuType,
    CreateMdev,
    RemoveMdev,
    RestoreDrivers,
    SetVgpuType,
)
from nodeagent.model.vf_action import RestoreAutoprobe, RunSriovManage, SetNumVfs


def apply(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Make the change and see that it is made; at once if it is made already. May block for long.

    A tree of files needs time for the effect to show, the kernel does not.

    :raises KernelRefused: with the errno (0: no error, and no effect) and the path.
    """
    if isinstance(action, BindDrivers | RestoreDrivers):
        driver.change(root, action, timeouts)
    else:
        _APPLIERS[type(action)](root, action, timeouts)


def _create_mdev(root: Root, action: CreateMdev, timeouts: Timeouts) -> None:
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
        timeouts,
    )


def _remove_mdev(root: Root, action: RemoveMdev, timeouts: Timeouts) -> None:
    """Blocks for as long as anybody has it open; nothing if it is gone already.

    :raises KernelRefused: as ``write.verified``.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    if root.exists(instance):
        step = Write(f"{instance}/remove", "1", f"{action.uuid} is still there")
        write.verified(root, step, lambda: not root.exists(instance), timeouts)


def _set_vgpu_type(root: Root, action: SetVgpuType, timeouts: Timeouts) -> None:
    """Set the type of a VF; nothing if it has it already.

    :raises KernelRefused: as ``write.verified``; at once if the VF does not offer the type now.
    """
    _become(root, action.address, action.type_id, timeouts)


def _clear_vgpu_type(root: Root, action: ClearVgpuType, timeouts: Timeouts) -> None:
    """Take the type of a VF away; nothing if it has none.

    :raises KernelRefused: as ``write.verified``.
    """
    _become(root, action.address, pci.NO_VGPU, timeouts)


def _become(root: Root, address: str, type_id: str, timeouts: Timeouts) -> None:
    """The driver says EINVAL both for a type that it does not know and for one without room."""
    device = f"{pci.DEVICES}/{address}"
    path = f"{device}/{pci.VGPU_TYPE}"
    if root.text(path) == type_id:
        return
    listed = dict(pci.creatable(root.text(f"{device}/{pci.VGPU_TYPES}") or ""))
    if type_id not in (pci.NO_VGPU, *listed):
        raise write.refused(errno.ENOSPC, path)
    step = Write(path, type_id, f"the type of {address} is another")
    write.verified(root, step, lambda: root.text(path) == type_id, timeouts)


_APPLIERS: Mapping[type, Callable[[Root, Any, Timeouts], None]] = {
    CreateMdev: _create_mdev,
    RemoveMdev: _remove_mdev,
    SetVgpuType: _set_vgpu_type,
    ClearVgpuType: _clear_vgpu_type,
    SetNumVfs: vfs.set_number,
    RunSriovManage: vfs.run_sriov_manage,
    RestoreAutoprobe: vfs.restore_autoprobe,
}
