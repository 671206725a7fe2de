# SPDX-License-Identifier: Apache-2.0
"""Apply: makes one change of the host. The only module that writes to sysfs.

Every change is written, then verified: a write that returns without an error proves nothing (Linux ignores
"0" in the file ``remove`` of an mdev). What is there already is not written again. Every call may sleep in
the kernel for as long as a virtual machine runs, and belongs in a thread that can be left behind. Decides
nothing: whether somebody uses the thing is for the caller to find out before (``in_use``).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, pci, vgpus
from nodeagent.model.action import Action, ClearVgpuType, CreateMdev, RemoveMdev, SetNumVfs, SetVgpuType

PATIENCE = 1.0  # seconds in which a write must have shown its effect

_LOOK = 0.002  # seconds between two looks for the effect
_HINTS = {
    errno.EACCES: "nodeagent must be root, and /sys writable",
    errno.EPERM: "nodeagent must be root, and /sys writable",
    errno.EROFS: "/sys is mounted read-only here: mount it writable",
    errno.ENOSPC: "the card says that it has no room for another instance",
    errno.EEXIST: "an instance with this id exists, or its removal waits for whoever has it open",
    errno.ENOENT: "it is gone: the parent driver may have been unloaded",
    errno.ENODEV: "it is gone: the device or its driver went away",
    errno.EINVAL: "the driver does not take this value; the kernel's log (dmesg) may say why",
    errno.EBUSY: "something uses the device",
    errno.EIO: "the driver failed; the kernel's log (dmesg) may say why",
}
_VFS_HINTS = {  # sriov_numvfs_store in drivers/pci/iov.c
    errno.ENOENT: "its driver makes no VFs (vfio-pci does not), or it has none, or the function is gone",
    errno.ERANGE: "the function cannot have so many VFs: see sriov_totalvfs beside it",
}
_LOG = "the kernel's log (dmesg) may say why"


def apply(root: Root, action: Action, patience: float = PATIENCE) -> None:
    """Make the change and see that it is made; at once if it is made already. May block for long.

    ``patience``: seconds for the effect to show, which a tree of files needs and the kernel does not.
    :raises KernelRefused: with the errno (0: no error, and no effect) and the path.
    """
    if isinstance(action, CreateMdev):
        _create_mdev(root, action, patience)
    elif isinstance(action, RemoveMdev):
        _remove_mdev(root, action, patience)
    elif isinstance(action, SetVgpuType):
        _set_vgpu_type(root, action.address, action.type_id, patience)
    elif isinstance(action, ClearVgpuType):
        _set_vgpu_type(root, action.address, vgpus.NONE, patience)
    else:
        _set_num_vfs(root, action, patience)


def _create_mdev(root: Root, action: CreateMdev, patience: float) -> None:
    """Ready is what a driver has: the link exists when ``bind`` is announced (drivers/vfio/mdev)."""
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    kind = f"{mdevs.PARENTS}/{action.parent}/mdev_supported_types/{action.type_id}"
    path = f"{kind}/create"
    if root.exists(f"{mdevs.PARENTS}/{action.parent}/{action.uuid}"):
        raise _refused(errno.EEXIST, path)
    if root.text(f"{kind}/available_instances") == "0":  # parents of one card share their room
        raise _refused(errno.ENOSPC, path)
    _write(root, path, action.uuid)
    _expect(
        lambda: root.exists(f"{instance}/driver") and root.link(f"{instance}/mdev_type") == action.type_id,
        patience,
        path,
        f"no driver has taken {action.uuid}",
    )


def _remove_mdev(root: Root, action: RemoveMdev, patience: float) -> None:
    instance = f"{mdevs.DEVICES}/{action.uuid}"
    if root.exists(instance):
        path = f"{instance}/remove"
        _write(root, path, "1")
        _expect(lambda: not root.exists(instance), patience, path, f"{action.uuid} is still there")


def _set_vgpu_type(root: Root, address: str, type_id: str, patience: float) -> None:
    """The driver says EINVAL both for a type that it does not know and for one without room."""
    device = f"{pci.DEVICES}/{address}"
    path = f"{device}/{vgpus.TYPE}"
    if root.text(path) == type_id:
        return
    listed = dict(vgpus.creatable(root.text(f"{device}/{vgpus.TYPES}") or ""))
    if type_id not in (vgpus.NONE, *listed):
        raise _refused(errno.ENOSPC, path)
    _write(root, path, type_id)
    _expect(lambda: root.text(path) == type_id, patience, path, f"the type of {address} is another")


def _set_num_vfs(root: Root, action: SetNumVfs, patience: float) -> None:
    """VFs are counted by their links: reading ``sriov_numvfs`` can hang (Linux 6.1 to 7.2)."""
    path = f"{pci.DEVICES}/{action.address}/sriov_numvfs"
    if _vfs(root, action.address) != action.count:
        _write(root, path, str(action.count))
        _expect(
            lambda: _vfs(root, action.address) == action.count,
            patience,
            path,
            f"{action.address} has another number of VFs",
        )


def _vfs(root: Root, address: str) -> int:
    return sum(name.startswith("virtfn") for name in root.names(f"{pci.DEVICES}/{address}"))


def _write(root: Root, path: str, text: str) -> None:
    """One write call: the kernel takes one value per write."""
    try:
        fd = os.open(root.path(path), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise _refused(error.errno or errno.EIO, path) from error


def _expect(state: Callable[[], bool], patience: float, path: str, otherwise: str) -> None:
    end = time.monotonic() + patience
    while not state():
        if time.monotonic() >= end:
            raise KernelRefused(f"{path} was written without an error, but {otherwise}", _LOG, path=path)
        time.sleep(_LOOK)


def _refused(number: int, path: str) -> KernelRefused:
    text = f"the kernel refused to write {path}: {os.strerror(number)}"
    hints = _HINTS | _VFS_HINTS if path.endswith("/sriov_numvfs") else _HINTS
    return KernelRefused(text, hints.get(number, _LOG), errno=number, path=path)
