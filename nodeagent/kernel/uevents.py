# SPDX-License-Identifier: Apache-2.0
"""The kernel's uevents: one netlink socket, and the device that each message names.

A message is a scan request for the device that has changed; lost and repeated messages are harmless. Only
the progress of an AER recovery is taken from messages, because it is not in sysfs. Netlink group 1 is the
kernel's own multicast group (udev's is group 2 and is missing in a container). Messages of other senders are
dropped and counted. Formats: lib/kobject_uevent.c, drivers/pci/pci-driver.c (6.1 to 7.2).
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import anyio

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.usb import scan_key
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress, mdev_uuid, pci_address

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_SO_RCVBUFFORCE = 33
BUFFER = 8 << 20  # held a burst of 2,000 events; the default size held about 200
_MESSAGE = 16384
_CREDENTIALS = struct.Struct("3i")
_BURST = 256  # messages between two iterations of the event loop

_SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "mdev"})
_MODULES = frozenset({"drivers", "module", "class", "bus"})
_MISC = frozenset({"vfio/vfio", "iommu"})
_VFIO_DEVICE = re.compile(r"vfio\d+")
_OF_USB = frozenset({"usb", "input"})  # a keyboard belongs to the console once its input device exists
_USB_DEVICE = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*")
# in events that a program requested by writing to a uevent file; nothing has changed
_ASKED_FOR = "SYNTH_UUID"

Ancillary = Sequence[tuple[int, int, bytes]]


class Uevent(NamedTuple):
    """One message: the action (``add``, ``bind``, …), the path below /sys, and the keys in order."""

    action: str
    devpath: str
    keys: Mapping[str, str] = MappingProxyType({})

    @property
    def subsystem(self) -> str:
        """Return the kernel's subsystem; "" if there is none."""
        return self.keys.get("SUBSYSTEM", "")


def parse(datagram: bytes) -> Uevent | None:
    """Return the message in a datagram; None if the kernel did not send it (udev's begin with libudev)."""
    header, *pairs = datagram.decode("utf-8", "replace").split("\0")
    action, at, devpath = header.partition("@")
    if not at or not action or not devpath.startswith("/"):
        return None
    return Uevent(action, devpath, dict(pair.split("=", 1) for pair in pairs if "=" in pair))


def affects_scan(event: Uevent) -> bool:
    """Return True if the event may change the result of a scan; network, block and queue events do not."""
    if event.subsystem in _SUBSYSTEMS or "MDEV_STATE" in event.keys:
        return True
    if event.subsystem == "misc":
        return event.keys.get("DEVNAME") in _MISC
    name = event.devpath.rpartition("/")[2]
    return event.subsystem in _MODULES and ("vfio" in name or name == "mdev")


def find_usb_device(event: Uevent) -> str | None:
    """Return the USB device that the event or its parent device concerns; None for other events and root
    hubs.
    """
    if event.subsystem not in _OF_USB:
        return None
    parts = event.devpath.split("/")[::-1]
    return next((part for part in parts if _USB_DEVICE.fullmatch(part)), None)


def device_key(event: Uevent) -> str | None:
    """Return the key to scan: an address, a UUID, a device node or a VFIO device; None: everything."""
    if "PCI_SLOT_NAME" in event.keys:
        return event.keys["PCI_SLOT_NAME"]
    if event.subsystem in ("vfio", "misc") and "DEVNAME" in event.keys:
        return "/dev/" + event.keys["DEVNAME"]
    parts = event.devpath.split("/")[::-1]
    named = next((part for part in parts if pci_address(part) or mdev_uuid(part)), None)
    return named or next((part for part in parts if _VFIO_DEVICE.fullmatch(part)), None)


def parse_recovery(event: Uevent) -> tuple[PciAddress, Recovery | None] | None:
    """Return the function and its recovery result, if the event reports one; else None.

    The recovery result None means that the function works. The removal or a new bind of a device clears the
    result; an event that a program has requested through a ``uevent`` file (SYNTH_UUID) does not.
    """
    address = pci_address(event.keys.get("PCI_SLOT_NAME", ""))
    if address is None or _ASKED_FOR in event.keys:
        return None
    error = event.keys.get("ERROR_EVENT")
    if error is None:
        return (address, None) if event.action in ("add", "bind", "remove") else None
    if error == "FAILED_RECOVERY":
        return address, Recovery.FAILED
    running = event.keys.get("DEVICE_ONLINE") == "0"
    return address, Recovery.RUNNING if running else None


def request_scans(event: Uevent, scan_requests: ScanRequests, *, usb: bool = False) -> None:
    """Request a scan of the device that the event names, and store its recovery result.

    ``udevadm trigger`` causes one event for each device of the node: these are merged into one scan.
    ``usb``: a rule matches USB devices.
    """
    verdict = parse_recovery(event)
    if verdict is not None:
        scan_requests.recovery(*verdict)
    if affects_scan(event):
        scan_requests.add(device_key(event))
    elif usb and (name := find_usb_device(event)) is not None:
        scan_requests.add(scan_key(name))


def are_received(root: Root) -> bool:
    """Return True if the kernel sends uevents to this process.

    It sends them only to network namespaces of the initial user namespace; in another one (``hostUsers:
    false``) none arrive.
    """
    return (root.text("/proc/self/uid_map") or "").split() == ["0", "0", "4294967295"]


def open_socket() -> socket.socket:
    """Return a bound socket. The caller then scans the host, because no message reports earlier changes.
    :raises KernelRefused: if that fails.
    """
    flags = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    try:
        sock = socket.socket(socket.AF_NETLINK, flags, _NETLINK_KOBJECT_UEVENT)
    except OSError as error:
        raise _refused(error) from error
    try:
        _enlarge(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind((0, _KERNEL_GROUP))
    except OSError as error:
        sock.close()
        raise _refused(error) from error
    return sock


def _refused(error: OSError) -> KernelRefused:
    return KernelRefused(
        f"no socket for the kernel's uevents: {hints.strerror(error)}",
        hints.for_errno(error, "listen", "without it, changes are only found by polling"),
        errno=error.errno or 0,
    )


def _enlarge(sock: socket.socket) -> None:
    """Enlarge the receive buffer: with CAP_NET_ADMIN beyond the system limit, without it up to the limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)


def from_kernel(address: object, ancillary: Ancillary) -> bool:
    """Return True if the kernel itself sent the message: netlink port 0 and the credentials (0, 0, 0)."""
    if not isinstance(address, tuple) or address[0] != 0:
        return False
    return any(
        (level, message) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        and len(data) == _CREDENTIALS.size
        and _CREDENTIALS.unpack(data) == (0, 0, 0)
        for level, message, data in ancillary
    )


class Reader:
    """Reads messages from a socket of ``open_socket``; counts the messages of other senders (``foreign``).

    ``trusted`` decides from the sender's address and ancillary data whether a message is from the kernel.
    """

    def __init__(self, sock: socket.socket, trusted: Callable[[object, Ancillary], bool]) -> None:
        self._socket = sock
        self._trusted = trusted
        self.foreign = 0

    async def receive(self) -> list[Uevent | None]:
        """Wait for messages, and return those that are available, up to a limit. None: messages were lost.

        :raises KernelRefused: if the socket fails.
        """
        events: list[Uevent | None] = []
        await anyio.wait_readable(self._socket)
        try:
            for _ in range(_BURST):
                if not self._read_into(events):
                    break
        except KernelRefused:
            if not events:
                raise
        return events  # return the messages read so far; the next call reports the failure

    def _read_into(self, events: list[Uevent | None]) -> bool:
        """Read one message; return False if there is none."""
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            data, ancillary, _, address = self._socket.recvmsg(_MESSAGE, room)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise _refused(error) from error
            events.append(None)
            return True
        if not self._trusted(address, ancillary):
            self.foreign += 1
        elif (event := parse(data)) is not None:
            events.append(event)
        return True
