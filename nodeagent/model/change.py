# SPDX-License-Identifier: Apache-2.0
"""Changes of the host as values: Action, Plan of all actions, Ledger of completed changes, manual Request.

``policy.change`` plans the actions, ``agent.changing`` and ``kernel.apply`` carry them out, and ``nodeagent
plan`` prints them. For each kind of Action, a function creates the Action with all facts that other modules
need. A new kind is a member of ActionKind, such a function, a planner in ``policy.change`` (a row of
``plan``), a writer in ``kernel.apply`` (a row of ``actions``), and if it is undone later an entry of the
Ledger (``agent.changing.ledger``); with settings of its own a rule in ``model.spec``. A Plan contains changes
of all kinds; it is made from one Snapshot, and is valid for this Snapshot only. ``nodeagent bind`` and
``release`` create a Request; if a daemon runs, they send the Request to its socket as plain data (``plain``).
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

_SRIOV_LOCK = "sriov_numvfs"  # the device of all changes of VFs: the kernel has one lock for them


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
    """A driver change of one function from ``now`` to ``to``; None means no driver.

    ``back`` is the driver for a rollback if another function of the group fails: the driver before any change
    by nodeagent. Functions that have the desired driver already (``now`` is ``to``) are also moves.
    """

    address: str
    now: str | None
    to: str | None
    back: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """One change of the host.

    Actions with the same ``card`` run one after the other. A card is a physical function with its VFs and
    mdevs, or, for a change of drivers, the first function of the IOMMU group. Two actions on the same
    ``device`` never run at the same time. ``targets`` are the devices to scan after the write, because a
    write without an error proves nothing. ``takes`` are the ids of devices that become unavailable to pods.
    ``attempt`` identifies the attempt: after the kernel has refused it, only the same attempt is delayed.
    ``undo`` describes the reverse action, None if it is not known in advance. Only ``kernel.apply`` uses the
    fields after ``undo``.
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
    unprobed: bool = False  # sriov_drivers_autoprobe is off while the VFs are created
    moves: tuple[Move, ...] = ()  # functions of one IOMMU group: all of them change drivers, or none
    forced: tuple[str, ...] = ()  # functions that may be taken from the host although it uses them


def create_mdev(card: str, parent: str, type_id: str, uuid: str) -> Action:
    """Return the action that creates an mdev: its UUID is written to ``create`` of the type on the parent."""
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
    """Return the action that removes an mdev; the write blocks as long as a process has the mdev open."""
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
    """Return the action that writes ``type_id`` to ``nvidia/current_vgpu_type`` of a VF."""
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
    """Return the action that writes 0 to ``nvidia/current_vgpu_type`` of a VF, which has the type
    ``type_id``.
    """
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
    """Return the action that creates ``count`` VFs, or removes all (0): the kernel supports only 0 → n and
    n → 0.

    ``vfs`` are the existing VFs. ``allocatable``: the PF itself can be allocated, so it is withdrawn during
    the change.
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
    """Return the action in which NVIDIA's sriov-manage creates all VFs of a GPU (``count``) or removes them
    (0).
    """
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
    """Return the action that enables ``sriov_drivers_autoprobe`` of a PF after nodeagent has disabled it."""
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
    """Return the action that binds functions of one IOMMU group to VFIO drivers.

    ``card`` is the first function of the group. ``allocatable`` are the currently allocatable functions of
    the group. ``lost`` describes the host's uses of ``forced`` functions, which the change ends.
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
    """Return the action that restores the drivers that functions of one IOMMU group had before."""
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
    """Describe the restore of drivers; a function on its former driver may still have nodeagent's
    driver_override.
    """
    if any(move.now != move.to for move in moves):
        return f"give back {_by_driver(moves)}"
    addresses = sorted((move.address for move in moves), key=pci_order)
    return f"remove a remaining driver_override from {', '.join(addresses)}"


def _by_driver(moves: Sequence[Move]) -> str:
    """Return the addresses by their next driver: ``0000:3b:00.0, 0000:3b:00.1 to vfio-pci``."""
    by_driver: dict[str | None, list[str]] = {}
    changes = [move for move in moves if move.now != move.to] or moves
    for move in sorted(changes, key=lambda move: pci_order(move.address)):
        by_driver.setdefault(move.to, []).append(move.address)
    return "; ".join(f"{', '.join(each)} to {driver or 'no driver'}" for driver, each in by_driver.items())


def moved(action: Action) -> frozenset[str]:
    """Return the functions whose driver changes, or may change in a rollback."""
    return frozenset(move.address for move in action.moves if len({move.now, move.to, move.back}) > 1)


def occupied(action: Action) -> frozenset[str]:
    """Return the devices that no other action may use at the same time: ``device``, and functions that change
    drivers.

    An IOMMU group is identified by its first function, which may leave the group during the action.
    """
    return moved(action) | {action.device}


@dataclass(frozen=True, slots=True)
class Step:
    """An action with its reason; for an action that waits, also the cause of the wait."""

    action: Action
    why: str

    @property
    def place(self) -> tuple[str, str | None]:
        """Return card and vGPU type: a refusal is logged once for this key, not for each attempt."""
        return self.action.card, self.action.type_id


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance on a card: an mdev with its UUID, or a vGPU with the address of its VF.

    ``foreign`` is the reason why nodeagent must not remove it, such as "not ours".
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
    leaving: bool = False  # its removal has started and waits

    @property
    def own(self) -> bool:
        """Return True if nodeagent may remove the instance."""
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
    """The steps to make now, the steps that must wait, the state of each card, and problems of the Spec.

    A problem without a hint can be solved only by another configuration. A problem of kind SHORTFALL reports
    how many instances fit on a card; it is ignored while the card is changed. ``notes`` name vGPU types that
    are configured for cards which this node does not have.
    """

    steps: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    cards: tuple[CardPlan, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


class Asked(NamedTuple):
    """The VFIO driver that was requested manually, and the identity of the device, because its slot may later
    contain another device.
    """

    driver: str
    vendor: str | None = None
    device: str | None = None


class Ledger(NamedTuple):
    """Changes by nodeagent and observed facts that the host itself does not show.

    ``agent.changing.ledger`` keeps the Ledger on disk. ``types`` maps each VF to the vGPU type that nodeagent
    has set, ``names`` each type to its name, ``listed`` each VF to all types that it has ever listed.
    ``drivers`` maps each function that nodeagent has bound to its former driver ("": none), ``asked`` each
    function to its manual request (``nodeagent bind``). ``unprobed``: PFs whose ``sriov_drivers_autoprobe``
    nodeagent has disabled. The keys are the addresses of functions and the ids of types.
    """

    types: Mapping[str, str] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    listed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    drivers: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, Asked] = MappingProxyType({})
    unprobed: frozenset[str] = frozenset()

    @property
    def to_return(self) -> bool:
        """Return True if a recorded change must be undone when the configuration no longer requires it."""
        return bool(self.drivers or self.asked or self.unprobed)


class BindAction(StrEnum):
    """The action of a manual request."""

    BIND = "bind"
    RELEASE = "release"


class Request(NamedTuple):
    """A manual request. ``names``: addresses, patterns, or ids ``vendor:device``; ``driver``: the VFIO driver
    to bind to.

    ``at_boot``: functions that boot files of nodeagent have bound to VFIO; they stay bound until the next
    boot.
    """

    asking: BindAction
    names: tuple[str, ...]
    driver: str = VFIO_PCI
    dry_run: bool = False
    at_boot: tuple[str, ...] = ()


class Outcome(StrEnum):
    """The outcome of a manual request for the functions of an IOMMU group."""

    DONE = "done"
    PLANNED = "would be done"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    LATE = "not done yet"


class Result(NamedTuple):
    """The result for one IOMMU group: its ``functions`` that were named or are bound together with these, and
    the outcome.

    ``refusals`` are the problems that prevent the request.
    """

    functions: tuple[str, ...]
    outcome: Outcome
    message: str = ""
    refusals: tuple[Problem, ...] = ()


class Answer(NamedTuple):
    """The results of a manual request, or the ``error`` that prevented its evaluation, with a hint."""

    results: tuple[Result, ...] = ()
    error: str = ""
    hint: str = ""


class AtBoot(NamedTuple):
    """A function to be bound to a VFIO driver at boot, unless another device is at its address."""

    address: str
    vendor: str
    device: str
    driver: str


class FileFate(StrEnum):
    """The change of a boot file."""

    WRITTEN = "written"
    REMOVED = "removed"


class BootFile(NamedTuple):
    """A file to write, or to remove if ``text`` is empty."""

    path: str
    status: FileFate
    text: str = ""
    runs: bool = False


class BootFiles(NamedTuple):
    """The boot files that change, in order; ``then`` is the command that rebuilds the initramfs, or ""."""

    files: tuple[BootFile, ...] = ()
    then: str = ""
