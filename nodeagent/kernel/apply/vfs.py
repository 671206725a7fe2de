# SPDX-License-Identifier: Apache-2.0
"""VFs of a physical function: how their number is set, and how that shows.

VFs are counted by their links: reading ``sriov_numvfs`` can hang (Linux 6.1 to 7.2).
"""

from __future__ import annotations

import errno

from nodeagent.kernel.apply import write
from nodeagent.kernel.apply.write import Write
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import pci
from nodeagent.model.action import SetNumVfs

_HINTS = {  # sriov_numvfs_store in drivers/pci/iov.c
    errno.ENOENT: "its driver makes no VFs (vfio-pci does not), or it has none, or the function is gone",
    errno.ERANGE: "the function cannot have so many VFs: see sriov_totalvfs beside it",
}


def set_number(root: Root, action: SetNumVfs, patience: float) -> None:
    """Make or remove the VFs; nothing if there are as many already.

    :raises KernelRefused: as ``write.verified``.
    """
    address, count = action.address, action.count
    if _vfs(root, address) != count:
        path = f"{pci.DEVICES}/{address}/sriov_numvfs"
        step = Write(path, str(count), f"{address} has another number of VFs", _HINTS)
        write.verified(root, step, lambda: _vfs(root, address) == count, patience)


def _vfs(root: Root, address: str) -> int:
    return sum(name.startswith("virtfn") for name in root.names(f"{pci.DEVICES}/{address}"))
