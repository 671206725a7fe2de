# SPDX-License-Identifier: Apache-2.0
"""Simulates cards with mdevs or vendor-specific vGPUs: the kernel's rules, and the files that show its state.

``MdevKernel`` implements the rules without files. These facts were measured with the sample drivers mtty and
mbochs on Linux 6.1 and 6.12: the errors of ``create`` and ``remove``; that the types of a parent share its
instances; that an mdev whose removal is blocked leaves the bus, but keeps its UUID and its instance. The
rules for vGPUs that may share a card are from NVIDIA's documentation (``Sizes``).

``SimulatedCards`` shows that state in a tree of files, and applies writes to them. ``SimulatedCards`` notices
writes through inotify. A write therefore takes effect a moment later, and a write that breaks a rule has no
effect instead of an error. Only writes that a test or the demo lets fail (``fail_create``) return a real
errno.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction

import anyio

from nodeagent.base.errors import KernelRefused
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.model.ids import mdev_uuid
from nodeagent.sim import files
from nodeagent.sim.host import BUS, GROUPS, SimulatedHost

_PARENTS = "/sys/class/mdev_bus"
_MDEVS = "/sys/bus/mdev/devices"
_DRIVER = "/sys/bus/mdev/drivers/nvidia-vgpu-vfio"
_OPEN_FILES = "/proc/4711/fd"
_REMOVED = "/.removed"
FAILING = {  # errno → a file that rejects each write with it
    errno.ENOSPC: "/dev/full",
    errno.EIO: "/proc/self/mem",  # the first page of a process is never mapped
    errno.EINVAL: "/proc/self/oom_score_adj",
}


@dataclass(frozen=True, slots=True)
class Type:
    """An mdev type: the maximum number of instances on an empty card, and the name of the type, if any."""

    id: str
    most: int
    name: str | None = None


class Sizes(Enum):
    """Which types of instances may be on a card at the same time.

    NVIDIA's driver accepts vGPUs of one frame buffer size (``EQUAL``), or of several in mixed-size mode
    (``MIXED``): each starts at a multiple of its size, so free memory may be split into pieces that are too
    small. Instances of the kernel's sample drivers share the capacity of their parent without fixed places
    (``ANY``).
    """

    EQUAL = auto()
    MIXED = auto()
    ANY = auto()


@dataclass(slots=True)
class Card:
    """A card with a capacity that its types share; ``vfs`` are the parents, empty if the card itself is the
    parent.

    ``vgpu`` is the vendor-specific framework of VFIO: types are set on VFs, and there are no mdevs.
    """

    address: str
    types: tuple[Type, ...]
    vfs: tuple[str, ...] = ()
    sizes: Sizes = Sizes.EQUAL
    vgpu: bool = False
    off: frozenset[str] = frozenset()  # types that report 0 available instances, regardless of capacity

    @property
    def parents(self) -> tuple[str, ...]:
        """Return the PCI functions on which instances are created."""
        return self.vfs or (self.address,)


@dataclass(slots=True)
class Instance:
    """An instance: an mdev, or a VF with a vGPU type. ``dead``: no driver. ``leaving``: the removal of the
    instance waits until the instance is closed.

    ``place``: on a card with mixed sizes, the start of the instance's memory as a multiple of its size.
    """

    parent: str
    type: Type
    group: int
    dead: bool
    place: int
    leaving: bool = field(default=False, init=False)


@dataclass(slots=True)
class MdevKernel:
    """The state of the cards: their instances by name, which instances are open, and which writes fail."""

    cards: list[Card]
    errors: dict[tuple[str, str], int] = field(default_factory=dict)  # (card, type) → errno of its writes
    held: set[str] = field(default_factory=set)
    stillborn: bool = False  # no driver binds new instances
    made: dict[str, Instance] = field(default_factory=dict, init=False)
    _next_group: int = field(default=100, init=False)

    def create(self, parent: str, type_id: str, text: str) -> None:
        """Write a UUID to ``create`` of a type of a parent.

        :raises KernelRefused: with the kernel's errno.
        """
        card = self.card(parent)
        mdev_type = _type(card, parent, type_id)
        uuid = mdev_uuid(text)
        if uuid is None:
            raise _refused(errno.EINVAL, f"{parent}/{type_id}/create")
        if uuid in self.made:  # a removal that is still blocked keeps its UUID
            raise _refused(errno.EEXIST, f"{parent}/{type_id}/create")
        self._may_fail(card, type_id)
        if self.available(card, parent, mdev_type) < 1:
            raise _refused(errno.ENOSPC, f"{parent}/{type_id}/create")
        self._add(uuid, parent, mdev_type)

    def remove(self, uuid: str) -> bool:
        """Write 1 to ``remove`` of an instance; return False if the write blocks until ``release``."""
        made = self.made.get(uuid)
        if made is None or made.leaving:
            raise _refused(errno.ENOENT, f"{uuid}/remove")
        self._may_fail(self.card(made.parent), made.type.id)
        if uuid in self.held:
            made.leaving = True
            return False
        del self.made[uuid]
        return True

    def set_vgpu_type(self, vf: str, type_id: str) -> None:
        """Write a type, or 0, to ``nvidia/current_vgpu_type`` of a VF."""
        card = self.card(vf)
        if vf in self.held:
            raise _refused(errno.EBUSY, f"{vf}/nvidia/current_vgpu_type")
        if type_id == "0":
            self._may_fail(card, self.made[vf].type.id if vf in self.made else "0")
            self.made.pop(vf, None)
            return
        vgpu_type = _type(card, vf, type_id)
        self._may_fail(card, type_id)
        if vf in self.made or self.available(card, vf, vgpu_type) < 1:
            raise _refused(errno.EINVAL, f"{vf}/nvidia/current_vgpu_type")
        self._add(vf, vf, vgpu_type)

    def hold(self, instance: str) -> None:
        """Simulate a process that opens an instance."""
        self.held.add(instance)

    def release(self, instance: str) -> None:
        """Simulate that the process closes it, which completes a waiting removal."""
        self.held.discard(instance)
        if instance in self.made and self.made[instance].leaving:
            del self.made[instance]

    def switch_off(self, address: str, *type_ids: str) -> None:
        """Let exactly these types of a card report that no instance is available."""
        self.card(address).off = frozenset(type_ids)

    @property
    def instances(self) -> Mapping[str, tuple[str, str]]:
        """Return (parent, type) by instance in the order of creation, without those being removed."""
        return {name: (made.parent, made.type.id) for name, made in self.made.items() if not made.leaving}

    def available(self, card: Card, parent: str, mdev_type: Type) -> int:
        """Return the number of instances of the type that still fit on the card; a VF has at most one."""
        here = [made for made in self.made.values() if made.parent in card.parents and not made.dead]
        if mdev_type.id in card.off:
            return 0
        if card.sizes is Sizes.EQUAL and any(made.type.most != mdev_type.most for made in here):
            return 0
        if card.vfs and any(made.parent == parent for made in here):
            return 0
        if card.sizes is Sizes.MIXED:
            room = len(_free_places(mdev_type, here))
        else:
            room = int(mdev_type.most - sum(Fraction(mdev_type.most, made.type.most) for made in here))
        return min(room, 1) if card.vfs else room

    def card(self, parent: str) -> Card:
        """Return the card with this address or parent. :raises KernelRefused: if there is none."""
        for card in self.cards:
            if parent in (card.address, *card.parents):
                return card
        raise _refused(errno.ENOENT, parent)

    def _add(self, name: str, parent: str, mdev_type: Type) -> None:
        card = self.card(parent)
        here = [made for made in self.made.values() if made.parent in card.parents]
        place = _free_places(mdev_type, here)[0] if card.sizes is Sizes.MIXED else 0
        self.made[name] = Instance(parent, mdev_type, self._next_group, self.stillborn, place)
        self._next_group += 1

    def _may_fail(self, card: Card, type_id: str) -> None:
        number = self.errors.get((card.address, type_id))
        if number is not None:
            raise _refused(number, f"{card.address}/{type_id}")


def _free_places(mdev_type: Type, here: Iterable[Instance]) -> list[int]:
    """Return the places of a card at which an instance of the type fits beside the existing instances."""
    taken = [
        (Fraction(made.place, made.type.most), Fraction(made.place + 1, made.type.most))
        for made in here
        if not made.dead
    ]
    size = Fraction(1, mdev_type.most)
    return [
        place
        for place in range(mdev_type.most)
        if all(end <= place * size or (place + 1) * size <= start for start, end in taken)
    ]


def _type(card: Card, parent: str, type_id: str) -> Type:
    for mdev_type in card.types:
        if mdev_type.id == type_id:
            return mdev_type
    raise _refused(errno.EINVAL if card.vgpu else errno.ENOENT, f"{parent}/{type_id}")


def _refused(number: int, path: str) -> KernelRefused:
    return KernelRefused(f"{path}: {errno.errorcode[number]}", errno=number, path=path)


class SimulatedCards:
    """The cards of one simulated host, whose PCI functions exist already.

    ``writes`` counts writes to their files; ``last_bind`` is the monotonic time when an instance last
    became ready.
    """

    def __init__(self, host: SimulatedHost, kernel: MdevKernel, watcher: DirectoryWatcher) -> None:
        self.host = host
        self.kernel = kernel
        self.writes = 0
        self.last_bind = 0.0
        self._watcher = watcher
        self._watched: set[str] = set()  # host paths of directories
        self._real: dict[str, str] = {}  # parent of mdevs → host path of its real directory
        self._parents: set[str] = set()  # cards whose driver is loaded
        self._vfs: dict[str, str] = {}  # VF that supports a type → host path of its directory nvidia
        self._shown: dict[str, Instance] = {}  # mdevs with a directory and a group
        self._listed: set[str] = set()  # mdevs on the bus
        self._texts: dict[str, str] = {}  # VF, or parent and type → the text shown
        for path in (_PARENTS, _MDEVS, _DRIVER):
            files.directory(host.path(path))
        for card in kernel.cards:
            if all(os.path.lexists(host.path(f"{BUS}/{parent}")) for parent in card.parents):
                self.load(card.address)

    def load(self, address: str) -> None:
        """Load the parent driver of a card, which adds its types."""
        card = self.kernel.card(address)
        for parent in card.parents:
            real = self.host.tree.real(f"{BUS}/{parent}")
            if card.vgpu:
                self._vfs[parent] = f"{real}/nvidia"
                files.directory(self.host.path(f"{real}/nvidia"))
            else:
                self._real[parent] = real
                self._parents.add(parent)
                self._add_types(real, card)
        self.show()
        for parent in () if card.vgpu else card.parents:
            self.host.tree.link(f"{_PARENTS}/{parent}", self._real[parent])

    def unload(self, address: str) -> None:
        """Unload the parent driver of a card with mdevs, which removes the idle instances."""
        card = self.kernel.card(address)
        for uuid, (parent, _) in self.instances.items():
            if parent in card.parents:
                self.kernel.remove(uuid)
        self.show()
        for parent in card.parents:
            self.host.tree.remove(f"{_PARENTS}/{parent}")
            files.remove_tree(self.host.path(_types_directory(self._real[parent])))
            self._parents.discard(parent)
            for mdev_type in card.types:
                self._texts.pop(f"{parent}/{mdev_type.id}", None)
        self._watch()

    def hold(self, instance: str) -> None:
        """Simulate a process that opens an mdev, or a VF with a type."""
        self.kernel.hold(instance)
        group = self._group(instance)
        self.host.tree.link(f"{_OPEN_FILES}/{group}", f"/dev/vfio/{group}")

    def release(self, instance: str) -> None:
        """Simulate that the process closes it, which completes a waiting removal."""
        self.host.tree.remove(f"{_OPEN_FILES}/{self._group(instance)}")
        self.kernel.release(instance)
        self.show()

    def switch_off(self, address: str, *type_ids: str) -> None:
        """Let exactly these types of a card report that no instance is available."""
        self.kernel.switch_off(address, *type_ids)
        self.show()

    def create(self, parent: str, type_id: str, uuid: str) -> None:
        """Create an instance as another program would. :raises KernelRefused: as the kernel would."""
        self.kernel.create(parent, type_id, uuid)
        self.show()

    @property
    def instances(self) -> dict[str, tuple[str, str]]:
        """Return (parent, type) by instance."""
        return dict(self.kernel.instances)

    def types_on(self, address: str) -> list[str]:
        """Return the types of the instances on a card, unsorted."""
        parents = self.kernel.card(address).parents
        return sorted(type_id for parent, type_id in self.instances.values() if parent in parents)

    def show(self, vgpu: str = "") -> None:
        """Update the files to match the rules; those of the VF ``vgpu`` even if nothing has changed.

        The removal of a group and the start of an instance come last, so that a reader of them sees the
        final capacity. The link on the mdev bus, which announces an instance, is created when its files can
        be written.
        """
        made = {name: one for name, one in self.kernel.made.items() if mdev_uuid(name) is not None}
        listed = [name for name, one in made.items() if not one.leaving]
        new = [name for name in listed if name not in self._listed]
        for uuid in self._listed.difference(listed):
            self._remove_from_bus(uuid)
        for parent in self._parents:
            self._show_rooms(parent)
        for uuid in self._shown.keys() - made.keys():
            self._remove_group(uuid)
        for uuid in new:
            self._add_mdev(uuid, made[uuid])
        self._shown, self._listed = made, set(listed)
        self._watch()
        for uuid in new:
            self.host.tree.link(f"{_MDEVS}/{uuid}", self._directory(uuid))
            self.last_bind = time.monotonic()
        for vf, base in self._vfs.items():
            self._show_vgpu(vf, base, even_if_same=vf == vgpu)

    def _add_types(self, real: str, card: Card) -> None:
        for mdev_type in card.types:
            base = f"{_types_directory(real)}/{mdev_type.id}"
            files.directory(self.host.path(f"{base}/devices"))
            files.write(self.host.path(f"{base}/name"), f"{mdev_type.name or mdev_type.id}\n")
            files.write(self.host.path(f"{base}/device_api"), "vfio-pci\n")
            files.write(self.host.path(f"{base}/create"), "")

    def _show_rooms(self, parent: str) -> None:
        card, types = self.kernel.card(parent), _types_directory(self._real[parent])
        for mdev_type in card.types:
            room = f"{self.kernel.available(card, parent, mdev_type)}\n"
            if self._texts.get(f"{parent}/{mdev_type.id}") != room:
                self._texts[f"{parent}/{mdev_type.id}"] = room
                files.write(self.host.path(f"{types}/{mdev_type.id}/available_instances"), room)

    def _add_mdev(self, uuid: str, made: Instance) -> None:
        tree, real = self.host.tree, self._directory(uuid)
        group = f"{GROUPS}/{made.group}"
        files.directory(tree.path(f"{real}/vfio-dev/vfio{made.group}"))
        files.write(tree.path(f"{real}/remove"), "")
        tree.link(f"{real}/mdev_type", f"{_types_directory(self._real[made.parent])}/{made.type.id}")
        files.write(tree.path(f"{group}/type"), "unknown\n")
        tree.link(f"{group}/devices/{uuid}", real)
        tree.link(f"{real}/iommu_group", group)
        tree.node(f"/dev/vfio/{made.group}")
        if not made.dead:
            tree.link(f"{real}/driver", _DRIVER)

    def _remove_from_bus(self, uuid: str) -> None:
        """Remove an mdev from the bus when its removal starts; group, node and directory stay until it
        ends.
        """
        self.host.tree.remove(f"{_MDEVS}/{uuid}")
        for name in ("driver", "mdev_type", "remove"):
            self.host.tree.remove(f"{self._directory(uuid)}/{name}")

    def _remove_group(self, uuid: str) -> None:
        tree, group = self.host.tree, self._shown[uuid].group
        # kept: a file system would give its inode to the next one, which the kernel does not
        files.move(tree.path(self._directory(uuid)), tree.path(f"{_REMOVED}/{uuid}"))
        tree.remove(f"/dev/vfio/{group}")
        files.remove_tree(tree.path(f"{GROUPS}/{group}"))

    def _show_vgpu(self, vf: str, base: str, *, even_if_same: bool) -> None:
        """Show the type of a VF, or the types that it can have; a VF with a type has a VFIO device."""
        card, made = self.kernel.card(vf), self.kernel.made.get(vf)
        room = [one for one in card.types if made is None and self.kernel.available(card, vf, one)]
        creatable = "".join(f"{one.id:<5} : {one.name or ''}\n" for one in room)
        current = made.type.id if made else "0"
        if self._texts.get(vf) == creatable + current and not even_if_same:
            return
        self._texts[vf] = creatable + current
        if group := files.target(self.host.path(f"{BUS}/{vf}/iommu_group")):
            (self.host.tree.ensure_node if made else self.host.remove_node)(f"/dev/vfio/{group}")
        files.write(self.host.path(f"{base}/creatable_vgpu_types"), f"ID    : vGPU Name\n{creatable}")
        files.write(self.host.path(f"{base}/current_vgpu_type"), f"{current}\n")
        self.host.write(vf, "enable", "1")  # the kernel would send an event

    def _directory(self, uuid: str) -> str:
        """Return the host path of the directory of an mdev."""
        parent = self.kernel.made[uuid].parent if uuid in self.kernel.made else self._shown[uuid].parent
        return f"{self._real[parent]}/{uuid}"

    def _group(self, instance: str) -> str:
        group_of_vf = files.target(self.host.path(f"{BUS}/{instance}/iommu_group"))
        return group_of_vf or str(self._shown[instance].group)

    def _watch(self) -> None:
        """Watch the files that can be written now."""
        writable = {*self._vfs.values(), *(self._directory(uuid) for uuid in self._listed)}
        for parent in self._parents:
            types = _types_directory(self._real[parent])
            writable |= {f"{types}/{one.id}" for one in self.kernel.card(parent).types}
        for path in self._watched - writable:
            self._watcher.unwatch(self.host.path(path), self._written)
        for path in writable - self._watched:
            self._watcher.watch(self.host.path(path), self._written, contents=True)
        self._watched = writable

    def _written(self, change: Change) -> None:
        """Apply a write to a file. A write that the rules reject is counted but has no effect."""
        text = _written_text(f"{change.directory}/{change.name}")
        *_, parent, _, name = change.directory.split("/")  # of a type, an mdev, or VF/nvidia
        vf = change.directory.split("/")[-2]
        current = self.kernel.made[vf].type.id if vf in self.kernel.made else "0"
        with suppress(KernelRefused):
            match change.name:
                case "create" if text:
                    self.kernel.create(parent, name, text)
                case "remove" if text == "1":
                    self.kernel.remove(name)
                case "current_vgpu_type" if text and text != current:
                    self.kernel.set_vgpu_type(vf, text)
                case _:
                    return
        self.writes += 1
        self.show(vgpu=vf)


def _types_directory(real: str) -> str:
    return f"{real}/mdev_supported_types"


def _written_text(path: str) -> str:
    """Return the text in a file; "" if a test lets the file fail or hang."""
    try:
        return files.read(path).decode().strip() if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return ""


@asynccontextmanager
async def simulated_cards(host: SimulatedHost, kernel: MdevKernel) -> AsyncIterator[SimulatedCards]:
    """Provide the cards of a host, which react to writes within the ``async with`` block."""
    watcher = DirectoryWatcher()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            yield SimulatedCards(host, kernel, watcher)
            group.cancel_scope.cancel()
    finally:
        watcher.close()


def add_card(host: SimulatedHost, card: Card, group: int, *, device: str = "1eb8", numa: int = -1) -> None:
    """Add the functions of a card to a host, bound to the driver nvidia; each VF is in a separate group."""
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


def create_file(host: SimulatedHost, parent: str, type_id: str) -> str:
    """Return the real path of the ``create`` file of a type."""
    return host.path(f"{_types_directory(host.tree.real(f'{BUS}/{parent}'))}/{type_id}/create")


def fail_create(host: SimulatedHost, parent: str, type_id: str, number: int) -> None:
    """Let each write to ``create`` of this type fail with this errno, one of ``FAILING``."""
    path = create_file(host, parent, type_id)
    files.remove(path)
    files.link(path, FAILING[number])


def mend_create(host: SimulatedHost, parent: str, type_id: str) -> None:
    """Let the ``create`` file work again."""
    path = create_file(host, parent, type_id)
    files.remove(path)
    files.write(path, "")
