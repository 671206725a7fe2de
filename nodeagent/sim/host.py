# SPDX-License-Identifier: Apache-2.0
"""A simulated host: a tree of files in which devices appear and change as in the kernel's sysfs.

The demo, the tests and the benchmark use it. The files and the order of their changes follow kernels 6.12 and
7.2: a new function gets its directory, then its group, then its entry on the bus. Binding a VFIO driver
creates links before device nodes; unbinding removes them in reverse. An unbind of an open device waits until
the device is closed. A group is in sysfs while it has a member; its node in /dev/vfio exists from the first
VFIO device of the group until the last unbind has finished; a VFIO device gets the lowest free number.

The simulated host does not change by itself: each method is one event. ``mdev`` adds cards with mdevs.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.sim import files
from nodeagent.sim.files import LOCAL_MAJOR, Tree

BUS = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
GROUPS = "/sys/kernel/iommu_groups"
VFIO_DRIVERS = ("vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci")
_UNPLUGGED = "/.unplugged"
_UNBOUND = "/.unbound"
_ASIDE = "/.aside"
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")


@dataclass(slots=True)
class _Function:
    address: str
    path: str  # host path of its real directory
    group: int | None
    physfn: str | None
    texts: dict[str, str]  # attributes at its first appearance
    driver: str | None = field(default=None, init=False)
    vfio: int | None = field(default=None, init=False)  # N of vfioN
    keeps_node: bool = field(default=False, init=False)  # the node of its group stays until its unbind ends
    vfs: int = field(default=0, init=False)


class SimulatedHost:
    """A simulated host below ``directory``: without devices, with an IOMMU, NUMA node 0 and vfio-pci.

    ``cdev``: the simulated kernel has VFIO_DEVICE_CDEV and iommufd. ``mknod``: create real character devices
    (as root).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        iommu: bool = True,
        cdev: bool = False,
        mknod: bool = False,
        numa_nodes: tuple[int, ...] = (0,),
    ) -> None:
        self.directory = os.fspath(directory)
        self.tree = Tree(self.directory, mknod)
        self._vfio = _VfioDevices(self.tree, cdev)
        self._present: dict[str, _Function] = {}
        self._unplugged: dict[str, _Function] = {}
        _boot(self.tree, iommu, cdev, numa_nodes)

    def path(self, path: str) -> str:
        """Return the real path of a path of the simulated host."""
        return self.tree.path(path)

    def attribute(self, address: str, name: str) -> str:
        """Return the real path of an attribute of a PCI function."""
        return self.path(f"{self._present[address].path}/{name}")

    def add_function(
        self,
        address: str,
        *,
        vendor: str,
        device: str,
        pci_class: str,
        driver: str | None = None,
        group: int | None = None,
        numa: int = -1,
        port: str | None = "0000:00:10.0",
        physfn: str | None = None,
        sriov: int = 0,
        subsystem: tuple[str, str] = ("0000", "0000"),
        revision: str = "00",
    ) -> None:
        """Add a PCI function below a root port (None: on the root bus) and bind its driver.

        All ids are hexadecimal without 0x; ``pci_class`` has six digits. ``group`` may be None only without
        an IOMMU. ``sriov`` is the number of VFs that the function supports; ``physfn`` is the PF if this
        function is a VF.
        """
        bus = "pci" + (port or address).rpartition(":")[0]
        path = "/".join(part for part in ("/sys/devices", bus, port, address) if part)
        texts = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{pci_class}",
            "subsystem_vendor": f"0x{subsystem[0]}",
            "subsystem_device": f"0x{subsystem[1]}",
            "revision": f"0x{revision}",
            "numa_node": str(numa),
            "enable": "0" if driver is None or driver in VFIO_DRIVERS else "1",
            "power_state": "D0",
            "local_cpulist": "0-3",
            "driver_override": "(null)",
        }
        texts["modalias"] = _modalias(texts)
        if sriov:
            texts |= {"sriov_totalvfs": str(sriov), "sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"}
            texts |= {"sriov_vf_device": device, "sriov_offset": "4", "sriov_stride": "1"}
        self._add(_Function(address, path, group, physfn, texts))
        self.bind(address, driver)

    def _add(self, function: _Function) -> None:
        """Add a PCI function without a driver."""
        files.directory(self.path(function.path))
        for name, text in function.texts.items():
            files.write_new(self.path(f"{function.path}/{name}"), text + "\n")
        self._present[function.address] = function
        if function.group is not None:
            _join_group(self.tree, function.group, function.address, function.path)
        if function.physfn is not None:
            self._link_vf(function, self._present[function.physfn])
        self.tree.link(f"{BUS}/{function.address}", function.path)

    def bind(self, address: str, driver: str | None, opens: str | None = None) -> None:
        """Unbind the current driver, then bind ``driver`` if it is not None.

        ``opens``: the open count after the bind, if it differs from the driver's default.
        """
        function = self._present[address]
        self._unbind(function)
        if driver is not None:
            self._bind(function, driver)
        if opens is not None:
            files.write(self.attribute(address, "enable"), opens + "\n")
        self.announce(address)

    def announce(self, address: str) -> None:
        """Simulate the kernel's uevent for a PCI function."""
        self.tree.announce(f"{BUS}/{address}")

    def hold(self, address: str) -> None:
        """Simulate a process that opens the VFIO device."""
        self._set_open(address, "1", "D0")

    def release(self, address: str) -> None:
        """Simulate that the process closes the VFIO device."""
        self._set_open(address, "0", "D3hot")

    def begin_going_away(self, address: str) -> None:
        """Start an unbind, removal or unplug of an open device, which waits until the device is closed."""
        self._set_open(address, "1", "D0")
        self._remove_links(self._present[address])
        self.announce(address)

    def finish_going_away(self, address: str) -> None:
        """Close the device, which completes the waiting unbind."""
        self._set_open(address, "0", "D0")
        self._unbind(self._present[address])
        self.announce(address)

    def unplug(self, address: str) -> None:
        """Remove the PCI function from the simulated host."""
        function = self._present.pop(address)
        self._unbind(function)
        self._unplugged[address] = function
        self.tree.remove(f"{BUS}/{address}")
        if function.group is not None:
            _leave_group(self.tree, function.group, address)
        if function.physfn in self._present:
            self._unlink_vf(function, self._present[function.physfn])
        # Kept until it is plugged again: a file system would give its inode to the new directory.
        files.move(self.path(function.path), self.path(f"{_UNPLUGGED}/{address}"))

    def plug(self, address: str) -> None:
        """Add an unplugged function again: a new device without driver or driver_override."""
        function = self._unplugged.pop(address)
        function.vfs = 0
        self._add(function)
        files.write(self.attribute(address, "enable"), "0\n")
        files.remove_tree(self.path(f"{_UNPLUGGED}/{address}"))

    def write(self, address: str, name: str, text: str) -> None:
        """Set an attribute of a function, for example ``numa_node``, to a text without newline, and send an
        event.
        """
        files.write(self.attribute(address, name), text + "\n")
        if name in _IDS:
            texts = {each: files.read(self.attribute(address, each)).decode().strip() for each in _IDS}
            files.write(self.attribute(address, "modalias"), _modalias(texts) + "\n")
        self.announce(address)

    def node(self, path: str) -> None:
        """Create a device node, for example /dev/kvm."""
        self.tree.node(path)

    def remove_node(self, path: str) -> None:
        """Remove a device node."""
        self.tree.remove(path)

    def write_file(self, path: str, text: str) -> None:
        """Write a regular file of the host, for example /etc/machine-id: a text without newline."""
        files.write(self.path(path), text + "\n")

    def _set_open(self, address: str, enable: str, power: str) -> None:
        """Mark a device as open or closed in sysfs; the kernel sends no event for this."""
        for name, text in (("enable", enable), ("power_state", power)):
            files.write_unseen(self.attribute(address, name), text + "\n", self.path(_ASIDE))

    def _bind(self, function: _Function, driver: str) -> None:
        files.directory(self.path(f"{DRIVERS}/{driver}"))
        self.tree.link(f"{function.path}/driver", f"{DRIVERS}/{driver}")
        self.tree.link(f"{DRIVERS}/{driver}/{function.address}", function.path)
        function.driver = driver
        if driver in VFIO_DRIVERS:
            function.vfio = self._vfio.add(function.path, function.group)
            function.keeps_node = function.group is not None
        files.write(self.path(f"{function.path}/enable"), "0\n" if driver in VFIO_DRIVERS else "1\n")

    def _remove_links(self, function: _Function) -> None:
        """Remove the links that disappear when an unbind starts, even if the unbind has to wait."""
        if function.driver is None:
            return
        self.tree.remove(f"{function.path}/driver")
        self.tree.remove(f"{DRIVERS}/{function.driver}/{function.address}")
        function.driver = None
        if function.vfio is not None:
            self._vfio.remove(function.path, function.vfio)
            function.vfio = None

    def _unbind(self, function: _Function) -> None:
        """Finish an unbind; with the last VFIO device of a group, the group's device node is removed."""
        self._remove_links(function)
        if function.group is not None and function.keeps_node:
            function.keeps_node = False
            self._vfio.give_up_node(function.group)

    def _link_vf(self, function: _Function, parent: _Function) -> None:
        self.tree.link(f"{function.path}/physfn", parent.path)
        self.tree.link(f"{parent.path}/virtfn{parent.vfs}", function.path)
        parent.vfs += 1
        files.write(self.path(f"{parent.path}/sriov_numvfs"), f"{parent.vfs}\n")

    def _unlink_vf(self, function: _Function, parent: _Function) -> None:
        base = self.path(parent.path)
        for name in os.listdir(base):
            if name.startswith("virtfn") and files.target(f"{base}/{name}") == function.address:
                files.remove(f"{base}/{name}")
        parent.vfs -= 1
        files.write(f"{base}/sriov_numvfs", f"{parent.vfs}\n")


class _VfioDevices:
    """Assigns numbers to VFIO devices, and counts the VFIO devices of each group."""

    def __init__(self, tree: Tree, cdev: bool) -> None:
        self._tree = tree
        self._cdev = cdev
        self._free: list[int] = []
        self._most = 0
        self._keepers: Counter[int] = Counter()  # group → devices for which its node stays
        self._removals = itertools.count()

    def add(self, real: str, group: int | None) -> int:
        """Return the number N of vfioN for the device with directory ``real``, when it is bound to VFIO."""
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._most = self._most, self._most + 1
        if group is not None:
            self._tree.ensure_node(f"/dev/vfio/{group}")
            self._keepers[group] += 1
        base = f"{real}/vfio-dev/vfio{number}"
        files.directory(self._tree.path(base))
        if self._cdev:
            files.write(self._tree.path(f"{base}/dev"), f"{LOCAL_MAJOR}:{number}\n")
            self._tree.ensure_node(f"/dev/vfio/devices/vfio{number}")
        return number

    def remove(self, real: str, number: int) -> None:
        """Remove a VFIO device when its driver is unbound; the group's node stays until ``give_up_node``."""
        # kept: a file system would give its inode to the next one, which the kernel does not
        aside = f"{_UNBOUND}/{next(self._removals)}"
        files.move(self._tree.path(f"{real}/vfio-dev"), self._tree.path(f"{aside}/vfio-dev"))
        self._tree.remove(f"/dev/vfio/devices/vfio{number}")
        heapq.heappush(self._free, number)

    def give_up_node(self, group: int) -> None:
        """Count one VFIO device less for the group's device node, and remove the node after the last one."""
        self._keepers[group] -= 1
        if not self._keepers[group]:
            self._tree.remove(f"/dev/vfio/{group}")


def _join_group(tree: Tree, group: int, address: str, real: str) -> None:
    base = f"{GROUPS}/{group}"
    files.directory(tree.path(f"{base}/devices"))
    files.write_new(tree.path(f"{base}/type"), "DMA\n")
    files.write_new(tree.path(f"{base}/reserved_regions"), "0x00000000fee00000 0x00000000feefffff msi\n")
    tree.link(f"{base}/devices/{address}", real)
    tree.link(f"{real}/iommu_group", base)


def _leave_group(tree: Tree, group: int, address: str) -> None:
    """Remove a PCI function from its IOMMU group; the group is removed with its last function."""
    base = f"{GROUPS}/{group}"
    tree.remove(f"{base}/devices/{address}")
    if not os.listdir(tree.path(f"{base}/devices")):
        files.remove_tree(tree.path(base))


def _modalias(texts: Mapping[str, str]) -> str:
    """Return the ids as one text, as in the kernel's modalias file."""
    vendor, device, sub_vendor, sub_device, code = (texts[name].removeprefix("0x").upper() for name in _IDS)
    ids = f"v0000{vendor}d0000{device}sv0000{sub_vendor}sd0000{sub_device}"
    return f"pci:{ids}bc{code[:2]}sc{code[2:4]}i{code[4:]}"


def _boot(tree: Tree, iommu: bool, cdev: bool, numa_nodes: tuple[int, ...]) -> None:
    for directory in (
        BUS,
        f"{DRIVERS}/vfio-pci",
        GROUPS,
        "/sys/class/iommu",
        "/dev",
        *(f"/sys/devices/system/node/node{number}" for number in numa_nodes),
    ):
        files.directory(tree.path(directory))
    if iommu:
        files.link(tree.path("/sys/class/iommu/dmar0"), "../../devices/virtual/iommu/dmar0")
    files.write(tree.path("/proc/sys/kernel/osrelease"), "6.12.95\n")
    tree.node("/dev/vfio/vfio")
    if cdev:
        tree.node("/dev/iommu")
