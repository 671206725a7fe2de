# SPDX-License-Identifier: Apache-2.0
"""Cards of the documented examples, and a loop that does what plans say until they say nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.change import Action, ActionKind, Ledger, Plan
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import MdevSpec, NodeTypes, Spec, WantedType
from nodeagent.policy.change import mdevs
from nodeagent.policy.change.ownership import update_ledger
from nodeagent.sim.mdev import Card, Type
from tests.sim.mdevs import ModelKernel

MACHINE = "0123456789abcdef0123456789abcdef"
TURNS = 12

T4_TYPES = (
    Type("nvidia-222", 16, "GRID T4-1B"),
    Type("nvidia-223", 8, "GRID T4-2B"),
    Type("nvidia-224", 8, "GRID T4-2B4"),
    Type("nvidia-228", 2, "GRID T4-8A"),
    Type("nvidia-229", 1, "GRID T4-16A"),
    Type("nvidia-230", 16, "GRID T4-1Q"),
    Type("nvidia-234", 1, "GRID T4-16Q"),
)
V100_TYPES = (
    Type("nvidia-105", 16, "GRID V100-1Q"),
    Type("nvidia-108", 2, "GRID V100-8Q"),
    Type("nvidia-217", 8),
    Type("nvidia-299", 4),
)
INTEL_TYPES = tuple(Type(f"i915-GVTg_V5_{number}", most) for number, most in ((1, 1), (2, 1), (4, 1), (8, 2)))


def t4(number: int, *only: str) -> Card:
    """A T4 on bus ``number``, with all of its types or with some."""
    return Card(f"0000:{number:02}:00.0", tuple(kind for kind in T4_TYPES if not only or kind.id[7:] in only))


def v100(number: int) -> Card:
    """A V100 on bus ``number``."""
    return Card(f"0000:{number:02}:00.0", V100_TYPES)


def intel() -> Card:
    """Intel graphics with GVT-g."""
    return Card("0000:00:02.0", INTEL_TYPES)


def wanted(*types: str | WantedType, **other: Any) -> MdevSpec:
    """The wish for these types: numbers are NVIDIA's ("222")."""
    return MdevSpec(manage=True, types=listed(*types), **other)


def listed(*types: str | WantedType) -> tuple[WantedType, ...]:
    """Types as an operator lists them."""
    return tuple(
        each if isinstance(each, WantedType) else WantedType(f"nvidia-{each}" if each.isdecimal() else each)
        for each in types
    )


def on(labels: Mapping[str, str], *types: str) -> NodeTypes:
    """An override for nodes with these labels."""
    return NodeTypes(tuple(labels.items()), listed(*types))


def holder(*instances: str) -> dict[str, Holder]:
    """One pod that holds these."""
    return {each: Holder("ns", "vm", ResourceName("nvidia.com/GRID_T4-1B")) for each in instances}


def snapshot(kernel: ModelKernel, wish: MdevSpec, **other: Any) -> Snapshot:
    """One in which the kubelet has told everything, and all that is held is held by a pod.

    ``other``: parts of the Snapshot that are different; ``labels`` are the node's, ``holders`` who has what.
    """
    labels = tuple(other.pop("labels", {}).items())
    holders = other.pop("holders", None)
    known = Snapshot(
        kernel.host(),
        Spec(mdevs=wish, labels=labels),
        allocations=Allocations.of(holder(*kernel.held) if holders is None else holders, Knowledge.COMPLETE),
        machine_id=MACHINE,
    )
    return replace(known, **other)


def planned(kernel: ModelKernel, wish: MdevSpec, **other: Any) -> Plan:
    """The plan of now; ``other`` as in ``snapshot``."""
    return mdevs.plan(snapshot(kernel, wish, **other))


def settle(kernel: ModelKernel, wish: MdevSpec, **other: Any) -> Plan:
    """Do what the plans say until there is nothing more to do; the last plan."""
    made: dict[str, str] = other.pop("made", {})
    record: Ledger = other.pop("record", Ledger())
    for _ in range(TURNS):
        record = update_ledger(record, kernel.host(), {})
        plan = planned(kernel, wish, ledger=record._replace(types=made), **other)
        if not plan.steps:
            return plan
        for step in plan.steps:
            if step.action.kind is ActionKind.SET_VGPU_TYPE:
                made[step.action.address] = step.action.type_id or ""
            if not (
                step.action.kind in (ActionKind.CREATE_MDEV, ActionKind.SET_VGPU_TYPE)
                and _full(kernel, step.action)
            ):
                kernel.apply(step.action)
            if step.action.kind is ActionKind.CLEAR_VGPU_TYPE:
                made.pop(step.action.address)
    raise AssertionError(f"no end after {TURNS} turns")


def _full(kernel: ModelKernel, action: Action) -> bool:
    """True if the room has gone since the plan: VFs of one card share it. Who applies looks first."""
    here = kernel.host()
    if action.kind is ActionKind.SET_VGPU_TYPE:
        function = next(each for each in here.functions.values() if each.address == action.address)
        return action.type_id not in dict(function.vgpu_types)
    types = here.mdev_parents[action.parent]
    return not any(kind.type_id == action.type_id and kind.available for kind in types)


def result(kernel: ModelKernel) -> dict[str, tuple[str, int]]:
    """Card → its type and how many; more than one type on a card is shown as "mixed"."""
    found: dict[str, tuple[str, int]] = {}
    for card in kernel.cards:
        types = [kind for parent, kind in kernel.instances.values() if parent in card.parents]
        if types:
            found[card.address] = (types[0] if len(set(types)) == 1 else "mixed", len(types))
    return found


def short(kernel: ModelKernel) -> list[str]:
    """The result in address order of the cards, as "16×222"; "-" for an empty card."""
    found = result(kernel)
    told = (found.get(card.address) for card in sorted(kernel.cards, key=lambda card: card.address))
    return ["-" if each is None else f"{each[1]}×{each[0].removeprefix('nvidia-')}" for each in told]


def adopting(wish: MdevSpec) -> MdevSpec:
    """The same wish, with the right to foreign instances."""
    return wish._replace(adopt=True)


def vgpu_card(bus: str = "81") -> Card:
    """A card of the vendor-specific framework: four VFs, types by number."""
    types = tuple(Type(kind.id.removeprefix("nvidia-"), kind.most, kind.name) for kind in T4_TYPES[:4])
    return Card(
        f"0000:{bus}:00.0", types, tuple(f"0000:{bus}:00.{number}" for number in (4, 5, 6, 7)), vgpu=True
    )
