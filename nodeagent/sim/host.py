# SPDX-License-Identifier: Apache-2.0
"""A simulated host: a tree of files that behaves as the kernel looks from outside.

Serves the demo, the tests and the benchmark. What it shows, and in which order things come and go, follows
kernels 6.12 and 7.2. Nothing reacts by itself: each method is one thing that happens to the host. ``tree`` is
its files, ``functions`` knows how PCI functions come and go, ``vfio`` what their groups and drivers show.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nodeagent.sim import files, vfio
from nodeagent.sim.functions import Function, Functions
from nodeagent.sim.tree import Tree
from nodeagent.sim.usb import UsbBuses
from nodeagent.sim.vfio import VfioDevices

_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")


class SimulatedHost:
    """A host below ``directory``, empty at first: an IOMMU, NUMA node 0, vfio-pci loaded.

    ``cdev``: the kernel has VFIO_DEVICE_CDEV and iommufd. ``mknod``: make real character devices (root).
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
        self.functions = Functions(self.tree, VfioDevices(self.tree, cdev))
        self.usb = UsbBuses(self.tree)
        _boot(self.tree, iommu, cdev, numa_nodes)

    def path(self, path: str) -> str:
        """The path in this process of a host path."""
        return self.tree.path(path)

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
        """Make a function appear below a root port (None: on the root bus) and bind its driver.

        Ids are hexadecimal without 0x; ``pci_class`` has six digits. ``group`` None is right only without
        an IOMMU. ``sriov`` is the number of VFs that it can have; ``physfn`` the PF if this is a VF.
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
            "enable": "0" if driver is None or driver in vfio.DRIVERS else "1",
            "power_state": "D0",
            "local_cpulist": "0-3",
            "driver_override": "(null)",
        }
        texts["modalias"] = _modalias(texts)
        if sriov:
            texts |= {"sriov_totalvfs": str(sriov), "sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"}
            texts |= {"sriov_vf_device": device, "sriov_offset": "4", "sriov_stride": "1"}
        self.functions.add(Function(address, path, group, physfn, texts))
        self.functions.bind(address, driver)

    def bind(self, address: str, driver: str | None, opens: str | None = None) -> None:
        """Unbind from the present driver, then bind to ``driver`` if there is one.

        ``opens``: the count of opens in the end, if it is not the one that this driver sets.
        """
        self.functions.bind(address, driver, opens)

    def hold(self, address: str) -> None:
        """A process opens the VFIO device."""
        self.functions.set_open(address, "1", "D0")

    def release(self, address: str) -> None:
        """The process closes it."""
        self.functions.set_open(address, "0", "D3hot")

    def unplug(self, address: str) -> None:
        """The function leaves the machine."""
        self.functions.unplug(address)

    def plug(self, address: str) -> None:
        """A function that was unplugged comes back: a new device, without driver or override."""
        self.functions.plug(address)

    def write(self, address: str, name: str, text: str) -> None:
        """Set an attribute of a function, e.g. ``numa_node``, to a text without newline, and announce it."""
        files.write(self.functions.attribute(address, name), text + "\n")
        if name in _IDS:
            texts = {
                each: files.read(self.functions.attribute(address, each)).decode().strip() for each in _IDS
            }
            files.write(self.functions.attribute(address, "modalias"), _modalias(texts) + "\n")
        self.functions.announce(address)

    def node(self, path: str) -> None:
        """Make a device node, e.g. /dev/kvm."""
        self.tree.node(path)

    def remove_node(self, path: str) -> None:
        """Remove a device node."""
        self.tree.remove(path)

    def write_file(self, path: str, text: str) -> None:
        """Write an ordinary file of the host, e.g. /etc/machine-id: a text without newline."""
        files.write(self.path(path), text + "\n")


def _modalias(texts: Mapping[str, str]) -> str:
    """The ids in one text, as the kernel shows them."""
    vendor, device, sub_vendor, sub_device, code = (texts[name].removeprefix("0x").upper() for name in _IDS)
    ids = f"v0000{vendor}d0000{device}sv0000{sub_vendor}sd0000{sub_device}"
    return f"pci:{ids}bc{code[:2]}sc{code[2:4]}i{code[4:]}"


def _boot(tree: Tree, iommu: bool, cdev: bool, numa_nodes: tuple[int, ...]) -> None:
    for directory in (
        "/sys/bus/pci/devices",
        "/sys/bus/pci/drivers/vfio-pci",
        "/sys/kernel/iommu_groups",
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
