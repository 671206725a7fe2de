# SPDX-License-Identifier: Apache-2.0
"""Which rule takes which USB devices: one by one, or in sets of which no part may be missing. Pure.

All USB devices are one unit of decision, for a set is made of any of them. Rules go in their order, each
selector of a set takes the first free device, the one that was plugged in first, and what can be given goes
before what cannot; and a rule makes sets for as long as it finds whole ones. What a pod was given together
stays together.
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
from nodeagent.policy.offer import behind, usb_health
from nodeagent.policy.offer.matches import Match

NOBODY: Mapping[str, Holder] = MappingProxyType({})
Taken = tuple[tuple[UsbDevice, ...], Match]
"""What one Device stands for, the first of which names it; and the rule that takes it."""


def taken(
    devices: Sequence[UsbDevice], snapshot: Snapshot, in_containers: Mapping[str, Holder] = NOBODY
) -> Iterator[Taken]:
    """All that rules take of these devices; some are ``in_containers``."""
    free = {each.id: each for each in sorted(devices, key=_in_order) if _may_be_given(each)}
    had = _had(free, snapshot).union(in_containers)
    for rule in snapshot.spec.rules:
        if isinstance(rule, UsbRule):
            match = Match(ResourceName(rule.name), rule)
            for members in _found(rule, free, had, snapshot):
                for each in members:
                    del free[each.id]
                yield members, match


def in_containers(snapshot: Snapshot) -> Mapping[str, Holder]:
    """The USB devices of which pods have nodes, and who that is.

    By the answers of before, whatever the rules say by now, and by the rules for nodes and CDI kinds: an
    answer with names does not tell the nodes. Of a USB device whose loan is not on record any more the answer
    has the nodes as well.
    """
    host, answered = snapshot.host, snapshot.allocations.nodes
    by_rule = _by_rule(snapshot)
    found: dict[str, Holder] = {}
    for device_id, holder in snapshot.held() if by_rule or answered else ():
        lent = device_id in snapshot.loans  # which tell by which number it was given
        given = () if lent else answered.get(holder.resource, {}).get(device_id, ())
        by_now = by_rule.get(holder.resource, {}).get(device_id, ())
        nodes = [each for each in by_now if not given or each.real in given]
        nodes += [host.dev_nodes.get(path) or DevNode(path) for path in given]
        found |= {each.id: holder for node in nodes for each in behind.usb(node, host)}
    return found


def were_in_containers(had: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """The USB devices of which pods had nodes that ``had`` these ids, and these nodes by path."""
    by_rule = _by_rule(snapshot).values()
    nodes = [DevNode(each) for each in had]
    nodes += [node for each in had for known in by_rule for node in known.get(each, ())]
    return frozenset(device.id for node in nodes for device in behind.usb(node, snapshot.host))


def _by_rule(snapshot: Snapshot) -> dict[str, Mapping[str, Sequence[DevNode]]]:
    """The nodes of each device of a rule for nodes or CDI devices, by resource and id."""
    found: dict[str, Mapping[str, Sequence[DevNode]]] = {}
    for rule in snapshot.spec.rules:
        if isinstance(rule, CdiRule):
            from nodeagent.policy.offer import cdi_rules

            found[rule.name] = cdi_rules.nodes(rule, snapshot)
        elif isinstance(rule, NodeRule):
            from nodeagent.policy.offer import node_rules

            found[rule.name] = node_rules.nodes(rule, snapshot)
    return found


def _had(devices: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """Those that pods have, alone or in a set. A loan is on record a moment longer than that."""
    complete = snapshot.allocations.complete
    live = [loans for head, loans in snapshot.loans.items() if snapshot.holder(head) or not complete]
    return frozenset(
        (
            *(each for each in devices if snapshot.holder(each) is not None),
            *(loan.id for loans in live for loan in loans),
        )
    )


def _in_order(device: UsbDevice) -> tuple[int, int, str]:
    return device.number or 0, device.bus or 0, device.id


def _may_be_given(device: UsbDevice) -> bool:
    return not device.hub and device.vendor is not None


def _found(
    rule: UsbRule, left: Mapping[str, UsbDevice], had: Collection[str], snapshot: Snapshot
) -> Iterator[tuple[UsbDevice, ...]]:
    """One after the other; what was found is taken out of what is left before the next is looked for."""
    if not rule.bundle:
        yield from [(each,) for each in left.values() if selectors.picks(rule, each)]
        return
    yield from _lent(rule, left, snapshot)
    while members := _next_set(rule, sorted(left.values(), key=lambda each: not _usable(each, rule, had))):
        yield members


def _usable(device: UsbDevice, rule: UsbRule, had: Collection[str]) -> bool:
    """True if nobody has it, and the host can do without it."""
    return device.id not in had and device.present and usb_health.host_use(device, rule.force) is None


def _lent(
    rule: UsbRule, free: Mapping[str, UsbDevice], snapshot: Snapshot
) -> Iterator[tuple[UsbDevice, ...]]:
    """The sets that pods have of this resource, as far as all of them is there, then what is being given."""
    for head, loans in sorted(snapshot.loans.items(), key=lambda each: snapshot.holder(each[0]) is None):
        holder = snapshot.holder(head)
        if holder is None or holder.resource == rule.name:
            members = _members(loans, free)
            if members and _fits(rule, members):
                yield members


def _members(loans: Iterable[Loan], free: Mapping[str, UsbDevice]) -> tuple[UsbDevice, ...]:
    found = [free.get(loan.id) for loan in loans]
    return tuple([each for each in found if each is not None]) if None not in found else ()


def _fits(rule: UsbRule, members: Sequence[UsbDevice]) -> bool:
    """True if the members, in their order, are what the selectors name."""
    pairs = zip(rule.selectors, members, strict=False)
    return len(members) == len(rule.selectors) and all(selectors.fits(*pair, {}) for pair in pairs)


def _next_set(rule: UsbRule, free: Iterable[UsbDevice]) -> tuple[UsbDevice, ...]:
    """The first free device for each selector; () if one finds none."""
    members: dict[str, UsbDevice] = {}
    left = list(free)
    for selector in rule.selectors:
        fitting = (each for each in left if each.id not in members and selectors.fits(selector, each, {}))
        found = next(fitting, None)
        if found is None:
            return ()
        members[found.id] = found
    return tuple(members.values())
