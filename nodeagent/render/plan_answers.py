# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer to programs about what would change, as records; as for ``answers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.model.resource import Reason


class ExistingAnswer(NamedTuple):
    """What exists on a card; ``own``: nodeagent may remove it."""

    id: str
    parent: str
    type: str | None
    own: bool
    holder: str | None
    leaving: bool


class CardAnswer(NamedTuple):
    """A card: the type that it is for, and what exists on it."""

    address: str
    type: str | None
    exists: tuple[ExistingAnswer, ...]
    notes: tuple[str, ...]


class StepAnswer(NamedTuple):
    """A change of the host: ``details`` are what it is about, ``undo`` is what would reverse it."""

    card: str
    kind: str
    what: str
    why: str
    undo: str | None
    details: Mapping[str, Any]


class PlanAnswer(NamedTuple):
    """What would be done to the host, in that order, and what waits; ``manage``: mdevs are managed.

    ``remedies`` are what to do about a problem, by the problem. ``notes`` are on wishes for other cards.
    """

    manage: bool
    cards: tuple[CardAnswer, ...]
    steps: tuple[StepAnswer, ...]
    waiting: tuple[StepAnswer, ...]
    problems: tuple[str, ...]
    remedies: Mapping[str, str]
    notes: tuple[str, ...] = ()


class CountedAnswer(NamedTuple):
    """How many devices a resource has, and how many of them are Healthy."""

    devices: int
    healthy: int


class ResourceChangeAnswer(NamedTuple):
    """A resource whose numbers differ; null: there is no such resource."""

    name: str
    before: CountedAnswer | None
    after: CountedAnswer | None


class ListingAnswer(NamedTuple):
    """Under which resource a device is listed, and why it is Unhealthy, if it is."""

    resource: str
    reason: Reason | None


class DeviceChangeAnswer(NamedTuple):
    """A device that is listed otherwise; null: it is not listed. ``holder`` is the pod that has it now."""

    id: str
    before: ListingAnswer | None
    after: ListingAnswer | None
    holder: str | None


class SettingChangeAnswer(NamedTuple):
    """A setting of another value; ``note`` says what a person may not expect of it."""

    key: str
    before: Any
    after: Any
    note: str


class DryRunAnswer(NamedTuple):
    """What another configuration file would change; ``pods`` have devices that are listed otherwise then.

    ``plan`` is what would be done to the host with it.
    """

    file: str
    settings: tuple[SettingChangeAnswer, ...]
    resources: tuple[ResourceChangeAnswer, ...]
    devices: tuple[DeviceChangeAnswer, ...]
    pods: Mapping[str, tuple[str, ...]]
    plan: PlanAnswer
