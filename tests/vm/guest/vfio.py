# SPDX-License-Identifier: Apache-2.0
"""VFIO as a program of a virtual machine uses it: group, container, device (include/uapi/linux/vfio.h)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_CONTAINER = "/dev/vfio/vfio"
_BASE = (ord(";") << 8) + 100
_SET_IOMMU, _GET_STATUS, _SET_CONTAINER, _GET_DEVICE_FD = _BASE + 2, _BASE + 3, _BASE + 4, _BASE + 6
_TYPE1V2 = 3
_VIABLE = 1
_STATUS = struct.Struct("II")  # argsz, flags


@contextlib.contextmanager
def _opened(node: str) -> Iterator[int]:
    fd = os.open(node, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def has_node(group: int) -> bool:
    """True once it can be opened: the kernel links a driver before the probe that makes the node."""
    return Path(f"/dev/vfio/{group}").exists()


def viable(group: int) -> bool:
    """The kernel's own verdict on a group that has a node (VFIO_GROUP_GET_STATUS)."""
    with _opened(f"/dev/vfio/{group}") as fd:
        status = bytearray(_STATUS.pack(_STATUS.size, 0))
        fcntl.ioctl(fd, _GET_STATUS, status)
        return bool(_STATUS.unpack(status)[1] & _VIABLE)


@contextlib.contextmanager
def held(address: str, group: int) -> Iterator[None]:
    """Have the function open, as a running virtual machine has."""
    with _opened(_CONTAINER) as container, _opened(f"/dev/vfio/{group}") as fd:
        fcntl.ioctl(fd, _SET_CONTAINER, struct.pack("i", container))
        fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2)
        device = fcntl.ioctl(fd, _GET_DEVICE_FD, bytearray(address.encode() + b"\0"))
        try:
            yield
        finally:
            os.close(device)
