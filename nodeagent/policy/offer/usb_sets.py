# SPDX-License-Identifier: Apache-2.0
"""Which rule takes which USB devices: one by one, or in sets of which no part may be missing. Pure.

All USB devices are one unit of decision, for a set is made of any of them. Rules go in their order, each
selector of a set takes the first free device, the one that was plugged in first; and a rule makes sets for as
long as it finds whole ones. What a pod was given together stays together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeagent.model.desired import Desired, UsbRule
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import Loan, UsbDevice
from nodeagent.policy import selectors
from nodeagent.policy.offer import matches
from nodeagent.policy.offer.matches import Match

Taken = tuple[tuple[UsbDevice, ...], Match]
"""What one Device stands for, the first of which names it; and the rule that takes it."""


def taken(devices: Sequence[UsbDevice], snapshot: Snapshot) -> Iterator[Taken]:
    """All that rules take of these devices."""
    free = {each.id: each for each in sorted(devices, key=_in_order) if _may_be_given(each, snapshot.desired)}
    for rule in snapshot.desired.rules:
        if isinstance(rule, UsbRule):
            match = Match(ResourceName(rule.name), rule)
            for members in _sets(rule, free, snapshot):
                yield members, match


def _in_order(device: UsbDevice) -> tuple[int, int, str]:
    return device.number or 0, device.bus or 0, device.id


def _may_be_given(device: UsbDevice, desired: Desired) -> bool:
    return not device.hub and device.vendor is not None and not matches.given_away(device, desired)


def _sets(rule: UsbRule, free: dict[str, UsbDevice], snapshot: Snapshot) -> Iterator[tuple[UsbDevice, ...]]:
    """Takes them out of those that are free."""
    if not rule.bundle:
        for device in [each for each in free.values() if selectors.picks(rule, each)]:
            yield (free.pop(device.id),)
        return
    for members in _lent(rule, free, snapshot):
        yield tuple(free.pop(each.id) for each in members)
    while members := _next_set(rule, free.values()):
        yield tuple(free.pop(each.id) for each in members)


def _lent(
    rule: UsbRule, free: Mapping[str, UsbDevice], snapshot: Snapshot
) -> Iterator[tuple[UsbDevice, ...]]:
    """The sets that pods have of this resource, as far as all of them is there."""
    for head, loans in snapshot.loans.items():
        holder = snapshot.holder(head)
        if holder is not None and holder.resource == rule.name:
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


def missing(rule: UsbRule, device: UsbDevice, lent: Mapping[DeviceId, tuple[Loan, ...]]) -> str:
    """Why a rule for sets does not take what one of its selectors picks, in words."""
    if any(loan.id == device.id for loans in lent.values() for loan in loans):
        return "the set that it was given with is not whole"
    return "its bundle is not whole: a selector finds no free device beside it"
