# SPDX-License-Identifier: Apache-2.0
"""Simulated cards in a tree of files: writes to sysfs files get the answer that the kernel would give.

The rules are those of ``mdev_kernel.MdevKernel``; here they get a face. Writes are noticed by inotify. So the
effect of one comes a moment later, an error that the rules find shows as no effect, and only writes that are
made to fail (``refusals``) give a real errno. The files are made by ``mdev_files`` and ``vgpu_files``.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio

from nodeagent.base.errors import KernelRefused
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.model.host import Host
from nodeagent.sim import files, vgpu_files
from nodeagent.sim.functions import BUS
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev_files import MdevFiles
from nodeagent.sim.mdev_kernel import Card, MdevKernel

_OPEN_FILES = "/proc/4711/fd"


class SimulatedCards:
    """The cards of one host, whose PCI functions exist already.

    ``writes`` counts what was asked of them; ``last_bind`` is when an instance became ready last (monotonic).
    """

    def __init__(self, host: SimulatedHost, kernel: MdevKernel, watcher: DirectoryWatcher) -> None:
        self.host = host
        self.kernel = kernel
        self.writes = 0
        self.last_bind = 0.0
        self._watcher = watcher
        self._watched: set[str] = set()
        self._vgpus: set[str] = set()  # directories with current_vgpu_type
        self._mdevs = MdevFiles(host.tree)
        self._shown = Host()
        for card in kernel.cards:
            if all(os.path.lexists(host.path(f"{BUS}/{parent}")) for parent in card.parents):
                self.load(card.address)

    def load(self, address: str) -> None:
        """The parent driver of a card is loaded: its types appear."""
        card = self.kernel.card(address)
        for parent in card.parents:
            if card.vgpu:
                self._vgpus.add(vgpu_files.load(self.host, parent))
            else:
                self._mdevs.load(parent, card.types)
        self._shown = replace(self._shown, functions={}, mdev_parents={})
        self.show()
        for parent in () if card.vgpu else card.parents:
            self._mdevs.announce_parent(parent)

    def unload(self, address: str) -> None:
        """The parent driver of a card with mdevs is unloaded: it takes the idle instances with it."""
        card = self.kernel.card(address)
        for uuid, (parent, _) in self.instances.items():
            if parent in card.parents:
                self.kernel.remove(uuid)
        self.show()
        for parent in card.parents:
            self._mdevs.unload(parent, card.types)
        self._watch()

    def hold(self, instance: str) -> None:
        """A process opens an mdev, or a VF with a type."""
        self.kernel.hold(instance)
        group = _group(self.host, self._shown, instance)
        self.host.tree.link(f"{_OPEN_FILES}/{group}", f"/dev/vfio/{group}")

    def release(self, instance: str) -> None:
        """The process closes it; a removal that waited ends."""
        self.host.tree.remove(f"{_OPEN_FILES}/{_group(self.host, self._shown, instance)}")
        self.kernel.release(instance)
        self.show()

    def switch_off(self, address: str, *type_ids: str) -> None:
        """These types of a card, and no others, have no room."""
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
        parents = self.kernel.card(address).parents
        return sorted(type_id for parent, type_id in self.instances.values() if parent in parents)

    def show(self, vgpu: str = "") -> None:
        """Bring the files in step with the rules; those of the VF ``vgpu`` also if nothing has changed."""
        before, now = self._shown, self.kernel.host()
        self._shown = now
        self._mdevs.show(before, now)
        self._watch()
        for uuid in now.mdevs.keys() - before.mdevs.keys():
            self._mdevs.announce(now.mdevs[uuid])
            self.last_bind = time.monotonic()
        for address, function in now.functions.items():
            if address == vgpu or function != before.functions.get(address):
                vgpu_files.show(self.host, function)

    def _watch(self) -> None:
        """Listen to the files that can be written now."""
        writable = self._mdevs.writable | self._vgpus
        for path in self._watched - writable:
            self._watcher.unwatch(self.host.path(path), self._written)
        for path in writable - self._watched:
            self._watcher.watch(self.host.path(path), self._written, contents=True)
        self._watched = writable

    def _written(self, change: Change) -> None:
        write, asked = _WRITES.get(change.name or ""), _asked(f"{change.directory}/{change.name}")
        if write is None or not asked:
            return
        with suppress(KernelRefused):
            if not write(self.kernel, change.directory, asked):
                return
        self.writes += 1
        self.show(vgpu=change.directory.split("/")[-2])


def _group(host: SimulatedHost, shown: Host, instance: str) -> str:
    of_mdev = (number for number, group in shown.groups.items() if instance in group.members)
    of_vf = files.target(host.path(f"{BUS}/{instance}/iommu_group"))
    return of_vf or str(next(of_mdev))


def _asked(path: str) -> str:
    """What was written; nothing if the file was made to fail or to hang."""
    try:
        return files.read(path).decode().strip() if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return ""


# Each takes the directory of the file and what was written to it; False if that asks for nothing.
_Write = Callable[[MdevKernel, str, str], bool]


def _create(kernel: MdevKernel, directory: str, uuid: str) -> bool:
    *_, parent, _, type_id = directory.split("/")
    kernel.create(parent, type_id, uuid)
    return True


def _remove(kernel: MdevKernel, directory: str, flag: str) -> bool:
    if flag == "1":
        kernel.remove(directory.rpartition("/")[2])
    return flag == "1"


def _set_vgpu_type(kernel: MdevKernel, directory: str, wanted: str) -> bool:
    vf = directory.split("/")[-2]
    _, present = kernel.instances.get(vf, (vf, "0"))
    if wanted != present:
        kernel.set_vgpu_type(vf, wanted)
    return wanted != present


_WRITES: dict[str, _Write] = {"create": _create, "remove": _remove, "current_vgpu_type": _set_vgpu_type}


@asynccontextmanager
async def simulated(host: SimulatedHost, kernel: MdevKernel) -> AsyncIterator[SimulatedCards]:
    """The cards of a host, which answer to writes until the end of the block."""
    watcher = DirectoryWatcher()
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
