# SPDX-License-Identifier: Apache-2.0
"""Plan: what is to be done to the host now, what waits and what for, and how each card stands.

There is one Plan for all kinds of change. Made by ``policy.change.plan`` from a Snapshot, and good for that
Snapshot only; carried out by ``agent.changing``, printed by ``nodeagent plan``. ``ChangesStatus`` says how
far it has been carried out.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.action import Step
from nodeagent.model.allocation import Holder
from nodeagent.model.ids import GroupNumber
from nodeagent.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Instance:
    """What exists on a card: an mdev by its UUID, or a vGPU by the address of its VF.

    ``foreign`` says why nodeagent may not remove it: "not ours".
    """

    id: str
    parent: str
    type_id: str | None
    group: GroupNumber | None = None
    name: str | None = None  # of its type
    dead: bool = False  # without a driver: nobody can use it (Linux, drivers/vfio/mdev)
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
    """What becomes of one card: the type that it is for (None: none), what exists on it, and its steps."""

    address: str
    type_id: str | None
    instances: tuple[Instance, ...] = ()
    notes: tuple[str, ...] = ()  # for a person
    removals: tuple[Step, ...] = ()
    creations: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    shortfalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, what must wait, how each card stands, and what is wrong with the spec.

    A problem without a hint ends with another configuration. A SHORTFALL says how much fits on a card: while
    the card is worked on, that says nothing. ``notes`` are on types for other cards than this node has.
    """

    steps: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    cards: tuple[CardPlan, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
