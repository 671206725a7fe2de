# SPDX-License-Identifier: Apache-2.0
"""vGPU types of NVIDIA's vendor-specific VFIO framework: how one is set and cleared, and how that shows."""

from __future__ import annotations

import errno

from nodeagent.kernel.apply import write
from nodeagent.kernel.apply.write import Write
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import pci
from nodeagent.model.action import ClearVgpuType, SetVgpuType


def set_type(root: Root, action: SetVgpuType, patience: float) -> None:
    """Set the type of a VF; nothing if it has it already.

    :raises KernelRefused: as ``write.verified``; at once if the VF does not offer the type now.
    """
    _become(root, action.address, action.type_id, patience)


def clear_type(root: Root, action: ClearVgpuType, patience: float) -> None:
    """Take the type of a VF away; nothing if it has none.

    :raises KernelRefused: as ``write.verified``.
    """
    _become(root, action.address, pci.NO_VGPU, patience)


def _become(root: Root, address: str, type_id: str, patience: float) -> None:
    """The driver says EINVAL both for a type that it does not know and for one without room."""
    device = f"{pci.DEVICES}/{address}"
    path = f"{device}/{pci.VGPU_TYPE}"
    if root.text(path) == type_id:
        return
    listed = dict(pci.creatable(root.text(f"{device}/{pci.VGPU_TYPES}") or ""))
    if type_id not in (pci.NO_VGPU, *listed):
        raise write.refused(errno.ENOSPC, path)
    step = Write(path, type_id, f"the type of {address} is another")
    write.verified(root, step, lambda: root.text(path) == type_id, patience)
