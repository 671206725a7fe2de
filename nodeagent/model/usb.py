# SPDX-License-Identifier: Apache-2.0
"""UsbDevice: one device on a USB bus, as sysfs shows it; and what of them was lent to a pod.

The number of a device on its bus is no identity: it is another one after each re-plug, and after a reset. So
a device is known by its serial number, and by the port that it sits in where it has none, or shares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, pci_address
from nodeagent.model.uses import HostUses

NODES = "/dev/bus/usb"
LOANS_RECORD = "/run/nodeagent/usb-loans.json"
"""The directory of their nodes: a scan that is asked for it looks for USB devices, and no other one does."""
_HUB = "09"
_KEYBOARD = "030101"  # a keyboard that firmware can use, too: its boot protocol


class UsbInterface(NamedTuple):
    """One function of a USB device: class, subclass and protocol ("080650"), and the driver that has it."""

    code: str
    driver: str | None = None


class UsbDevice(NamedTuple):
    """One USB device (kernel Documentation/ABI/testing/sysfs-bus-usb); hubs are devices as well."""

    id: str  # "46f4:0001-<serial>", or "46f4:0001@<path>"
    name: str  # "1-1.2": bus and ports
    path: str = ""  # the same from the controller on, which stays so over reboots: "0000:00:04.0-usb-0:1.2"
    bus: int | None = None
    number: int | None = None  # on the bus: another one after each re-plug
    vendor: str | None = None  # "46f4"
    product: str | None = None  # "0001"
    serial: str | None = None
    text: str | None = None  # what the device calls itself
    device_class: str | None = None  # "00": its interfaces tell
    interfaces: tuple[UsbInterface, ...] = ()
    numa_node: int | None = None  # of its controller
    present: bool = False  # its node exists
    uses: HostUses = HostUses()  # by the host itself
    unreadable: str | None = None  # why nothing more is known of it

    @property
    def group(self) -> GroupNumber | None:
        """None: no IOMMU tells USB devices apart."""
        return None

    @property
    def driver(self) -> str | None:
        """The drivers of its interfaces."""
        names = dict.fromkeys(each.driver for each in self.interfaces if each.driver is not None)
        return ", ".join(names) or None

    @property
    def hub(self) -> bool:
        """True for what carries other devices: it is never given away."""
        return self.device_class == _HUB or any(each.code.startswith(_HUB) for each in self.interfaces)

    @property
    def keyboard(self) -> bool:
        """True if one of its interfaces is a keyboard."""
        return any(each.code == _KEYBOARD for each in self.interfaces)

    @property
    def controller(self) -> PciAddress | None:
        """The PCI function of its bus; None where that is no PCI function, or not known."""
        address = self.path.partition("-usb-")[0]
        return PciAddress(address) if pci_address(address) == address else None

    @property
    def node(self) -> str:
        """The path of its device node."""
        return f"{NODES}/{self.bus or 0:03}/{self.number or 0:03}"

    @property
    def place(self) -> str:
        """Bus and number, as virt-launcher reads them."""
        return f"{self.bus}:{self.number}"


class Loan(NamedTuple):
    """One device as it was given: its id, node, number on the bus, ports; and whose the node was before."""

    id: str
    node: str
    place: str
    user: int = 0
    group: int = 0
    name: str = ""  # bus and ports; records of before have none


Loans = Mapping[DeviceId, tuple[Loan, ...]]
"""The id of a Device → the USB devices that its pod has been given with it, until it lets go."""
