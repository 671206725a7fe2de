# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer to programs about what there is, as records; their plain form is a contract.

Keys may be added, with a default, and none is renamed. What an answer means stands with what it was made of,
not here. What would change is told by ``plan_answers``, which documents there are by ``documents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nodeagent.model.access import Check
from nodeagent.model.readiness import ReadinessLine


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


class ReadinessAnswer(NamedTuple):
    """Whether this host can give devices to virtual machines: what was looked at, line by line.

    ``well`` is false if a line is wrong. What is unseen may be either.
    """

    well: bool
    lines: tuple[ReadinessLine, ...]
