# SPDX-License-Identifier: Apache-2.0
"""Applies one change to the host, and verifies it.

A value that is set already is not written again. Every call may sleep in the kernel for as long as a VM runs,
so callers use a thread that can be abandoned. Before each call, the caller checks whether a process uses the
device (``open_files``).
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
    """Apply the change and verify it; return immediately if it is already in effect. May block for long.

    In a simulated host the effect of a write appears later; in the kernel it appears before the write
    returns.

    :raises KernelRefused: with the errno (0: no error, but no effect) and the path.
    """
    _APPLIERS[action.kind](root, action, timeouts)


def _create_mdev(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Create an mdev, and wait until a driver is bound to it: the driver link exists when the kernel sends
    ``bind``.

    :raises KernelRefused: as ``write_verified``; immediately if the id exists or no instance is available.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    mdev_type = f"{mdevs.PARENTS}/{action.parent}/mdev_supported_types/{action.type_id}"
    path = f"{mdev_type}/create"
    if root.exists(f"{mdevs.PARENTS}/{action.parent}/{action.uuid}"):
        raise write.refusal(errno.EEXIST, path)
    if root.text(f"{mdev_type}/available_instances") == "0":  # the parents of one card share its capacity
        raise write.refusal(errno.ENOSPC, path)

    def is_ready() -> bool:
        return root.exists(f"{instance}/driver") and root.link(f"{instance}/mdev_type") == action.type_id

    write_verified(root, timeouts, path, action.uuid, is_ready, f"no driver has bound {action.uuid}")


def _remove_mdev(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Remove an mdev; does nothing if it does not exist. The call blocks while a process has the mdev open.

    :raises KernelRefused: as ``write_verified``.
    """
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    if root.exists(instance):
        otherwise = f"{action.uuid} still exists"
        write_verified(
            root, timeouts, f"{instance}/remove", "1", lambda: not root.exists(instance), otherwise
        )


def _set_vgpu_type(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Set or clear the vGPU type of a VF; does nothing if it is already as requested.

    The driver returns EINVAL both for an unknown vGPU type and for a type without free capacity.

    :raises KernelRefused: as ``write_verified``; immediately if the VF does not offer the type now.
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
    otherwise = f"{address} has another type"
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
