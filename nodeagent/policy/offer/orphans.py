# SPDX-License-Identifier: Apache-2.0
"""Orphans: devices that a pod holds under a resource that would not list them any more. Pure.

The device has gone, or something else takes it now. Dropping such an id can crash the kubelet (seen on
1.36.2), so it stays listed as Unhealthy until it is released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodeagent.model.allocation import Holder, Possession
from nodeagent.model.desired import DirectRule
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import DeviceId, ResourceName, mdev_uuid, pci_address, usb_id
from nodeagent.model.resource import Device, Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import selectors
from nodeagent.policy.offer import health, kinds, units
from nodeagent.policy.offer.checks.inputs import ANY_USE

Orphans = Mapping[ResourceName, tuple[Device, ...]]
"""By resource, in the order of a list; no resource has an empty tuple."""


def renewed(
    before: Orphans, snapshot: Snapshot, asked: frozenset[str], orphaned: Callable[[str, Holder], bool]
) -> Orphans:
    """The orphans after something has changed for these ids; what stays equal is the same object as before.

    ``orphaned`` says whether the resource of a holder is served, but would not list the id.
    """
    came: dict[ResourceName, list[Device]] = {}
    for (_, device_id), holder in _getters(asked, snapshot).items():
        if orphaned(device_id, holder):
            came.setdefault(holder.resource, []).append(device(device_id, holder, snapshot))
    result: dict[ResourceName, tuple[Device, ...]] = {}
    for name in before.keys() | came.keys():
        stayed = [each for each in before.get(name, ()) if each.id not in asked]
        listed = units.in_order([*stayed, *came.get(name, ())])
        if listed:
            result[name] = listed
    return before if result == before else result


def _getters(ids: frozenset[str], snapshot: Snapshot) -> dict[Possession, Holder]:
    """Which pods have these ids by themselves, each id of a resource once."""
    tables = (*snapshot.allocations.table.values(), snapshot.reservations.pending)
    got = (
        (each, table[each]) for table in tables for each in ids if each in table and not table[each].brought
    )
    return {(holder.resource, each): holder for each, holder in got}


def device(device_id: str, holder: Holder, snapshot: Snapshot) -> Device:
    """An orphan, with the Reason why its resource would not list it."""
    host_device = snapshot.host.device(device_id)
    if host_device is None:
        of_a_kind = any(of_kind(device_id) is not None for of_kind in (pci_address, mdev_uuid, usb_id))
        ours = of_a_kind or _direct(holder, snapshot)
        return Device(DeviceId(device_id), _gone(holder) if ours else _excluded(holder), holder.numa)
    reason = health.reason(host_device, units.unit_at(units.unit_of(host_device), snapshot), ANY_USE)
    left = _other_type(host_device, holder, snapshot) or _excluded(holder)
    return Device(DeviceId(device_id), reason or left, units.numa(host_device, snapshot))


def _other_type(host_device: HostDevice, holder: Holder, snapshot: Snapshot) -> Reason | None:
    """Why a rule by type does not offer the device any more, if it is for its type."""
    type_id = kinds.of(host_device).type_of(host_device)
    rules = [rule for rule in snapshot.desired.rules if rule.name == holder.resource]
    if type_id is None or not rules:
        return None
    if any(selectors.picks(rule, host_device, snapshot.names) for rule in rules):
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type is {type_id} now, which {holder.resource} does not offer, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )


def _direct(holder: Holder, snapshot: Snapshot) -> bool:
    """True if a rule of that name is still there, and would list the device if that were."""
    rules = (rule for rule in snapshot.desired.rules if rule.name == holder.resource)
    return any(isinstance(rule, DirectRule) and rule.each_alone for rule in rules)


def _gone(holder: Holder) -> Reason:
    pod = holder if holder.named else "that pod"
    return Reason(
        ReasonCode.GONE,
        f"it is no longer on the host, and {holder} still has it",
        f"stop {pod}; re-plug it or look at the kernel log if it should be there",
    )


def _excluded(holder: Holder) -> Reason:
    return Reason(
        ReasonCode.EXCLUDED,
        f"no rule offers it under this name any more, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )
