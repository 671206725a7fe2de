# SPDX-License-Identifier: Apache-2.0
"""Compares two Statuses and returns the Kubernetes Events that are due: reason, text, and pod. Pure.

``events`` compares each Status with the previous one, and sends the Events. If both Statuses have the same
problem, there is no Event for it. A device that is Unhealthy only until a pod ends causes no Event: otherwise
each start of a VM would cause one. An unreachable API server causes no Event: otherwise all nodes would send
one when the server answers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.model.ids import pci_address
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.resource import ReasonCode
from nodeagent.model.status import (
    CardStatus,
    ChangesStatus,
    DeviceStatus,
    HolderStatus,
    ResourceStatus,
    Status,
)

FEW = 3  # Events of one reason that are sent one by one
CREATES = frozenset({"create-mdev", "set-vgpu-type"})  # as in model.change, which few nodes load
REMOVES = frozenset({"remove-mdev", "clear-vgpu-type"})
_DEVICE, _CONFIGURATION = "device", "configuration"
_MORE = "nodeagent status on the node lists all of them, with what to do"


class EventReason(NamedTuple):
    """A reason by which Events are filtered (``kubectl get events --field-selector reason=…``); see
    docs/events.md.

    ``everywhere``: the cause reaches all nodes at once, so each node waits for a random time.
    """

    name: str
    warning: bool = False
    everywhere: bool = False


DEVICE_UNHEALTHY = EventReason("DeviceUnhealthy", warning=True)
DEVICE_HEALTHY = EventReason("DeviceHealthy")
DEVICE_REMOVED = EventReason("DeviceRemoved")
GROUP_CONFLICT = EventReason("GroupConflict", warning=True)
MDEV_CREATED = EventReason("MdevCreated")
MDEV_REMOVED = EventReason("MdevRemoved")
CHANGE_WAITING = EventReason("ChangeWaiting")
CHANGE_FAILED = EventReason("ChangeFailed", warning=True)
DESIRED_STATE_UNMET = EventReason("DesiredStateUnmet", warning=True)
CONFIGURATION_REFUSED = EventReason("ConfigurationRefused", warning=True, everywhere=True)
CONFIGURATION_ACCEPTED = EventReason("ConfigurationAccepted", everywhere=True)
CR_ENTRY_REFUSED = EventReason("CREntryRefused", warning=True, everywhere=True)
CR_NOT_IN_FORCE = EventReason("CRNotInForce", warning=True, everywhere=True)
VIRT_HANDLER_CONFLICT = EventReason("VirtHandlerConflict", warning=True, everywhere=True)
STALE_REMOVED = EventReason("StaleResourceRemoved")


class NodeEvent(NamedTuple):
    """An Event about the Node, or about ``pod`` (``namespace/name``). ``hint``: what to do, or ""."""

    reason: EventReason
    text: str
    hint: str = ""
    pod: str = ""

    @property
    def message(self) -> str:
        """The text of the Event, followed by its hint."""
        return f"{self.text}; {self.hint}" if self.hint else self.text

    def has_cause_of(self, other: NodeEvent | None) -> bool:
        """True if both Events are equal except for the hint: a changed hint alone causes no new Event."""
        return other is not None and self._replace(hint="") == other._replace(hint="")


Causes = dict[tuple[str, ...], NodeEvent]
"""The causes of Events, by a key that stays the same from one Status to the next."""


def diff(before: Status, now: Status) -> list[NodeEvent]:
    """The Events for problems that have begun, changed or ended, and for removed devices and resources."""
    old, new = find_causes(before), find_causes(now)
    begun = (event for key, event in new.items() if not event.has_cause_of(old.get(key)))
    ended = (event for key in old if key not in new for event in _ended(key, now))
    return [*begun, *ended, *_unlisted(before, now), *_removed_counts(before, now)]


def find_lasting(before: Status, now: Status) -> list[NodeEvent]:
    """The warnings of the Status ``before`` whose causes still exist."""
    new = find_causes(now)
    warnings = {key: event for key, event in find_causes(before).items() if event.reason.warning}
    return [new[key] for key, event in warnings.items() if event.has_cause_of(new.get(key))]


def compare_cards(before: ChangesStatus, now: ChangesStatus) -> tuple[list[NodeEvent], ChangesStatus]:
    """The Events for mdevs that nodeagent created or removed, and the ChangesStatus for the next comparison.

    While a change is in progress, and until the cards show all mdevs, the returned ChangesStatus is
    ``before``, so that all mdevs of a card cause one Event.
    """
    if now.in_progress:
        return [], before
    events: list[NodeEvent] = []
    created, removed = (_count(now, kinds) - _count(before, kinds) for kinds in (CREATES, REMOVES))
    if removed > 0:
        gone = _additional(now.cards, before.cards)
        events += (NodeEvent(MDEV_REMOVED, f"{card}: {n} x {type_} removed") for card, type_, n in gone)
    if created > 0:
        new = _additional(before.cards, now.cards)
        events += (NodeEvent(MDEV_CREATED, f"{card}: {n} x {type_} created") for card, type_, n in new)
    shown = events or not (created or removed)
    return events, now if shown else before


def fold(events: Iterable[NodeEvent]) -> list[NodeEvent]:
    """Combine more than ``FEW`` Events of one reason, about the Node or one pod, into one Event."""
    by_reason: dict[tuple[str, str], list[NodeEvent]] = {}
    for event in dict.fromkeys(events):
        by_reason.setdefault((event.reason.name, event.pod), []).append(event)
    folded: list[NodeEvent] = []
    for same in by_reason.values():
        if len(same) > FEW:
            named = "; ".join(event.text for event in same[:FEW])
            hint = _MORE if same[0].reason.warning else ""
            same = [same[0]._replace(text=f"{named}; and {len(same) - FEW} more", hint=hint)]
        folded += same
    return folded


def find_causes(status: Status) -> Causes:
    """All causes of Events (problems, waiting changes, …) in a Status."""
    causes: Causes = {}
    for key, event in (*_devices(status), *_changes(status), *_settings(status)):
        causes.setdefault(key, event)
    return causes


def _devices(status: Status) -> Iterator[tuple[tuple[str, ...], NodeEvent]]:
    """Unhealthy devices: an Event on the Node, and one on the pod that uses the device."""
    pods = _pods_of_groups(status)
    for resource in status.resources:
        for device in resource.devices:
            holder = _holder(resource.name, device.id, status)
            shared = holder is not None and len(pods.get(device.id, ())) > 1
            if device.healthy or (device.reason == ReasonCode.GROUP_HELD and not shared):
                continue
            conflict = shared or device.reason == ReasonCode.GROUP_NOT_VIABLE
            reason = GROUP_CONFLICT if conflict else DEVICE_UNHEALTHY
            event = NodeEvent(reason, f"{resource.name}: {device.id}: {device.message}", device.hint or "")
            yield (_DEVICE, resource.name, device.id, ""), event
            if holder is not None:
                yield (_DEVICE, resource.name, device.id, holder.pod), event._replace(pod=holder.pod)


def _holder(resource: str, device_id: str, status: Status) -> HolderStatus | None:
    """The pod that uses this device of this resource, if its name is known."""
    found = status.holders.get(device_id)
    if found is None or found.claim or found.resource != resource:
        return None
    return found if "/" in found.pod else None


def _pods_of_groups(status: Status) -> Mapping[str, frozenset[str]]:
    """Device → the pods, by name, that use devices of its IOMMU group."""
    found: dict[str, frozenset[str]] = {}
    for group in status.groups:
        ids = [member.device for member in group.members if member.device in status.holders]
        pods = frozenset(status.holders[each].pod for each in ids if each is not None)
        found |= {each: pods for each in ids if each is not None}
    return found


def _changes(status: Status) -> Iterator[tuple[tuple[str, ...], NodeEvent]]:
    """Changes of the host that wait, fail or hang, and desired mdevs that cannot be created on this node."""
    changes = status.changes
    for waiting in changes.waiting:
        text = f"{waiting.card}: waiting to {waiting.action}: {waiting.message}"
        yield ("waiting", waiting.card, waiting.action), NodeEvent(CHANGE_WAITING, text)
    for failing in changes.failing:
        event = NodeEvent(CHANGE_FAILED, f"{failing.card}: {failing.message}", failing.hint)
        yield ("failing", failing.card, failing.type or ""), event
    for action in changes.stuck:
        yield ("late", action), NodeEvent(CHANGE_FAILED, f"the kernel does not answer: {action}")
    for problem in changes.problems:
        yield _refusal(problem, DESIRED_STATE_UNMET)


def _settings(status: Status) -> Iterator[tuple[tuple[str, ...], NodeEvent]]:
    """An invalid configuration, and parts of the KubeVirt CR that are not in force."""
    if (wrong := status.configuration.problem) is not None:
        yield (
            (_CONFIGURATION,),
            NodeEvent(CONFIGURATION_REFUSED, wrong.message, wrong.hint.partition("\n")[0]),
        )
    for line in status.cluster.warnings:
        if "KubeVirt CR" in line:
            yield ("cr", line), NodeEvent(CR_NOT_IN_FORCE, line)
    for problem in status.cluster.refused:
        yield _refusal(problem, CR_ENTRY_REFUSED)


def _refusal(problem: Problem, reason: EventReason) -> tuple[tuple[str, ...], NodeEvent]:
    """The Event for desired state that is not in force; a conflict with virt-handler has its own reason."""
    reason = VIRT_HANDLER_CONFLICT if problem.code == ProblemCode.VIRT_HANDLER else reason
    return ("line", problem.message), NodeEvent(reason, problem.message, problem.hint)


def _ended(key: tuple[str, ...], now: Status) -> Iterator[NodeEvent]:
    """The Event for the end of a cause, if there is one."""
    if key[0] == _CONFIGURATION:
        yield NodeEvent(CONFIGURATION_ACCEPTED, "the configuration is valid again")
    if key[0] != _DEVICE:
        return
    _, resource, device_id, pod = key
    holder = _holder(resource, device_id, now)
    if pod and (holder is None or holder.pod != pod):
        return  # the pod has ended
    for listed, device in _listed(now):
        if (listed.name, device.id) == (resource, device_id):
            state = "is Healthy" if device.healthy else f"can be allocated again later: {device.message}"
            yield NodeEvent(DEVICE_HEALTHY, f"{resource}: {device_id} {state}", pod=pod)


def _unlisted(before: Status, now: Status) -> Iterator[NodeEvent]:
    """The PCI functions that no resource lists any more; ``compare_cards`` does the same for mdevs."""
    ids = {device.id for _, device in _listed(now)}
    for resource, device in _listed(before):
        if device.id not in ids and pci_address(device.id) is not None:
            yield NodeEvent(DEVICE_REMOVED, f"{resource.name}: {device.id} is no longer listed")


def _removed_counts(before: Status, now: Status) -> Iterator[NodeEvent]:
    """Stale resources whose counts nodeagent has removed from the Node."""
    for name in now.cluster.stale_removed:
        if name not in before.cluster.stale_removed:
            yield NodeEvent(STALE_REMOVED, f"{name}: removed from the Node, which listed it with 0 devices")


def _listed(status: Status) -> Iterator[tuple[ResourceStatus, DeviceStatus]]:
    return ((resource, device) for resource in status.resources for device in resource.devices)


def _count(changes: ChangesStatus, kinds: frozenset[str]) -> int:
    return sum(result.made for result in changes.results if result.kind in kinds)


def _additional(fewer: Iterable[CardStatus], more: Iterable[CardStatus]) -> Iterator[tuple[str, str, int]]:
    """Each card with its vGPU types and new mdevs; if its types have changed, all mdevs count as new."""
    known = {card.card: card for card in fewer}
    for card in more:
        other = known.get(card.card)
        number = card.instances
        if other is not None and {*card.types} & {*other.types}:
            number -= other.instances
        if number > 0 and card.types:
            yield card.card, ", ".join(card.types), number
