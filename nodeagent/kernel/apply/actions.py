# SPDX-License-Identifier: Apache-2.0
"""Apply: makes one change of the host, and sees that it is made.

What is there already is not written again. Every call may sleep in the kernel for as long as a virtual
machine runs, and belongs in a thread that can be left behind. Decides nothing: whether somebody uses the
thing is for the caller to find out before (``in_use``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.kernel.apply import mdev, vfs, vgpu
from nodeagent.kernel.apply.write import PATIENCE
from nodeagent.kernel.root import Root
from nodeagent.model.action import Action, ClearVgpuType, CreateMdev, RemoveMdev, SetNumVfs, SetVgpuType

_APPLIERS: Mapping[type, Callable[[Root, Any, float], None]] = {
    CreateMdev: mdev.create,
    RemoveMdev: mdev.remove,
    SetVgpuType: vgpu.set_type,
    ClearVgpuType: vgpu.clear_type,
    SetNumVfs: vfs.set_number,
}


def apply(root: Root, action: Action, patience: float = PATIENCE) -> None:
    """Make the change and see that it is made; at once if it is made already. May block for long.

    ``patience``: seconds for the effect to show, which a tree of files needs and the kernel does not.
    :raises KernelRefused: with the errno (0: no error, and no effect) and the path.
    """
    _APPLIERS[type(action)](root, action, patience)
