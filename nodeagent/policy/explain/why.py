# SPDX-License-Identifier: Apache-2.0
"""Explains why a device is not offered, and the verdict of each rule. Pure.

``scan``, ``explain`` and the status page all show this one answer. If a rule or discovery would match the
device, the same checks apply as to an offered device (``policy.offer.health``): so the text is the same
before and after a rule names the device.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.host import Group, Host, HostDevice, PciFunction
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, UsbRule
from nodeagent.policy import classes, groups, naming, selectors
from nodeagent.policy.offer import discovery, health, kinds, matches, units
from nodeagent.policy.offer.health import Unit
from nodeagent.policy.offer.matches import Verdict
from nodeagent.policy.offer.turn import Decision

_NO_RULE = "no rule matches it"
_ABSENT = frozenset({ReasonCode.UNREADABLE, ReasonCode.GOING_AWAY, ReasonCode.GONE})
"""Reasons for which the device cannot be used at all, so no other reason matters."""
_REFUSED_BY_KERNEL = frozenset({ReasonCode.FIRMWARE_MAPPED, ReasonCode.NEEDS_TOKEN})
"""Reasons that neither a rule nor another driver of the device ends."""


class Why(NamedTuple):
    """Why a device is not offered, and the fix if it should be offered ("" if there is none)."""

    text: str
    hint: str = ""


class RuleVerdict(NamedTuple):
    """A rule, and its verdict on the device."""

    rule: str
    verdict: str


def why_not_offered(host_device: HostDevice, snapshot: Snapshot) -> Why:
    """Return why neither a rule nor discovery offers the device."""
    if never := kinds.find_kind(host_device).never(host_device):
        return Why(never)
    unit = units.build_unit(units.find_unit_id(host_device), snapshot)
    reason = kinds.find_reason(host_device, unit, health.ANY_USE)
    if reason is not None and reason.code in _ABSENT:
        return Why(reason.message, reason.hint)
    if isinstance(host_device, PciFunction):
        return _why_function(host_device, reason, unit, snapshot)
    kind = kinds.find_kind(host_device)
    found = _not_discovered if kind.refusal is not None else _not_matched
    return Why(found(host_device, snapshot), kind.hint(host_device))


def _not_matched(host_device: HostDevice, snapshot: Snapshot) -> str:
    """Return why no rule offers a device that discovery does not support."""
    for rule, refusal in matches.find_verdicts(host_device, None, snapshot.spec, snapshot.names):
        if isinstance(rule, UsbRule) and selectors.is_matched_by_rule(rule, host_device):
            return refusal or f"{rule.name}: {_describe_incomplete(rule, snapshot.host)}"
    return _NO_RULE


def _describe_incomplete(rule: UsbRule, host: Host) -> str:
    """Return why a USB device is in no set of a rule that matches it: some selectors match no free device."""
    missing = [
        ":".join(",".join(values) for values in selector if values)
        for selector in rule.selectors
        if not any(not each.hub and selectors.is_match(selector, each, {}) for each in host.usb.values())
    ]
    if missing:
        return (
            f"its set of USB devices is incomplete: no USB device of this node is {naming.shorten(missing)}"
        )
    return "its set of USB devices is incomplete: one of the selectors matches no free device"


def _why_function(function: PciFunction, reason: Reason | None, unit: Unit, snapshot: Snapshot) -> Why:
    settings, host = snapshot.spec.discovery, snapshot.host
    ready = groups.is_assignable(function)
    text = _not_discovered(function, snapshot, None if ready else reason)
    if not ready and (used := classes.describe_uses(function)):
        return Why(f"{text}; it is {used}")
    if reason is not None and reason.code in _REFUSED_BY_KERNEL:
        return Why(text, reason.hint)
    mdevs = sum(mdev.parent == function.address for mdev in host.mdevs.values())
    if not ready and (parts := classes.describe_children(function, mdevs)):
        text = f"it has {parts}, which are offered as separate devices"
        by_driver = reason is not None and reason.code is ReasonCode.DRIVER_CHANGED
        return Why(text, reason.hint if reason is not None and by_driver else "")
    if settings.enabled and (card := classes.find_card(function, host)) is not None:
        hint = _bind_with_card(function, card, unit)
        return Why(f"it is an audio device that goes with its card {card.address}", hint)
    steps = []
    if _class_refusal(function, settings):
        steps.append(kinds.find_kind(function).hint(function))
    if reason is not None and not ready:
        steps.append(reason.hint)
    return Why(text, "; and ".join(steps))


def _not_discovered(host_device: HostDevice, snapshot: Snapshot, reason: Reason | None = None) -> str:
    """Return why discovery does not match a device that no rule matches."""
    spec = snapshot.spec
    if not spec.discovery.enabled:
        return f"{_NO_RULE}, and {matches.OFF}"
    if reason is not None and not _class_refusal(host_device, spec.discovery):
        return reason.message
    return (
        matches.explain_undiscovered(host_device, _group(host_device, snapshot.host), spec)
        or "not decided yet"
    )


def _class_refusal(host_device: HostDevice, settings: Discovery) -> str | None:
    """Return why discovery skips the class of a function; a rule can offer it."""
    if not isinstance(host_device, PciFunction):
        return None
    return discovery.class_refusal(host_device, settings) if settings.enabled else matches.OFF


def _bind_with_card(audio: PciFunction, card: PciFunction, unit: Unit) -> str:
    """Return the fix for the audio function of a card; if the card is not ready, it names the card."""
    if not groups.is_assignable(card):
        return f"explain its card: nodeagent explain {card.address}"
    if not groups.find_blockers((audio,)):
        return ""
    return health.advise_vfio(audio, unit, f" as well as {card.address}")


def verdicts(host_device: HostDevice, decision: Decision) -> list[Verdict]:
    """Return the rules in their order up to the first that matches the device, each with its verdict."""
    snapshot, offer, asked = decision.snapshot, decision.offer_with(host_device.id), []
    group = _group(host_device, snapshot.host)
    for rule, refusal in matches.find_verdicts(host_device, group, snapshot.spec, snapshot.names):
        if refusal is None and isinstance(rule, UsbRule) and (offer is None or offer.match.rule != rule):
            refusal = _describe_incomplete(rule, snapshot.host)
        asked.append((rule, refusal))
        if refusal is None:
            break
    return asked


def describe_verdicts(host_device: HostDevice, decision: Decision) -> tuple[RuleVerdict, ...]:
    """Return each rule that was checked, and its verdict on the device as a text."""
    if never := kinds.find_kind(host_device).never(host_device):
        return (RuleVerdict("all rules", never),)
    asked = verdicts(host_device, decision)
    said = [
        RuleVerdict(label(rule.name, rule.place) if rule else "discovery", refusal or "matches it")
        for rule, refusal in asked
    ]
    if decision.offer_with(host_device.id) is not None and (not asked or asked[-1][1] is not None):
        said.append(RuleVerdict("memory", "keeps the device: an offered device stays listed while it exists"))
    return tuple(said)


def label(name: str, place: str) -> str:
    """Return the name of a rule in texts, with its file and line if known."""
    return f"rule {name} ({place})" if place else f"rule {name}"


def _group(host_device: HostDevice, host: Host) -> Group | None:
    return None if host_device.group is None else host.groups.get(host_device.group)
