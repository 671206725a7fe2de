# SPDX-License-Identifier: Apache-2.0
"""What a rule takes on this node, and why it refuses all else, counted. Pure.

Bridges do not count: nobody is asked for them. What a rule says is what the daemon hears from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.model.desired import DeviceRule, DirectRule, Rule, UsbRule
from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import selectors
from nodeagent.policy.offer import direct, kinds, matches
from nodeagent.policy.offer.turn import Decision


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """A rule, the ids of what it takes, and why it refuses other devices of its kind → how many."""

    rule: Rule
    takes: tuple[str, ...] = ()
    refuses: Mapping[str, int] = field(default_factory=dict)


def named(name: str, decision: Decision) -> tuple[RuleExplanation, ...]:
    """The rules of that resource, in the order of asking."""
    return tuple(explain(rule, decision) for rule in decision.snapshot.desired.rules if rule.name == name)


def at(place: str, decision: Decision) -> RuleExplanation | None:
    """The rule that begins at that place ("config.yaml:12", the folder may be given, too); None without."""
    places = (place, place.rpartition("/")[2])
    found = (rule for rule in decision.snapshot.desired.rules if rule.place in places)
    return next((explain(rule, decision) for rule in found), None)


def explain(rule: Rule, decision: Decision) -> RuleExplanation:
    """What becomes of all devices of its kind by the rule; that of nodes has their paths."""
    if isinstance(rule, DirectRule):
        return RuleExplanation(rule, direct.of(rule).takes(rule, decision.snapshot))
    said = [(each.id, _says(rule, each, decision)) for each in _asked_for(rule, decision)]
    takes = tuple(device_id for device_id, refusal in said if refusal is None)
    refuses = Counter(refusal for _, refusal in said if refusal is not None)
    return RuleExplanation(rule, takes, dict(refuses.most_common()))


def _asked_for(rule: DeviceRule, decision: Decision) -> Iterator[HostDevice]:
    for each in decision.snapshot.host.devices():
        never = each.bridge if isinstance(each, PciFunction) else isinstance(each, UsbDevice) and each.hub
        if not never and kinds.of(each).rule is type(rule):
            yield each


def _says(rule: DeviceRule, host_device: HostDevice, decision: Decision) -> str | None:
    """Why the rule refuses the device, the same words for all alike; None if it takes it."""
    snapshot = decision.snapshot
    unwanted = selectors.unwanted(rule, host_device, snapshot.names)
    if unwanted is not None:
        return unwanted
    if isinstance(rule, UsbRule):
        return _says_of_usb(rule, host_device, decision)
    group = snapshot.host.groups.get(host_device.group) if host_device.group is not None else None
    for other, refusal in matches.verdicts(host_device, group, snapshot.desired, snapshot.names):
        if other == rule and other.place == rule.place:
            return refusal
        if refusal is None:
            return "discovery takes it" if other is None else f"{label(other)} takes it before"
    return None


def _says_of_usb(rule: UsbRule, host_device: HostDevice, decision: Decision) -> str | None:
    """Who has it is not told by the device alone: a set may be whole or not."""
    offer = decision.offer_with(host_device.id)
    if offer is None:
        return matches.INCOMPLETE
    taken = offer.match.rule == rule and offer.match.rule.place == rule.place
    return None if taken else f"{label(offer.match.rule)} takes it before"


def label(rule: Rule) -> str:
    """A rule with its place, as people find it."""
    return f"rule {rule.name} ({rule.place})" if rule.place else f"rule {rule.name}"
