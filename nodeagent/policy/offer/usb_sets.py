# SPDX-License-Identifier: Apache-2.0
"""Matches rules with USB devices: one by one, or in complete sets. Pure.

All USB devices are one unit of decision, because a set may contain any of them. Rules apply in their order. A
rule builds sets of USB devices as long as free devices complete one. Each selector of a set gets the first
free device; usable devices come first, in the order in which they were plugged in. A set that is allocated to
a pod does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Loan, UsbDevice
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, NodeRule, UsbRule
from nodeagent.policy import selectors
from nodeagent.policy.offer import backing_devices, usb_health
from nodeagent.policy.offer.matches import Match

NO_HOLDERS: Mapping[str, Holder] = MappingProxyType({})
UsbMatch = tuple[tuple[UsbDevice, ...], Match]
"""The USB devices of one Device, which has the id of the first; and the rule that matches them."""


def find_matches(
    devices: Sequence[UsbDevice], snapshot: Snapshot, in_containers: Mapping[str, Holder] = NO_HOLDERS
) -> Iterator[UsbMatch]:
    """All matches of rules with these USB devices; ``in_containers``: the devices whose nodes pods use."""
    free = {each.id: each for each in sorted(devices, key=_plug_order) if _is_offerable(each)}
    in_use = _find_allocated(free, snapshot).union(in_containers)
    for rule in snapshot.spec.rules:
        if isinstance(rule, UsbRule):
            match = Match(ResourceName(rule.name), rule)
            for members in _find_sets(rule, free, in_use, snapshot):
                for each in members:
                    del free[each.id]
                yield members, match


def find_in_containers(snapshot: Snapshot) -> Mapping[str, Holder]:
    """The USB devices whose device nodes pods use, each with its pod.

    The USB devices are found by the Allocate responses in the kubelet's checkpoint, even if the rules have
    changed, and by the rules for device nodes and CDI devices, because a response with CDI names does not
    contain the device nodes. A USB device without a recorded owner is also found by the device nodes in the
    response.
    """
    host, answered = snapshot.host, snapshot.allocations.nodes
    by_rule = _find_nodes_by_rule(snapshot)
    found: dict[str, Holder] = {}
    for device_id, holder in snapshot.held() if by_rule or answered else ():
        has_loan = device_id in snapshot.loans  # with the numbers of the allocated devices
        answered_paths = () if has_loan else answered.get(holder.resource, {}).get(device_id, ())
        by_now = by_rule.get(holder.resource, {}).get(device_id, ())
        nodes = [each for each in by_now if not answered_paths or each.real in answered_paths]
        nodes += [host.dev_nodes.get(path) or DevNode(path) for path in answered_paths]
        found |= {each.id: holder for node in nodes for each in backing_devices.find_usb_devices(node, host)}
    return found


def find_formerly_in_containers(in_use: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """The USB devices with a device node in a pod; ``in_use`` has the ids and device node paths of pods."""
    by_rule = _find_nodes_by_rule(snapshot).values()
    nodes = [DevNode(each) for each in in_use]
    nodes += [node for each in in_use for known in by_rule for node in known.get(each, ())]
    return frozenset(
        device.id for node in nodes for device in backing_devices.find_usb_devices(node, snapshot.host)
    )


def _find_nodes_by_rule(snapshot: Snapshot) -> dict[str, Mapping[str, Sequence[DevNode]]]:
    """The device nodes of each device of a rule for device nodes or CDI devices, by resource and id."""
    found: dict[str, Mapping[str, Sequence[DevNode]]] = {}
    for rule in snapshot.spec.rules:
        if isinstance(rule, CdiRule):
            from nodeagent.policy.offer import cdi_rules

            found[rule.name] = cdi_rules.find_nodes(rule, snapshot)
        elif isinstance(rule, NodeRule):
            from nodeagent.policy.offer import node_rules

            found[rule.name] = node_rules.find_nodes(rule, snapshot)
    return found


def _find_allocated(devices: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """The USB devices that pods use, alone or in a set, and those at the port of an allocated device.

    The record of an allocated device (a loan) remains for a moment after its release.
    """
    complete = snapshot.allocations.complete
    several = [loans for head, loans in snapshot.loans.items() if snapshot.holder(head) or not complete]
    live = [loan for loans in several for loan in loans]
    at_ports = (usb_health.find_replacement(loan, snapshot.host.usb.values()) for loan in live)
    return frozenset(
        (
            *(each for each in devices if snapshot.holder(each) is not None),
            *(loan.id for loan in live),
            *(each.id for each in at_ports if each is not None),
        )
    )


def _plug_order(device: UsbDevice) -> tuple[int, int, str]:
    return device.number or 0, device.bus or 0, device.id


def _is_offerable(device: UsbDevice) -> bool:
    return not device.hub and device.vendor is not None


def _find_sets(
    rule: UsbRule, free: Mapping[str, UsbDevice], in_use: Collection[str], snapshot: Snapshot
) -> Iterator[tuple[UsbDevice, ...]]:
    """Yield the sets of a rule one by one; the caller removes the devices of each set from ``free``."""
    if not rule.bundle:
        yield from [(each,) for each in free.values() if selectors.is_matched_by_rule(rule, each)]
        return
    yield from _find_allocated_sets(rule, free, snapshot)
    while members := _find_next_set(
        rule, sorted(free.values(), key=lambda each: not _is_usable(each, rule, in_use))
    ):
        yield members


def _is_usable(device: UsbDevice, rule: UsbRule, in_use: Collection[str]) -> bool:
    """True if neither a pod nor the host uses the USB device."""
    return device.id not in in_use and device.present and usb_health.find_host_use(device, rule.force) is None


def _find_allocated_sets(
    rule: UsbRule, free: Mapping[str, UsbDevice], snapshot: Snapshot
) -> Iterator[tuple[UsbDevice, ...]]:
    """The complete sets of this resource that pods use, then the sets that are being allocated."""
    for head, loans in sorted(snapshot.loans.items(), key=lambda each: snapshot.holder(each[0]) is None):
        holder = snapshot.holder(head)
        if holder is None or holder.resource == rule.name:
            members = _find_members(loans, free)
            if members and _is_match(rule, members):
                yield members


def _find_members(loans: Iterable[Loan], free: Mapping[str, UsbDevice]) -> tuple[UsbDevice, ...]:
    found = [free.get(loan.id) for loan in loans]
    return tuple([each for each in found if each is not None]) if None not in found else ()


def _is_match(rule: UsbRule, members: Sequence[UsbDevice]) -> bool:
    """True if each device of the set matches the selector at the same position."""
    pairs = zip(rule.selectors, members, strict=False)
    return len(members) == len(rule.selectors) and all(selectors.is_match(*pair, {}) for pair in pairs)


def _find_next_set(rule: UsbRule, free: Iterable[UsbDevice]) -> tuple[UsbDevice, ...]:
    """The first free USB device for each selector; () if a selector matches no free device."""
    members: dict[str, UsbDevice] = {}
    free = list(free)
    for selector in rule.selectors:
        fitting = (each for each in free if each.id not in members and selectors.is_match(selector, each, {}))
        found = next(fitting, None)
        if found is None:
            return ()
        members[found.id] = found
    return tuple(members.values())
