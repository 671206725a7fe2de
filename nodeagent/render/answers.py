# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer to programs, as records: their plain form (``model.plain``) is a contract.

Each document says its ``apiVersion`` and ``kind``; docs/schemas has the schema of each. Keys may be added,
with a default, and none is renamed. What an answer means stands with what it was made of, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nodeagent.model import plain
from nodeagent.model.access import Check
from nodeagent.model.status import Status
from nodeagent.policy.offer.fates import Fate


class ReasonAnswer(NamedTuple):
    """Why a device is Unhealthy, and what to do."""

    code: str
    what: str
    hint: str


class MemberAnswer(NamedTuple):
    """A function of an IOMMU group, and what it means for the group."""

    address: str
    driver: str | None
    role: str


class RuleAnswer(NamedTuple):
    """A rule, and what it says of the device."""

    rule: str
    says: str


class DeviceAnswer(NamedTuple):
    """All that decides about one device.

    ``to_do`` is what to do for it to be given. ``healthy`` is null if it is not offered. A PCI function has
    ``address``, ``device`` and ``vgpu_type``, an mdev ``uuid``, ``type`` and ``parent``. ``facts`` are the
    lines of the text, by their first word.
    """

    id: str
    device_kind: str
    verdict: str
    to_do: str
    resource: str | None
    healthy: bool | None
    reason: ReasonAnswer | None
    vendor: str | None
    vendor_name: str | None
    device_name: str | None
    driver: str | None
    group: int | None
    viable: bool
    members: tuple[MemberAnswer, ...]
    rules: tuple[RuleAnswer, ...]
    env: str | None
    nodes: tuple[str, ...]
    holder: str | None
    facts: Mapping[str, str]
    address: str | None = None
    device: str | None = None
    vgpu_type: str | None = None
    uuid: str | None = None
    type: str | None = None
    parent: str | None = None


class MachineName(NamedTuple):
    """A virtual machine."""

    kind: str
    namespace: str
    name: str


class CRAnswer(NamedTuple):
    """The KubeVirt CR that a machine is judged by, and where it is from: file, api-server, daemon, record."""

    name: str
    source: str


class VmDeviceAnswer(NamedTuple):
    """A device in the specification of a machine: the list that it stands in, and its name there."""

    list: str
    name: str


@dataclass(frozen=True)  # no tuple: these have a method of the name count
class AskAnswer:
    """A resource that a machine asks for, and what its pod would get of this node."""

    resource: str
    count: int
    prospect: str
    devices: tuple[VmDeviceAnswer, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    cdi: tuple[str, ...]
    why: tuple[str, ...]


class MachineAnswer(NamedTuple):
    """Whether this node can give a machine what it asks for: now, later, others (have to), never."""

    machine: MachineName
    prospect: str
    resources: tuple[AskAnswer, ...]
    notes: tuple[str, ...]
    cr: CRAnswer | None


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

    ``remedies`` are what to do about a problem, by the problem.
    """

    manage: bool
    cards: tuple[CardAnswer, ...]
    steps: tuple[StepAnswer, ...]
    waiting: tuple[StepAnswer, ...]
    problems: tuple[str, ...]
    remedies: Mapping[str, str]


class CountedAnswer(NamedTuple):
    """How many devices a resource has, and how many of them are Healthy."""

    devices: int
    healthy: int


class ResourceChangeAnswer(NamedTuple):
    """A resource whose numbers differ; null: there is no such resource."""

    name: str
    before: CountedAnswer | None
    after: CountedAnswer | None


class ListedAnswer(NamedTuple):
    """Under which resource a device is listed, and why it is Unhealthy, if it is."""

    resource: str
    reason: ReasonAnswer | None


class DeviceChangeAnswer(NamedTuple):
    """A device that is listed otherwise; null: it is not listed. ``holder`` is the pod that has it now."""

    id: str
    before: ListedAnswer | None
    after: ListedAnswer | None
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


class SettingAnswer(NamedTuple):
    """A setting in force, and where it comes from."""

    value: Any
    source: str


class SettingsAnswer(NamedTuple):
    """The settings in force, by key, and what is odd with them."""

    settings: Mapping[str, SettingAnswer]
    warnings: tuple[str, ...]


class AccessAnswer(NamedTuple):
    """What the API server lets this node do; ``followed`` is false if the settings follow no cluster."""

    followed: bool
    user: str
    credentials: str
    well: bool
    checks: tuple[Check, ...]


class FateAnswer(NamedTuple):
    """What becomes of one device: the resource, or why it is not offered.

    ``by`` is the rule that takes it, ``code`` the Reason of an Unhealthy one.
    """

    id: str
    name: str | None
    resource: str | None
    by: str
    code: str | None
    why: str
    holder: str | None


KINDS: Mapping[str, type] = {
    "Status": Status,
    "Plan": PlanAnswer,
    "DryRun": DryRunAnswer,
    "DeviceExplanation": DeviceAnswer,
    "MachineExplanation": MachineAnswer,
    "Settings": SettingsAnswer,
    "ClusterCheck": AccessAnswer,
}
"""Each kind of document but Host, which ``model.host_json`` writes."""
_NAMES = {record: name for name, record in KINDS.items()}


def heading(record: type) -> dict[str, str]:
    """What the document of such a record begins with."""
    return {"apiVersion": plain.API_VERSION, "kind": _NAMES[record]}


def fates(found: Iterable[Fate]) -> dict[str, Any]:
    """What ``scan`` adds to a saved host, for which it means nothing: what became of each device there."""
    return {"fates": [plain.dump(FateAnswer(*fate)) for fate in found]}


def document(answer: Any) -> dict[str, Any]:
    """The plain data of one of these records, with its version and kind."""
    return heading(type(answer)) | plain.dump(answer)
