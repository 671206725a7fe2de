# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of a simulated host: they come and go, and drivers take them and let them go.

The order is the kernel's: the directory, its group, then the bus lists the function; links before nodes
when a driver takes a device, the other way round when it lets go. An unbind of an open device waits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from nodeagent.sim import files, vfio
from nodeagent.sim.tree import Tree
from nodeagent.sim.vfio import VfioDevices

BUS = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
_UNPLUGGED = "/.unplugged"
_ASIDE = "/.aside"


@dataclass(slots=True)
class Function:
    """What the simulated kernel knows of one function."""

    address: str
    path: str  # host path of its real directory
    group: int | None
    physfn: str | None
    texts: dict[str, str]  # attributes at its first appearance
    driver: str | None = field(default=None, init=False)
    vfio: int | None = field(default=None, init=False)  # N of vfioN
    keeps_node: bool = field(default=False, init=False)  # its group's node stays for it
    vfs: int = field(default=0, init=False)


class Functions:
    """All functions, those that were unplugged too."""

    def __init__(self, tree: Tree, devices: VfioDevices) -> None:
        self._tree = tree
        self._drivers = _Drivers(tree, devices)
        self._present: dict[str, Function] = {}
        self._unplugged: dict[str, Function] = {}

    def add(self, function: Function) -> None:
        """A function appears, without a driver."""
        files.directory(self._tree.path(function.path))
        for name, text in function.texts.items():
            files.write_new(self._tree.path(f"{function.path}/{name}"), text + "\n")
        self._present[function.address] = function
        if function.group is not None:
            vfio.join_group(self._tree, function.group, function.address, function.path)
        if function.physfn is not None:
            _link_vf(self._tree, function, self._present[function.physfn])
        self._tree.link(f"{BUS}/{function.address}", function.path)

    def bind(self, address: str, driver: str | None, opens: str | None = None) -> None:
        """Unbind from the present driver, then bind to ``driver`` if there is one.

        ``opens``: the count of opens in the end, if it is not the one that this driver sets.
        """
        self._drivers.unbind(self._present[address])
        if driver is not None:
            self._drivers.bind(self._present[address], driver)
        if opens is not None:
            files.write(self.attribute(address, "enable"), opens + "\n")
        self.announce(address)

    def announce(self, address: str) -> None:
        """The kernel sends a uevent of a function."""
        self._tree.announce(f"{BUS}/{address}")

    def attribute(self, address: str, name: str) -> str:
        """The path in this process of an attribute."""
        return self._tree.path(f"{self._present[address].path}/{name}")

    def set_open(self, address: str, enable: str, power: str) -> None:
        """Show a device as open or closed: the kernel tells nobody about it."""
        for name, text in (("enable", enable), ("power_state", power)):
            files.write_unseen(self.attribute(address, name), text + "\n", self._tree.path(_ASIDE))

    def begin_going_away(self, address: str) -> None:
        """An unbind, removal or unplug begins while a process holds the device: it waits."""
        self.set_open(address, "1", "D0")
        self._drivers.let_go(self._present[address])
        self.announce(address)

    def finish_going_away(self, address: str) -> None:
        """The holder closes the device: the unbind that waited is carried out."""
        self.set_open(address, "0", "D0")
        self._drivers.unbind(self._present[address])
        self.announce(address)

    def unplug(self, address: str) -> None:
        """The function leaves the machine."""
        function = self._present.pop(address)
        self._drivers.unbind(function)
        self._unplugged[address] = function
        self._tree.remove(f"{BUS}/{address}")
        if function.group is not None:
            vfio.leave_group(self._tree, function.group, address)
        if function.physfn in self._present:
            _unlink_vf(self._tree, function, self._present[function.physfn])
        # Kept until it is plugged again: a file system would give its inode to the new directory.
        files.move(self._tree.path(function.path), self._tree.path(f"{_UNPLUGGED}/{address}"))

    def plug(self, address: str) -> None:
        """A function that was unplugged comes back: a new device, without driver or override."""
        function = self._unplugged.pop(address)
        function.vfs = 0
        self.add(function)
        files.write(self.attribute(address, "enable"), "0\n")
        files.remove_tree(self._tree.path(f"{_UNPLUGGED}/{address}"))


class _Drivers:
    """Who takes a function and lets it go."""

    def __init__(self, tree: Tree, devices: VfioDevices) -> None:
        self._tree = tree
        self._devices = devices

    def bind(self, function: Function, driver: str) -> None:
        files.directory(self._tree.path(f"{_DRIVERS}/{driver}"))
        self._tree.link(f"{function.path}/driver", f"{_DRIVERS}/{driver}")
        self._tree.link(f"{_DRIVERS}/{driver}/{function.address}", function.path)
        function.driver = driver
        if driver in vfio.DRIVERS:
            function.vfio = self._devices.add(function.path, function.group)
            function.keeps_node = function.group is not None
        files.write(self._tree.path(f"{function.path}/enable"), "0\n" if driver in vfio.DRIVERS else "1\n")

    def let_go(self, function: Function) -> None:
        """What is gone as soon as an unbind has begun, also one that waits for a holder."""
        if function.driver is None:
            return
        self._tree.remove(f"{function.path}/driver")
        self._tree.remove(f"{_DRIVERS}/{function.driver}/{function.address}")
        function.driver = None
        if function.vfio is not None:
            self._devices.remove(function.path, function.vfio)
            function.vfio = None

    def unbind(self, function: Function) -> None:
        """The whole of it: the group's node goes with the last VFIO device of the group."""
        self.let_go(function)
        if function.group is not None and function.keeps_node:
            function.keeps_node = False
            self._devices.give_up_node(function.group)


def _link_vf(tree: Tree, function: Function, parent: Function) -> None:
    tree.link(f"{function.path}/physfn", parent.path)
    tree.link(f"{parent.path}/virtfn{parent.vfs}", function.path)
    parent.vfs += 1
    files.write(tree.path(f"{parent.path}/sriov_numvfs"), f"{parent.vfs}\n")


def _unlink_vf(tree: Tree, function: Function, parent: Function) -> None:
    base = tree.path(parent.path)
    for name in os.listdir(base):
        if name.startswith("virtfn") and files.target(f"{base}/{name}") == function.address:
            files.remove(f"{base}/{name}")
    parent.vfs -= 1
    files.write(f"{base}/sriov_numvfs", f"{parent.vfs}\n")
