# SPDX-License-Identifier: Apache-2.0
"""Simulated cards in a tree of files: writes to sysfs files get the answer that the kernel would give.

The rules are those of ``mdevs.MdevKernel``; here they get a face: parents with types, instances with links,
groups and nodes, vGPU types of VFs, VFs made by ``sriov_numvfs``. Writes are noticed by inotify. So the
effect of one comes a moment later, an error that the rules find shows as no effect, and only writes that are
made to fail give a real errno: their file leads to one of /proc or /dev that always does. What ``bind``
announces, the link on the mdev bus, comes last.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio

from nodeagent.base.errors import KernelRefused
from nodeagent.base.watching import Change, OnChange, Watcher
from nodeagent.model.host import Host, Mdev, MdevType, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev_kernel import Card, MdevKernel, Type

FAILING = {
    errno.ENOSPC: "/dev/full",
    errno.EIO: "/proc/self/mem",  # its first page is never mapped
    errno.EINVAL: "/proc/self/oom_score_adj",
}
_FUNCTIONS = "/sys/bus/pci/devices"
_PARENTS = "/sys/class/mdev_bus"
_INSTANCES = "/sys/bus/mdev/devices"
_PROCESS = "/proc/4711"
_DRIVER = "/sys/bus/mdev/drivers/nvidia-vgpu-vfio"


class SimulatedCards:
    """The cards of one host, whose PCI functions exist already.

    ``writes`` counts what was asked of them; ``last_bind`` is when an instance became ready last (monotonic).
    """

    def __init__(self, host: SimulatedHost, kernel: MdevKernel, watcher: Watcher) -> None:
        self.host = host
        self.kernel = kernel
        self.writes = 0
        self.last_bind = 0.0
        self._watcher = watcher
        self._shown = Host()
        self._rooms: dict[str, str] = {}  # file available_instances → what it says
        for path in (_PARENTS, _INSTANCES, _DRIVER):
            files.directory(host.path(path))
        for card in kernel.cards:
            if all(os.path.lexists(host.path(f"{_FUNCTIONS}/{parent}")) for parent in card.parents):
                self.load(card.address)

    def load(self, address: str) -> None:
        """The parent driver of a card is loaded: its types appear."""
        card = self._card(address)
        for parent in card.parents:
            real = self.real(f"{_FUNCTIONS}/{parent}")
            if card.vgpu:
                files.directory(self.host.path(f"{real}/nvidia"))
                self._watch(f"{real}/nvidia", self._vgpu_written)
            for kind in () if card.vgpu else card.types:
                self._make_type(f"{real}/mdev_supported_types/{kind.id}", kind)
        self._shown = replace(self._shown, functions={}, mdev_parents={})
        self.show()
        for parent in () if card.vgpu else card.parents:
            self._link(f"{_PARENTS}/{parent}", self.real(f"{_FUNCTIONS}/{parent}"))

    def _make_type(self, base: str, kind: Type) -> None:
        files.directory(self.host.path(f"{base}/devices"))
        files.write(self.host.path(f"{base}/name"), f"{kind.name or kind.id}\n")
        files.write(self.host.path(f"{base}/device_api"), "vfio-pci\n")
        files.write(self.host.path(f"{base}/create"), "")
        self._watch(base, self._create_written)

    def unload(self, address: str) -> None:
        """The parent driver of a card with mdevs is unloaded: it takes the idle instances with it."""
        card = self._card(address)
        for uuid, (parent, _) in tuple(self.kernel.instances.items()):
            if parent in card.parents:
                self.kernel.remove(uuid)
        self.show()
        for parent in card.parents:
            files.remove(self.host.path(f"{_PARENTS}/{parent}"))
            types = f"{self.real(f'{_FUNCTIONS}/{parent}')}/mdev_supported_types"
            for kind in card.types:
                self._watcher.unwatch(self.host.path(f"{types}/{kind.id}"), self._create_written)
                self._rooms.pop(self.host.path(f"{types}/{kind.id}/available_instances"), None)
            files.remove_tree(self.host.path(types))

    def fail(self, parent: str, type_id: str, number: int) -> None:
        """From now on each write to ``create`` of this type fails with this errno, one of ``FAILING``."""
        path = self.create_file(parent, type_id)
        files.remove(path)
        files.link(path, FAILING[number])

    def mend(self, parent: str, type_id: str) -> None:
        """The file ``create`` works again."""
        path = self.create_file(parent, type_id)
        files.remove(path)
        files.write(path, "")

    def hold(self, instance: str) -> None:
        """A process opens an mdev, or a VF with a type."""
        self.kernel.hold(instance)
        group = self._group(instance)
        self._link(f"{_PROCESS}/fd/{group}", f"/dev/vfio/{group}")

    def release(self, instance: str) -> None:
        """The process closes it; a removal that waited ends."""
        files.remove(self.host.path(f"{_PROCESS}/fd/{self._group(instance)}"))
        self.kernel.release(instance)
        self.show()

    def _group(self, instance: str) -> str:
        of_mdev = (number for number, group in self._shown.groups.items() if instance in group.members)
        of_vf = files.target(self.host.path(f"{_FUNCTIONS}/{instance}/iommu_group"))
        return of_vf or str(next(of_mdev))

    def switch_off(self, address: str, *type_ids: str) -> None:
        """These types of a card have no room, until told otherwise."""
        self.kernel.switch_off(address, *type_ids)
        self.show()

    def create(self, parent: str, type_id: str, uuid: str) -> None:
        """Somebody else makes an instance. :raises KernelRefused: as the kernel would."""
        self.kernel.create(parent, type_id, uuid)
        self.show()

    @property
    def instances(self) -> dict[str, tuple[str, str]]:
        """Instance → (parent, type)."""
        return dict(self.kernel.instances)

    def types_on(self, address: str) -> list[str]:
        """The types of the instances on a card, without order."""
        parents = self._card(address).parents
        return sorted(kind for parent, kind in self.instances.values() if parent in parents)

    def real(self, path: str) -> str:
        """The host path to which links lead from a host path."""
        top = os.path.realpath(self.host.directory)
        return os.path.realpath(self.host.path(path)).removeprefix(top)

    def show(self, vgpu: str = "") -> None:
        """Bring the files in step with the rules; those of the VF ``vgpu`` also if nothing has changed.

        A group's end and an instance's beginning come last: who looks then sees the room as it is.
        """
        before, now = self._shown, self.kernel.host()
        self._shown = now
        gone_groups = before.groups.keys() - now.groups.keys()
        for uuid in before.mdevs.keys() - now.mdevs.keys():
            self._remove(before.mdevs[uuid], gone=before.mdevs[uuid].group in gone_groups)
        for parent, types in now.mdev_parents.items():
            if types != before.mdev_parents.get(parent):
                self._show_room(parent, types)
        for number in gone_groups:
            files.remove(self.host.path(f"/dev/vfio/{number}"))
            files.remove_tree(self.host.path(f"/sys/kernel/iommu_groups/{number}"))
        for uuid in now.mdevs.keys() - before.mdevs.keys():
            self._add(now.mdevs[uuid])
        for address, function in now.functions.items():
            if address == vgpu or function != before.functions.get(address):
                self._show_vgpu(function)

    def _show_room(self, parent: str, types: Iterable[MdevType]) -> None:
        real = self.real(f"{_FUNCTIONS}/{parent}")
        for kind in types:
            directory = self.host.path(f"{real}/mdev_supported_types/{kind.type_id}")
            path = f"{directory}/available_instances"
            if Path(directory).is_dir() and self._rooms.get(path) != str(kind.available):
                self._rooms[path] = str(kind.available)
                files.write(path, f"{kind.available}\n")

    def _add(self, mdev: Mdev) -> None:
        parent = self.real(f"{_FUNCTIONS}/{mdev.parent}")
        real = f"{parent}/{mdev.uuid}"
        group = f"/sys/kernel/iommu_groups/{mdev.group}"
        files.directory(self.host.path(f"{real}/vfio-dev/vfio{mdev.group}"))
        files.write(self.host.path(f"{real}/remove"), "")
        self._link(f"{real}/mdev_type", f"{parent}/mdev_supported_types/{mdev.type_id}")
        files.write(self.host.path(f"{group}/type"), "unknown\n")
        self._link(f"{group}/devices/{mdev.uuid}", real)
        self._link(f"{real}/iommu_group", group)
        self.host.node(f"/dev/vfio/{mdev.group}")
        if mdev.driver is not None:
            self._link(f"{real}/driver", _DRIVER)
        self._watch(real, self._remove_written)
        self._link(f"{_INSTANCES}/{mdev.uuid}", real)
        self.last_bind = time.monotonic()

    def _remove(self, mdev: Mdev, gone: bool) -> None:
        """A removal that waits leaves the bus at once; group, node and directory stay until its end."""
        real = self.real(f"{_INSTANCES}/{mdev.uuid}")
        self._watcher.unwatch(self.host.path(real), self._remove_written)
        files.remove(self.host.path(f"{_INSTANCES}/{mdev.uuid}"))
        for name in ("driver", "mdev_type", "remove"):
            files.remove(self.host.path(f"{real}/{name}"))
        if gone:
            files.remove_tree(self.host.path(real))

    def _show_vgpu(self, function: PciFunction) -> None:
        base = self.host.path(f"{_FUNCTIONS}/{function.address}/nvidia")
        if not function.vgpu or not Path(base).is_dir():
            return
        lines = [f"{kind:<5} : {name}" for kind, name in function.vgpu_types]
        self._show_vgpu_node(function)
        files.write(f"{base}/creatable_vgpu_types", "\n".join(["ID    : vGPU Name", *lines, ""]))
        files.write(f"{base}/current_vgpu_type", f"{function.vgpu_type or '0'}\n")
        self.host.write(function.address, "enable", "1")  # a tree of files has no other event for it

    def _show_vgpu_node(self, function: PciFunction) -> None:
        """The VFIO device of a VF comes with its type."""
        group = files.target(self.host.path(f"{_FUNCTIONS}/{function.address}/iommu_group"))
        if group is None:
            return
        if function.vgpu_type is None:
            self.host.remove_node(f"/dev/vfio/{group}")
        elif not os.path.lexists(self.host.path(f"/dev/vfio/{group}")):
            self.host.node(f"/dev/vfio/{group}")

    def _create_written(self, change: Change) -> None:
        if change.name != "create":
            return
        *_, parent, _, type_id = change.directory.split("/")
        uuid = self._asked(f"{change.directory}/create")
        if uuid:
            self.writes += 1
            with suppress(KernelRefused):
                self.kernel.create(parent, type_id, uuid)
            self.show()

    def _remove_written(self, change: Change) -> None:
        uuid = change.directory.rpartition("/")[2]
        if change.name == "remove" and self._asked(f"{change.directory}/remove") == "1":
            self.writes += 1
            with suppress(KernelRefused):
                self.kernel.remove(uuid)
            self.show()

    def _vgpu_written(self, change: Change) -> None:
        if change.name != "current_vgpu_type":
            return
        address = change.directory.split("/")[-2]
        present = self._shown.functions[PciAddress(address)].vgpu_type
        wanted = self._asked(f"{change.directory}/current_vgpu_type")
        if wanted and wanted != (present or "0"):
            self.writes += 1
            with suppress(KernelRefused):
                self.kernel.set_vgpu_type(address, wanted)
            self.show(vgpu=address)

    def _asked(self, path: str) -> str:
        """What was written; nothing if the file was made to fail or to hang."""
        try:
            return files.read(path).decode().strip() if stat.S_ISREG(os.lstat(path).st_mode) else ""
        except OSError:
            return ""

    def _card(self, address: str) -> Card:
        return next(card for card in self.kernel.cards if card.address == address)

    def _watch(self, directory: str, listener: OnChange) -> None:
        self._watcher.watch(self.host.path(directory), listener, contents=True)

    def _link(self, path: str, to: str) -> None:
        files.link(self.host.path(path), os.path.relpath(to, path.rpartition("/")[0]))

    def create_file(self, parent: str, type_id: str) -> str:
        """The path in this process of the file ``create``."""
        real = self.real(f"{_FUNCTIONS}/{parent}")
        return self.host.path(f"{real}/mdev_supported_types/{type_id}/create")


@asynccontextmanager
async def simulated(host: SimulatedHost, kernel: MdevKernel) -> AsyncIterator[SimulatedCards]:
    """The cards of a host, which answer to writes until the end of the block."""
    watcher = Watcher()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            yield SimulatedCards(host, kernel, watcher)
            group.cancel_scope.cancel()
    finally:
        watcher.close()


def add_card(host: SimulatedHost, card: Card, group: int, *, device: str = "1eb8", numa: int = -1) -> None:
    """Put the functions of a card on a host: on the driver nvidia, VFs in groups of their own."""
    for number, address in enumerate((card.address, *card.vfs)):
        host.add_function(
            address,
            vendor="10de",
            device=device,
            pci_class="030200",
            driver="nvidia",
            group=group + number,
            numa=numa,
            port=f"{address[:5]}00:{int(address[5:7], 16) & 0x1F:02x}.0",
            sriov=0 if number else len(card.vfs),
            physfn=card.address if number else None,
        )
