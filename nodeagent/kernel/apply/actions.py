# SPDX-License-Identifier: Apache-2.0
"""Apply: makes one change of the host, and sees that it is made.

A value that is there already is not written again. Every call may sleep in the kernel for as long as a
virtual machine runs, and belongs in a thread that can be left behind. Decides nothing: the caller finds out
before whether a process uses the device (``open_files``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import bind, sriov, write
from nodeagent.kernel.apply.write import write_verified
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, nvidia, pci
from nodeagent.model.change import Action, ActionKind


def apply(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Make the change and see that it is made; at once if it is made already. May block for long.

    A tree of files needs time for the effect to show, the kernel does not.

    :raises KernelRefused: with the errno (0: no error, and no effect) and the path.
    """
    _APPLIERS[action.kind](root, action, timeouts)


def _create_mdev(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Ready is what a driver has: the link exists when ``bind`` is announced.

    :raises KernelRefused: as ``write_verified``; at once if the id exists or no room is said.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    mdev_type = f"{mdevs.PARENTS}/{action.parent}/mdev_supported_types/{action.type_id}"
    path = f"{mdev_type}/create"
    if root.exists(f"{mdevs.PARENTS}/{action.parent}/{action.uuid}"):
        raise write.refusal(errno.EEXIST, path)
    if root.text(f"{mdev_type}/available_instances") == "0":  # parents of one card share their room
        raise write.refusal(errno.ENOSPC, path)

    def is_ready() -> bool:
        return root.exists(f"{instance}/driver") and root.link(f"{instance}/mdev_type") == action.type_id

    write_verified(root, timeouts, path, action.uuid, is_ready, f"no driver has taken {action.uuid}")


def _remove_mdev(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Blocks for as long as a process has it open; does nothing if it is gone already.

    :raises KernelRefused: as ``write_verified``.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    if root.exists(instance):
        otherwise = f"{action.uuid} is still there"
        write_verified(
            root, timeouts, f"{instance}/remove", "1", lambda: not root.exists(instance), otherwise
        )


def _set_vgpu_type(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Set or clear the type of a VF; nothing if it is as it should be.

    The driver returns EINVAL both for a type that it does not know and for one without room.

    :raises KernelRefused: as ``write_verified``; at once if the VF does not offer the type now.
    """
    address = action.address
    type_id = nvidia.NO_VGPU if action.kind is ActionKind.CLEAR_VGPU_TYPE else action.type_id or ""
    device = f"{pci.DEVICES}/{address}"
    path = f"{device}/{nvidia.VGPU_TYPE}"
    if root.text(path) == type_id:
        return
    listed = dict(nvidia.parse_vgpu_types(root.text(f"{device}/{nvidia.VGPU_TYPES}") or ""))
    if type_id not in (nvidia.NO_VGPU, *listed):
        raise write.refusal(errno.ENOSPC, path)
    otherwise = f"the type of {address} is another"
    write_verified(root, timeouts, path, type_id, lambda: root.text(path) == type_id, otherwise)


_APPLIERS: Mapping[ActionKind, Callable[[Root, Action, Timeouts], None]] = {
    ActionKind.CREATE_MDEV: _create_mdev,
    ActionKind.REMOVE_MDEV: _remove_mdev,
    ActionKind.SET_VGPU_TYPE: _set_vgpu_type,
    ActionKind.CLEAR_VGPU_TYPE: _set_vgpu_type,
    ActionKind.SET_NUM_VFS: sriov.set_number,
    ActionKind.RUN_SRIOV_MANAGE: sriov.run_sriov_manage,
    ActionKind.RESTORE_AUTOPROBE: sriov.restore_autoprobe,
    ActionKind.BIND_DRIVERS: bind.change_drivers,
    ActionKind.RESTORE_DRIVERS: bind.change_drivers,
}
