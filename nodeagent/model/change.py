# SPDX-License-Identifier: Apache-2.0
"""Changes of the host as values: one action, the plan of all, the ledger of those made, requests by hand.

``policy.change`` plans the actions, ``agent.changing`` and ``kernel.apply`` carry them out, and ``nodeagent
plan`` prints them. Each kind of Action has a function that makes it, and all that others need to know is a
field. A new kind is a member of ActionKind, such a function, a planner in ``policy.change`` (a row of
``plan``), a writer in ``kernel.apply`` (a row of ``actions``), and if it is undone later an entry of the
Ledger (``agent.changing.ledger``); with settings of its own a rule in ``model.spec``. A Plan holds all kinds
of change; it is made from a Snapshot, and good for that Snapshot only. ``nodeagent bind`` and ``release``
send a Request, through a socket as plain data (``plain``) where a daemon does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.ids import VFIO_PCI, GroupNumber, pci_order, vfio_driver
from nodeagent.model.problem import Problem

_SRIOV_LOCK = "sriov_numvfs"  # device of all changes of VFs: the kernel holds one lock for them


class ActionKind(StrEnum):
    """The kinds of changes of the host."""

    CREATE_MDEV = "create-mdev"
    REMOVE_MDEV = "remove-mdev"
    SET_VGPU_TYPE = "set-vgpu-type"
    CLEAR_VGPU_TYPE = "clear-vgpu-type"
    SET_NUM_VFS = "set-num-vfs"
    RUN_SRIOV_MANAGE = "run-sriov-manage"
    RESTORE_AUTOPROBE = "restore-autoprobe"
    BIND_DRIVERS = "bind-drivers"
    RESTORE_DRIVERS = "restore-drivers"


class Move(NamedTuple):
    """A function on its way from the driver ``now`` to the driver ``to``; None is no driver.

    ``back``: the driver that it gets if its group cannot follow: its own, before anything was bound here. So
    what has arrived already (``now`` is ``to``) is among the moves as well.
    """

    address: str
    now: str | None
    to: str | None
    back: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """One change of the host.

    ``card``: actions on one card run one after the other. It is a physical function with its VFs and mdevs,
    or for a change of drivers the first function of the IOMMU group. Two actions on one ``device`` never run
    at the same time. ``targets`` are scanned afterwards: a write without an error proves nothing.
    ``takes`` are the ids that pods cannot use any more.
    ``attempt`` identifies it for refusals: only the same attempt waits after one. ``undo`` is the reverse in
    words, None if it is unknown before. The fields below it are for ``kernel.apply``.
    """

    kind: ActionKind
    card: str
    device: str
    targets: frozenset[str]
    attempt: str
    text: str
    takes: frozenset[str] = frozenset()
    undo: str | None = None
    type_id: str | None = None  # of the mdev or vGPU: refusals are logged once for each card and type
    uuid: str = ""
    parent: str = ""
    address: str = ""  # of the VF, or of the PF whose VFs change
    count: int | None = None  # of VFs
    unprobed: bool = False  # sriov_drivers_autoprobe is off while the VFs are made
    moves: tuple[Move, ...] = ()  # functions of one IOMMU group: all of them change drivers, or none
    forced: tuple[str, ...] = ()  # functions that the host may lose although it uses them


def create_mdev(card: str, parent: str, type_id: str, uuid: str) -> Action:
    """Create a mediated device: its UUID goes to ``create`` of the type below the parent."""
    return Action(
        ActionKind.CREATE_MDEV,
        card,
        device=parent,  # its types share their instances
        targets=frozenset((uuid,)),
        attempt=f"{parent}/{type_id}/create",  # another UUID would be refused as well
        text=f"create mdev {uuid} of type {type_id} on {parent}",
        undo=f"remove mdev {uuid} of type {type_id} from {parent}",
        type_id=type_id,
        uuid=uuid,
        parent=parent,
    )


def remove_mdev(card: str, parent: str, type_id: str, uuid: str) -> Action:
    """Remove a mediated device; the write blocks for as long as a process has it open."""
    return Action(
        ActionKind.REMOVE_MDEV,
        card,
        device=parent,
        targets=frozenset((uuid,)),
        attempt=f"{uuid}/remove",
        text=f"remove mdev {uuid} of type {type_id} from {parent}",
        takes=frozenset((uuid,)),
        undo=f"create mdev {uuid} of type {type_id} on {parent}",
        type_id=type_id,
        uuid=uuid,
        parent=parent,
    )


def set_vgpu_type(card: str, address: str, type_id: str) -> Action:
    """Set the vGPU type of a VF: ``nvidia/current_vgpu_type`` becomes ``type_id``."""
    return Action(
        ActionKind.SET_VGPU_TYPE,
        card,
        device=address,
        targets=frozenset((address,)),
        attempt=f"{address}/{type_id}/set",
        text=f"set the vGPU type of {address} to {type_id}",
        undo=f"clear the vGPU type of {address}",
        type_id=type_id,
        address=address,
    )


def clear_vgpu_type(card: str, address: str, type_id: str) -> Action:
    """Clear the vGPU type of a VF: ``nvidia/current_vgpu_type`` becomes 0. It is ``type_id`` before."""
    return Action(
        ActionKind.CLEAR_VGPU_TYPE,
        card,
        device=address,
        targets=frozenset((address,)),
        attempt=f"{address}/clear",
        text=f"clear the vGPU type of {address}",
        takes=frozenset((address,)),
        undo=f"set the vGPU type of {address} to {type_id}",
        type_id=type_id,
        address=address,
    )


def set_num_vfs(
    address: str, count: int, vfs: Sequence[str] = (), *, allocatable: bool = False, unprobed: bool = False
) -> Action:
    """Create ``count`` VFs, or remove all (0): the kernel knows only 0 → n and n → 0. ``vfs`` exist before.

    ``allocatable``: VMs get the PF itself, so it is withdrawn meanwhile.
    """
    suffix = ", with sriov_drivers_autoprobe off" if unprobed else ""
    return Action(
        ActionKind.SET_NUM_VFS,
        address,
        _SRIOV_LOCK,
        targets=frozenset((address, *vfs)),
        attempt=f"{address}/sriov_numvfs/{count}",
        text=f"set the number of VFs of {address} to {count}{suffix}",
        takes=frozenset((*(() if count else vfs), *((address,) if allocatable else ()))),
        undo=None if count else f"set the number of VFs of {address} to {len(vfs)}",
        address=address,
        count=count,
        unprobed=unprobed,
    )


def run_sriov_manage(address: str, count: int, vfs: Sequence[str] = ()) -> Action:
    """Have NVIDIA's sriov-manage create all VFs that a GPU can have (``count``), or remove them (0)."""
    return Action(
        ActionKind.RUN_SRIOV_MANAGE,
        address,
        _SRIOV_LOCK,
        targets=frozenset((address, *vfs)),
        attempt=f"{address}/sriov-manage/{count}",
        text=_sriov_manage(address, count),
        takes=frozenset(() if count else vfs),
        undo=None if count else _sriov_manage(address, len(vfs)),
        address=address,
        count=count,
    )


def _sriov_manage(address: str, count: int) -> str:
    return f"have sriov-manage {f'make the {count} VFs' if count else 'remove the VFs'} of {address}"


def restore_autoprobe(address: str) -> Action:
    """Switch ``sriov_drivers_autoprobe`` of a PF on again, which nodeagent has switched off."""
    return Action(
        ActionKind.RESTORE_AUTOPROBE,
        address,
        _SRIOV_LOCK,
        targets=frozenset((address,)),
        attempt=f"{address}/sriov_drivers_autoprobe",
        text=f"switch sriov_drivers_autoprobe of {address} on again",
        address=address,
    )


def bind_drivers(
    card: str,
    moves: Sequence[Move],
    allocatable: Iterable[str] = (),
    forced: Iterable[str] = (),
    lost: Sequence[str] = (),
) -> Action:
    """Bind functions of one IOMMU group to VFIO drivers; ``card`` is the first function of the group.

    ``allocatable`` are the functions of the group that VMs get now, moved or not. ``lost`` are the uses that
    the host makes of ``forced`` functions, as texts.
    """
    backs = [Move(move.address, move.to, move.back, move.back) for move in moves]
    return Action(
        ActionKind.BIND_DRIVERS,
        card,
        device=card,
        targets=frozenset(move.address for move in moves),
        attempt=f"{card}/bind to {', '.join(sorted({move.to or '' for move in moves}))}",
        text=f"bind {_by_driver(moves)}" + (f", and this host loses {' and '.join(lost)}" if lost else ""),
        takes=frozenset(allocatable),
        undo=_restore_text(backs),
        moves=tuple(moves),
        forced=tuple(forced),
    )


def restore_drivers(card: str, moves: Sequence[Move], allocatable: Iterable[str] = ()) -> Action:
    """Restore the drivers that functions of one IOMMU group had before they were bound."""
    again = [Move(move.address, move.to, move.now, move.to) for move in moves]
    return Action(
        ActionKind.RESTORE_DRIVERS,
        card,
        device=card,
        targets=frozenset(move.address for move in moves),
        attempt=f"{card}/restore",
        text=_restore_text(moves),
        takes=frozenset(allocatable),
        undo=f"bind {_by_driver(again)}" if all(vfio_driver(move.to) for move in again) else None,
        moves=tuple(moves),
    )


def _restore_text(moves: Sequence[Move]) -> str:
    """A function that has its own driver already may still have our driver_override."""
    if any(move.now != move.to for move in moves):
        return f"give back {_by_driver(moves)}"
    addresses = sorted((move.address for move in moves), key=pci_order)
    return f"see that no driver_override of ours is left on {', '.join(addresses)}"


def _by_driver(moves: Sequence[Move]) -> str:
    """The addresses by their next driver: ``0000:3b:00.0, 0000:3b:00.1 to vfio-pci``."""
    by_driver: dict[str | None, list[str]] = {}
    changes = [move for move in moves if move.now != move.to] or moves
    for move in sorted(changes, key=lambda move: pci_order(move.address)):
        by_driver.setdefault(move.to, []).append(move.address)
    return "; ".join(f"{', '.join(each)} to {driver or 'no driver'}" for driver, each in by_driver.items())


def moved(action: Action) -> frozenset[str]:
    """The functions that get another driver by it, or may when it is taken back."""
    return frozenset(move.address for move in action.moves if len({move.now, move.to, move.back}) > 1)


def occupied(action: Action) -> frozenset[str]:
    """The devices of no other action meanwhile: its device, and functions that get another driver.

    A group is named by its first function, and may lose that meanwhile.
    """
    return moved(action) | {action.device}


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and why it is to be taken; of one that waits also what for."""

    action: Action
    why: str

    @property
    def place(self) -> tuple[str, str | None]:
        """Card and type: what a refusal is logged for, however many attempts there are refused."""
        return self.action.card, self.action.type_id


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance on a card: an mdev by its UUID, or a vGPU by the address of its VF.

    ``foreign`` says why nodeagent may not remove it: "not ours".
    """

    id: str
    parent: str
    type_id: str | None
    group: GroupNumber | None = None
    name: str | None = None  # of its type
    dead: bool = False  # without a driver it cannot be used (Linux, drivers/vfio/mdev)
    vgpu: bool = False
    foreign: str | None = None
    holder: Holder | None = None
    leaving: bool = False  # its removal is under way already, and waits

    @property
    def own(self) -> bool:
        """True if nodeagent may remove it."""
        return self.foreign is None


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The plan of one card: its desired types, its instances, and its steps."""

    address: str
    types: tuple[str, ...]
    instances: tuple[Instance, ...] = ()
    notes: tuple[str, ...] = ()  # for users
    removals: tuple[Step, ...] = ()
    creations: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    shortfalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of now, those that must wait, the state of each card, and problems of the spec.

    A problem without a hint ends with another configuration. A SHORTFALL says how much fits on a card: while
    the card is worked on, that says nothing. ``notes`` are on types for other cards than this node has.
    """

    steps: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    cards: tuple[CardPlan, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


class Asked(NamedTuple):
    """The VFIO driver that was requested by hand, and for which device: a slot may get another one."""

    driver: str
    vendor: str | None = None
    device: str | None = None


class Ledger(NamedTuple):
    """The changes and observations of nodeagent that the host itself does not show; empty: none is known.

    Kept on disk by ``agent.changing.ledger``.

    ``types``: VF → the vGPU type that we set; ``names``: type → name; ``listed``: VF → all it ever listed.

    ``drivers``: function that we bind → its own driver, "" for none; ``asked``: function → what was asked for
    it by hand (``nodeagent bind``). ``unprobed``: the PFs whose ``sriov_drivers_autoprobe`` we have switched
    off. Functions go by their addresses, types by their ids.
    """

    types: Mapping[str, str] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    listed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    drivers: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, Asked] = MappingProxyType({})
    unprobed: frozenset[str] = frozenset()

    @property
    def to_return(self) -> bool:
        """True if there is a change to undo when it is no longer wanted."""
        return bool(self.drivers or self.asked or self.unprobed)


class BindAction(StrEnum):
    """The kind of a request."""

    BIND = "bind"
    RELEASE = "release"


class Request(NamedTuple):
    """``names``: addresses, patterns of them, or ids ``vendor:device``; ``driver``: to bind to.

    ``at_boot``: functions that a boot has given to VFIO by files of ours: they stay so until the next one.
    """

    asking: BindAction
    names: tuple[str, ...]
    driver: str = VFIO_PCI
    dry_run: bool = False
    at_boot: tuple[str, ...] = ()


class Outcome(StrEnum):
    """The outcome for a group of functions."""

    DONE = "done"
    PLANNED = "would be done"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    LATE = "not done yet"


class Result(NamedTuple):
    """One IOMMU group: the ``functions`` of it that were named, or follow, and the outcome.

    ``refusals`` are the problems for which it is refused.
    """

    functions: tuple[str, ...]
    outcome: Outcome
    message: str = ""
    refusals: tuple[Problem, ...] = ()


class Answer(NamedTuple):
    """The results; or the ``error`` for which nothing was looked at, with what to do."""

    results: tuple[Result, ...] = ()
    error: str = ""
    hint: str = ""


class AtBoot(NamedTuple):
    """A function that is to have a VFIO driver from boot on; another device at its address is not."""

    address: str
    vendor: str
    device: str
    driver: str


class FileFate(StrEnum):
    """The change of a file."""

    WRITTEN = "written"
    REMOVED = "removed"


class BootFile(NamedTuple):
    """A file to write whole, or to remove: then ``text`` is empty."""

    path: str
    status: FileFate
    text: str = ""
    runs: bool = False


class BootFiles(NamedTuple):
    """The files that change, in order; ``then`` is the command that makes a new initramfs of them, or ""."""

    files: tuple[BootFile, ...] = ()
    then: str = ""
