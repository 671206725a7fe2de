# SPDX-License-Identifier: Apache-2.0
"""Changes the owner of a USB device node: QEMU's user while a pod has the device, then the former owner.

A container gets a copy of the host's device node with its current owner, so the owner is changed before the
container is created. The kernel creates a new device node, owned by root, whenever the device gets another
number. May block.
"""

from __future__ import annotations

import errno
import os
import stat

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.model.host import Loan

QEMU = 107  # user and group of virt-launcher's QEMU (KubeVirt pkg/util/util.go, NonRootUID)
_MAJOR = 189  # USB_DEVICE_MAJOR in the kernel: 128 numbers to a bus


def read_owner(root: Root, loan: Loan) -> Loan:
    """Return ``loan`` with the current owner of the device node.

    :raises KernelRefused: if the node does not exist.
    """
    status = _read_status(root, loan)
    return loan._replace(user=status.st_uid, group=status.st_gid)


def assign_to_qemu(root: Root, loan: Loan) -> None:
    """Make QEMU's user the owner.

    :raises KernelRefused: if the node does not exist, or the kernel refuses.
    """
    status = _read_status(root, loan)
    if (status.st_uid, status.st_gid) != (QEMU, QEMU):
        _own(root, loan, QEMU, QEMU)


def return_to_owner(root: Root, loan: Loan) -> None:
    """Restore the former owner if the same device node still belongs to QEMU's user.

    :raises KernelRefused: if that fails.
    """
    try:
        status = _read_status(root, loan)
    except KernelRefused:
        return  # the number now belongs to another device, or to none
    if (status.st_uid, status.st_gid) == (QEMU, QEMU):
        _own(root, loan, loan.user, loan.group)


def device_number(place: str) -> tuple[int, int]:
    """Return the major and minor number of the device node of the USB device ``bus:number``."""
    bus, _, device = place.partition(":")
    return _MAJOR, (int(bus) - 1) * 128 + int(device) - 1


def _read_status(root: Root, loan: Loan) -> os.stat_result:
    try:
        status = os.lstat(root.path(loan.node))
    except OSError as error:
        raise _refused(error, loan.node) from error
    strange = stat.S_ISCHR(status.st_mode) and status.st_rdev != os.makedev(*device_number(loan.place))
    if stat.S_ISLNK(status.st_mode) or (root.is_host and strange):
        raise _refused(OSError(errno.ENODEV, "the device node has the number of another device"), loan.node)
    return status


def _own(root: Root, loan: Loan, user: int, group: int) -> None:
    try:
        os.chown(root.path(loan.node), user, group, follow_symlinks=False)
    except OSError as error:
        if not root.is_host and error.errno == errno.EPERM:
            return  # a simulated host that belongs to an ordinary user
        raise _refused(error, loan.node) from error


def _refused(error: OSError, node: str) -> KernelRefused:
    hint = "re-plug the device, or check the kernel log"
    if error.errno in (errno.EPERM, errno.EROFS):
        hint = "run nodeagent with CAP_CHOWN and a writable /dev/bus/usb: see docs/usb.md"
    return KernelRefused(
        f"the owner of {node} cannot be changed to QEMU's user: {hints.strerror(error)}",
        hint,
        errno=error.errno or 0,
        path=node,
    )
