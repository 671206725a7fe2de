# SPDX-License-Identifier: Apache-2.0
"""The row for USB devices in the table of Readers: it costs nothing until somebody wishes for one.

What reads them is loaded when there is something to read. Wakes name a device as ``usb:1-1.2``, or by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.readers import Item, Reader, Reading
from nodeagent.model.host import Host
from nodeagent.model.ids import usb_id
from nodeagent.model.usb import NODES

if TYPE_CHECKING:
    from nodeagent.model.usb import UsbDevice

DEVICES = "/sys/bus/usb/devices"
_KEY = "usb:"


def wake_key(name: str) -> str:
    """What a Wake calls the device of that name."""
    return _KEY + name


def identified(
    read: Mapping[str, UsbDevice | None], previous: Host, whole: bool
) -> Mapping[str, UsbDevice | None]:
    """What was read, by id."""
    if not read and not (whole and previous.usb):
        return {}
    from nodeagent.kernel.scan import usb

    return usb.identified(read, previous.usb, whole)


def _list(root: Root) -> Iterable[str]:
    from nodeagent.kernel.scan import usb

    return usb.names(root)


def _named(key: str, previous: Host) -> tuple[str, ...] | None:
    if key.startswith(_KEY):
        return (key.removeprefix(_KEY),)
    known = previous.usb.get(key)
    if known is not None:
        return (known.name,)
    return () if usb_id(key) else None


def _read(root: Root, name: str) -> UsbDevice | None:
    from nodeagent.kernel.scan import usb

    return usb.device(root, name)


def _unanswered(name: str, previous: Host) -> UsbDevice:
    from nodeagent.kernel.scan import usb

    return usb.unanswered(name, previous)


def _follow(_: Reading) -> tuple[Item, ...]:
    return ()


def _as_known(root: Root, known: UsbDevice) -> bool:
    from nodeagent.kernel.scan import usb

    return usb.as_known(root, known)


READER = Reader(
    "usb", _list, _named, _read, _unanswered, _follow, key=str, order=str, recheck=_as_known, only=NODES
)
