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
from nodeagent.model.desired import API_VERSION
from nodeagent.model.remark import Remark
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


class CardTypeAnswer(NamedTuple):
    """A type of mdevs or vGPUs: how many of it exist, and how many more fit at the most."""

    id: str
    name: str | None
    instances: int
    room: int


class CardInstanceAnswer(NamedTuple):
    """An mdev or vGPU; ``made_by``: nodeagent, mdevctl or others, null if that is not known.

    ``dead``: it has no driver. ``leaving``: its removal waits for whoever uses it.
    """

    id: str
    parent: str
    type: str | None
    made_by: str | None
    holder: str | None
    dead: bool
    leaving: bool


class SplitAnswer(NamedTuple):
    """A card that is split: what fits on it, and what exists."""

    card: str
    types: tuple[CardTypeAnswer, ...]
    instances: tuple[CardInstanceAnswer, ...]


class DeviceAnswer(NamedTuple):
    """All that decides about one device.

    ``to_do`` is what to do for it to be given. ``healthy`` is null if it is not offered. A PCI function has
    ``address``, ``device`` and ``vgpu_type``, an mdev ``uuid``, ``type`` and ``parent``. ``facts`` are the
    lines of the text, by their first word. A card that is split has ``split``.
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
    split: SplitAnswer | None = None


class ListedAnswer(NamedTuple):
    """A device as the kubelet is told of it, and the pod that has it by this resource."""

    id: str
    healthy: bool
    reason: ReasonAnswer | None
    holder: str | None


class TakingAnswer(NamedTuple):
    """A rule and what it takes on this node; why it refuses other devices of its kind → how many."""

    resource: str
    device_kind: str
    place: str
    takes: tuple[str, ...]
    refuses: Mapping[str, int]


class PossibilityAnswer(NamedTuple):
    """What could give a resource a device, and what is missing for that."""

    what: str
    missing: str


class ResourceAnswer(NamedTuple):
    """A resource: how many there are, who has which, and what cannot be given and why.

    ``free`` is null while nobody knows who holds what, ``registered`` where no daemon was asked.
    ``possibilities`` are there if it has no device.
    """

    resource: str
    device_kind: str
    capacity: int
    allocatable: int
    free: int | None
    registered: bool | None
    registration_error: str | None
    devices: tuple[ListedAnswer, ...]
    rules: tuple[TakingAnswer, ...]
    possibilities: tuple[PossibilityAnswer, ...]


class GroupMemberAnswer(NamedTuple):
    """What is in a group, and what becomes of it, in words; ``role`` is what a function means for VFIO."""

    id: str
    driver: str | None
    role: str
    resource: str | None
    fate: str
    holder: str | None


class GroupAnswer(NamedTuple):
    """An IOMMU group; ``viable``: VFIO may have it, ``node``: /dev/vfio/NUMBER exists."""

    number: int
    viable: bool
    node: bool
    members: tuple[GroupMemberAnswer, ...]


class PodResourceAnswer(NamedTuple):
    """What a pod has of one resource, and what its container gets for it.

    ``ours`` is false if another device plugin gave it. ``gone`` are ids that the resource lists no more.
    """

    resource: str
    ours: bool
    devices: tuple[ListedAnswer, ...]
    gone: tuple[str, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    cdi: tuple[str, ...]


class PodAnswer(NamedTuple):
    """All devices of a pod, by resource."""

    pod: str
    resources: tuple[PodResourceAnswer, ...]


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
    reason: ReasonAnswer | None


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


KINDS: Mapping[str, type] = {
    "Status": Status,
    "Plan": PlanAnswer,
    "DryRun": DryRunAnswer,
    "DeviceExplanation": DeviceAnswer,
    "CardExplanation": SplitAnswer,
    "ResourceExplanation": ResourceAnswer,
    "RuleExplanation": TakingAnswer,
    "GroupExplanation": GroupAnswer,
    "PodExplanation": PodAnswer,
    "MachineExplanation": MachineAnswer,
    "Settings": SettingsAnswer,
    "ClusterCheck": AccessAnswer,
}
"""Each kind of document but Host, which ``model.host_json`` writes."""
_NAMES = {record: name for name, record in KINDS.items()}


def heading(record: type) -> dict[str, str]:
    """What the document of such a record begins with."""
    return {"apiVersion": API_VERSION, "kind": _NAMES[record]}


def beside_host(fates: Iterable[Fate], remarks: Iterable[Remark]) -> dict[str, Any]:
    """What ``scan`` adds to a saved host, for which it means nothing: what became of the devices there."""
    return {"fates": list(map(plain.dump, fates)), "remarks": list(map(plain.dump, remarks))}


def document(answer: Any) -> dict[str, Any]:
    """The plain data of one of these records, with its version and kind."""
    return heading(type(answer)) | plain.dump(answer)
