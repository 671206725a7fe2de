# SPDX-License-Identifier: Apache-2.0
"""Simulated USB devices of a simulated host: they are plugged in and pulled out, and get new numbers.

As the kernel shows them: a link on the bus to a directory below the controller, with the directories of the
interfaces in it, and a node. Plug in a hub before the devices behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nodeagent.sim import files
from nodeagent.sim.files import Tree

BUS = "/sys/bus/usb/devices"
CONTROLLER = "0000:00:14.0"


class Plug(NamedTuple):
    """A device: ids of four hexadecimal digits, code and driver of each interface, and its product name."""

    vendor: str
    product: str
    serial: str | None = None
    interfaces: Sequence[tuple[str, str | None]] = (("ff0000", None),)
    device_class: str = "00"
    text: str = "Simulated device"


STICK = Plug("46f4", "0001", None, (("080650", "usb-storage"),), text="QEMU USB HARDDRIVE")
HUB = Plug("1d6b", "0104", None, (("090000", "hub"),), device_class="09", text="Hub")
KEYBOARD = Plug("04f2", "0402", None, (("030101", "usbhid"),), text="Keyboard")


class UsbBuses:
    """The USB buses of one host, below one controller."""

    def __init__(self, tree: Tree, controller: str = CONTROLLER) -> None:
        self._tree = tree
        self._top = f"/sys/devices/pci0000:00/{controller}"
        self._numbers: dict[str, int] = {}  # bus → the last number on it
        self._plugged: dict[str, Plug] = {}  # by name
        self._hubs: set[str] = set()  # those of the controller itself

    def plug(self, name: str, plug: Plug, number: int | None = None) -> int:
        """Plug in at ``1-2``, or at ``1-2.1`` behind the hub there; the number on the bus, the next one."""
        bus = name.partition("-")[0]
        number = self._numbers.get(bus, 1) + 1 if number is None else number
        self._numbers[bus] = number
        self._plugged[name] = plug
        self._root_hub(bus)
        self._tree.node(_node(bus, number))
        at = self._at(name)
        texts = {
            "busnum": bus,
            "devnum": str(number),
            "devpath": name.partition("-")[2],
            "idVendor": plug.vendor,
            "idProduct": plug.product,
            "bDeviceClass": plug.device_class,
            "product": plug.text,
        }
        self._write(at, texts if plug.serial is None else texts | {"serial": plug.serial})
        for place, (code, driver) in enumerate(plug.interfaces):
            self._interface(f"{at}/{name}:1.{place}", code, driver)
        self._tree.link(f"{BUS}/{name}", at)
        return number

    def unplug(self, name: str) -> None:
        """Pull it out, with all that is behind it."""
        for other in sorted(self._plugged, reverse=True):
            if other == name or other.startswith(f"{name}."):
                self._remove(other)

    def renumber(self, name: str) -> int:
        """It comes back by itself, as after a reset that failed: a new number at the same port."""
        plug = self._plugged[name]
        self._remove(name)
        return self.plug(name, plug)

    def path(self, name: str) -> str:
        """Its directory below /sys/devices."""
        return self._at(name)

    def disk(self, name: str, block: str, number: str) -> None:
        """Its driver makes a disk of it, e.g. ``sdb``, ``8:16``."""
        at = f"{self._at(name)}/{name}:1.0/host7/target7:0:0/7:0:0:0/block/{block}"
        self._write(at, {"dev": number})
        self._tree.link(f"/sys/class/block/{block}", at)

    def _remove(self, name: str) -> None:
        bus = name.partition("-")[0]
        at = self._at(name)
        number = int(files.read(self._tree.path(f"{at}/devnum")))
        self._tree.remove(f"{BUS}/{name}")
        self._tree.remove(_node(bus, number))
        files.remove_tree(self._tree.path(at))
        del self._plugged[name]

    def _root_hub(self, bus: str) -> None:
        at = f"{self._top}/usb{bus}"
        if at not in self._hubs:
            self._hubs.add(at)
            self._write(at, {"busnum": bus, "devnum": "1", "version": " 2.00", "bDeviceClass": "09"})
            self._tree.link(f"{BUS}/usb{bus}", at)

    def _interface(self, at: str, code: str, driver: str | None) -> None:
        keys = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
        self._write(at, {key: code[2 * place : 2 * place + 2] for place, key in enumerate(keys)})
        if driver is not None:
            self._tree.link(f"{at}/driver", f"/sys/bus/usb/drivers/{driver}")

    def _at(self, name: str) -> str:
        """Each hub on the way has a directory."""
        bus, _, ports = name.partition("-")
        steps = ports.split(".")
        way = [f"{bus}-{'.'.join(steps[: place + 1])}" for place in range(len(steps))]
        return f"{self._top}/usb{bus}/{'/'.join(way)}"

    def _write(self, at: str, texts: Mapping[str, str]) -> None:
        files.directory(self._tree.path(at))
        for key, text in texts.items():
            files.write(self._tree.path(f"{at}/{key}"), text + "\n")


def _node(bus: str, number: int) -> str:
    return f"/dev/bus/usb/{int(bus):03}/{number:03}"
