# SPDX-License-Identifier: Apache-2.0
"""A simulated host: a tree of files that behaves as the kernel looks from outside.

Serves the demo, the tests and the benchmark. What it shows, and in which order things come and go, follows
kernels 6.12 and 7.2: links before nodes when a driver takes a device, the other way round when it lets go,
a group's node from the first VFIO device to the last, the lowest free ``vfioN``. Nothing reacts by
itself: each method is one thing that happens to the host. Device nodes are empty files, or real
ones that lead to no driver (major 240, for local use) where ``mknod`` is asked for.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections import Counter
from dataclasses import dataclass, field

from nodeagent.sim import files

_VFIO_DRIVERS = ("vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci")
_LOCAL_MAJOR = 240
_UNPLUGGED = "/.unplugged"
_ASIDE = "/.aside"


@dataclass(slots=True)
class _Function:
    """What the simulated kernel knows of one function."""

    address: str
    path: str  # host path of its real directory
    group: int | None
    driver: str | None = None
    physfn: str | None = None
    vfio: int | None = None  # N of vfioN
    keeps_node: bool = False  # its group's node stays for it
    vfs: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # attributes at its first appearance


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
        self._iommu = iommu
        self._cdev = cdev
        self._mknod = mknod
        self._functions: dict[str, _Function] = {}
        self._minor = 0
        self._hidden: dict[str, bytes] = {}
        self._unplugged: dict[str, _Function] = {}
        self._free_vfio: list[int] = []
        self._most_vfio = 0
        self._node_users: Counter[int] = Counter()
        self._boot(numa_nodes)

    def _boot(self, numa_nodes: tuple[int, ...]) -> None:
        for directory in (
            "/sys/bus/pci/devices",
            "/sys/bus/pci/drivers/vfio-pci",
            "/sys/kernel/iommu_groups",
            "/sys/class/iommu",
            "/dev",
        ):
            files.directory(self.path(directory))
        for node in numa_nodes:
            files.directory(self.path(f"/sys/devices/system/node/node{node}"))
        if self._iommu:
            files.link(self.path("/sys/class/iommu/dmar0"), "../../devices/virtual/iommu/dmar0")
        files.write(self.path("/proc/sys/kernel/osrelease"), "6.12.95\n")
        self.node("/dev/vfio/vfio")
        if self._cdev:
            self.node("/dev/iommu")

    def path(self, path: str) -> str:
        """The path in this process of a host path."""
        return self.directory + path

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
        function = _Function(address, path, group, physfn=physfn)
        texts = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{pci_class}",
            "subsystem_vendor": f"0x{subsystem[0]}",
            "subsystem_device": f"0x{subsystem[1]}",
            "revision": f"0x{revision}",
            "numa_node": str(numa),
            "enable": "0" if driver is None or driver in _VFIO_DRIVERS else "1",
            "power_state": "D0",
            "local_cpulist": "0-3",
            "driver_override": "(null)",
        }
        if sriov:
            texts |= {"sriov_totalvfs": str(sriov), "sriov_numvfs": "0"}
        function.texts = texts
        self._appear(function)
        self.bind(address, driver)

    def _appear(self, function: _Function) -> None:
        """The order of the kernel: the directory, its group, then the bus lists it."""
        files.directory(self.path(function.path))
        for name, text in function.texts.items():
            files.write_new(self.path(f"{function.path}/{name}"), text + "\n")
        self._functions[function.address] = function
        if function.group is not None:
            self._join(function, function.group)
        if function.physfn is not None:
            self._link_vf(function, self._functions[function.physfn])
        self._link(f"/sys/bus/pci/devices/{function.address}", function.path)

    def _join(self, function: _Function, group: int) -> None:
        base = f"/sys/kernel/iommu_groups/{group}"
        files.directory(self.path(f"{base}/devices"))
        files.write_new(self.path(f"{base}/type"), "DMA\n")
        self._link(f"{base}/devices/{function.address}", function.path)
        self._link(f"{function.path}/iommu_group", base)

    def _link_vf(self, function: _Function, parent: _Function) -> None:
        self._link(f"{function.path}/physfn", parent.path)
        self._link(f"{parent.path}/virtfn{parent.vfs}", function.path)
        parent.vfs += 1
        files.write(self.path(f"{parent.path}/sriov_numvfs"), f"{parent.vfs}\n")

    def bind(self, address: str, driver: str | None) -> None:
        """Unbind from the present driver, then bind to ``driver`` if there is one."""
        function = self._functions[address]
        if function.driver is not None:
            self._let_go(function)
            self._drop_node(function)
        if driver is None:
            return
        files.directory(self.path(f"/sys/bus/pci/drivers/{driver}"))
        self._link(f"{function.path}/driver", f"/sys/bus/pci/drivers/{driver}")
        self._link(f"/sys/bus/pci/drivers/{driver}/{address}", function.path)
        function.driver = driver
        vfio = driver in _VFIO_DRIVERS
        if vfio:
            self._add_vfio(function)
        files.write(self.path(f"{function.path}/enable"), "0\n" if vfio else "1\n")

    def _add_vfio(self, function: _Function) -> None:
        function.vfio = self._lowest_free()
        if function.group is not None:
            self._ensure_node(f"/dev/vfio/{function.group}")
            self._node_users[function.group] += 1
            function.keeps_node = True
        base = f"{function.path}/vfio-dev/vfio{function.vfio}"
        files.directory(self.path(base))
        if self._cdev:
            files.write(self.path(f"{base}/dev"), f"{_LOCAL_MAJOR}:{function.vfio}\n")
            self._ensure_node(f"/dev/vfio/devices/vfio{function.vfio}")

    def _lowest_free(self) -> int:
        if self._free_vfio:
            return heapq.heappop(self._free_vfio)
        self._most_vfio += 1
        return self._most_vfio - 1

    def _let_go(self, function: _Function) -> None:
        """What is gone as soon as an unbind has begun, also one that waits for a holder."""
        files.remove(self.path(f"{function.path}/driver"))
        files.remove(self.path(f"/sys/bus/pci/drivers/{function.driver}/{function.address}"))
        function.driver = None
        if function.vfio is not None:
            files.remove_tree(self.path(f"{function.path}/vfio-dev"))
            files.remove(self.path(f"/dev/vfio/devices/vfio{function.vfio}"))
            heapq.heappush(self._free_vfio, function.vfio)
            function.vfio = None

    def _drop_node(self, function: _Function) -> None:
        """The group's node goes with the last VFIO device of the group."""
        if function.group is None or not function.keeps_node:
            return
        function.keeps_node = False
        self._node_users[function.group] -= 1
        if not self._node_users[function.group]:
            files.remove(self.path(f"/dev/vfio/{function.group}"))

    def hold(self, address: str) -> None:
        """A process opens the VFIO device."""
        self._open(address, "1\n", "D0\n")

    def release(self, address: str) -> None:
        """The process closes it."""
        self._open(address, "0\n", "D3hot\n")

    def _open(self, address: str, enable: str, power: str) -> None:
        path = self.path(self._functions[address].path)
        aside = self.path(_ASIDE)
        files.write_unseen(f"{path}/enable", enable, aside)  # the kernel says nothing when a device is opened
        files.write_unseen(f"{path}/power_state", power, aside)

    def begin_going_away(self, address: str) -> None:
        """An unbind, removal or unplug begins while a process holds the device: it waits."""
        self.hold(address)
        self._let_go(self._functions[address])

    def finish_going_away(self, address: str) -> None:
        """The holder closes the device: the unbind that waited is carried out."""
        function = self._functions[address]
        self._open(address, "0\n", "D0\n")
        self._drop_node(function)

    def unplug(self, address: str) -> None:
        """The function leaves the machine."""
        self.bind(address, None)
        function = self._functions.pop(address)
        self._drop_node(function)
        self._unplugged[address] = function
        files.remove(self.path(f"/sys/bus/pci/devices/{address}"))
        if function.group is not None:
            self._leave(function, function.group)
        if function.physfn in self._functions:
            self._unlink_vf(function, self._functions[function.physfn])
        # Kept until it is plugged again: a file system would give its inode to the new directory.
        files.move(self.path(function.path), self.path(f"{_UNPLUGGED}/{address}"))

    def plug(self, address: str) -> None:
        """A function that was unplugged comes back: a new device, without driver or override."""
        function = self._unplugged.pop(address)
        function.vfs = 0
        self._appear(function)
        files.write(self.path(f"{function.path}/enable"), "0\n")
        files.remove_tree(self.path(f"{_UNPLUGGED}/{address}"))

    def _leave(self, function: _Function, group: int) -> None:
        base = f"/sys/kernel/iommu_groups/{group}"
        files.remove(self.path(f"{base}/devices/{function.address}"))
        if not os.listdir(self.path(f"{base}/devices")):
            files.remove_tree(self.path(base))

    def _unlink_vf(self, function: _Function, parent: _Function) -> None:
        base = self.path(parent.path)
        for name in os.listdir(base):
            if name.startswith("virtfn") and files.target(f"{base}/{name}") == function.address:
                files.remove(f"{base}/{name}")
        parent.vfs -= 1
        files.write(f"{base}/sriov_numvfs", f"{parent.vfs}\n")

    def write(self, address: str, name: str, text: str) -> None:
        """Set an attribute of a function, e.g. ``numa_node``, to a text without newline."""
        files.write(self.path(f"{self._functions[address].path}/{name}"), text + "\n")

    def hang(self, address: str, name: str) -> None:
        """From now on reading this attribute does not return, as if the device were locked."""
        path = self.path(f"{self._functions[address].path}/{name}")
        self._hidden[path] = files.read(path)
        files.replace_by_fifo(path)

    def unhang(self, address: str, name: str) -> None:
        """The attribute can be read again; readers that hang get its content."""
        path = self.path(f"{self._functions[address].path}/{name}")
        files.replace_fifo(path, self._hidden.pop(path))

    def node(self, path: str) -> None:
        """Make a device node, e.g. /dev/kvm."""
        files.directory(self.path(path.rpartition("/")[0]))
        if not self._mknod:
            files.write_new(self.path(path), "")
            return
        self._minor += 1
        os.mknod(self.path(path), stat.S_IFCHR | 0o600, os.makedev(_LOCAL_MAJOR, self._minor))

    def remove_node(self, path: str) -> None:
        """Remove a device node."""
        files.remove(self.path(path))

    def _ensure_node(self, path: str) -> None:
        if not os.path.lexists(self.path(path)):
            self.node(path)

    def write_file(self, path: str, text: str) -> None:
        """Write an ordinary file of the host, e.g. /etc/machine-id: a text without newline."""
        files.write(self.path(path), text + "\n")

    def pci_ids(self, text: str) -> None:
        """Give the host a PCI ID database of its own."""
        files.write(self.path("/usr/share/hwdata/pci.ids"), text)

    def _link(self, path: str, to: str) -> None:
        """A relative link between two host paths, as the kernel makes them."""
        files.link(self.path(path), os.path.relpath(to, path.rpartition("/")[0]))
