# SPDX-License-Identifier: Apache-2.0
"""Explains rules: the devices that a rule matches, why it does not match others, and rules without a match.
Pure.

A rule, selector or alias that matches no device is reported as a note, because it may be intended: one
configuration often serves many nodes. Rules of the KubeVirt CR are for all nodes and get no note;
``policy.merge`` reports a rule without selectors and options. Bridges and hubs do not count, because no rule
can match them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nodeagent.model.host import HostDevice, Kind, Mdev
from nodeagent.model.ids import ResourceName
from nodeagent.model.problem import Problem, ProblemCode, note
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DeviceRule, DirectRule, MdevRule, MdevSelector, Rule
from nodeagent.policy import naming, selectors
from nodeagent.policy.explain import why
from nodeagent.policy.explain.why import label
from nodeagent.policy.offer import kinds, matches
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.selectors import Selector

_MOST_SHOWN = 3  # selectors for which one line names the nearest device
_MOST_SELECTORS = 16  # of a rule that matches a device: a longer list is a list of addresses
_FOR_OTHERS = "change the rule, or leave it if it is for other nodes; nodeagent scan lists the devices"


class RuleExplanation(NamedTuple):
    """A rule and the devices that it matches on this Node; ``rejects`` maps each reason for which the rule
    does not match devices to their number.

    ``note`` says of device nodes and CDI devices how they are allocated, or that none exists.
    """

    resource: str
    device_kind: str
    place: str
    matches: tuple[str, ...]
    rejects: Mapping[str, int]
    note: str = ""


def named(name: str, decision: Decision) -> tuple[RuleExplanation, ...]:
    """Return the explanations of the rules with that resource name, in their order."""
    return tuple(explain(rule, decision) for rule in decision.snapshot.spec.rules if rule.name == name)


def at(place: str, decision: Decision) -> RuleExplanation | None:
    """Return the rule at a place such as "config.yaml:12", with or without its folder, or None."""
    places = (place, place.rpartition("/")[2])
    found = (rule for rule in decision.snapshot.spec.rules if rule.place in places)
    return next((explain(rule, decision) for rule in found), None)


def explain(rule: Rule, decision: Decision) -> RuleExplanation:
    """Return for each device of the rule's kind whether the rule matches it; for a rule for device nodes,
    return the matching paths.
    """
    if isinstance(rule, DirectRule):
        takes = _matched_directly(rule, decision.snapshot)
        return RuleExplanation(rule.name, rule.kind, rule.place, takes, {}, _note(rule, takes))
    refusals = {each.id: _refusal(rule, each, decision) for each in _devices_for(rule, decision)}
    takes = tuple(device_id for device_id, refusal in refusals.items() if refusal is None)
    count = Counter(refusal for refusal in refusals.values() if refusal is not None)
    return RuleExplanation(rule.name, rule.kind, rule.place, takes, dict(count.most_common()))


def _note(rule: DirectRule, takes: Sequence[str]) -> str:
    if isinstance(rule, CdiRule):
        return "" if takes else f"no CDI file of this node defines such a {rule.spec_kind}"
    given = f"{'each ' if rule.per_path else ''}allocated to up to {rule.count} containers at once"
    return given if takes else f"there is no {rule.entries[0].path}"


def _matched_directly(rule: DirectRule, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths that a rule for nodes matches, or the names that a rule for CDI devices matches."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.find_names(rule, snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.find_paths(rule, snapshot)


def _devices_for(rule: DeviceRule, decision: Decision) -> list[HostDevice]:
    return [
        each
        for each in decision.snapshot.host.devices()
        if each.kind is rule.kind and not kinds.find_kind(each).never(each)
    ]


def _refusal(rule: DeviceRule, host_device: HostDevice, decision: Decision) -> str | None:
    """Return why the rule does not match, with one text for similar devices; None if it matches."""
    unwanted = selectors.explain_unmatched_key(rule, host_device, decision.snapshot.names)
    if unwanted is not None:
        return unwanted
    for other, refusal in why.verdicts(host_device, decision):
        if other == rule and other.place == rule.place:
            return refusal
        if refusal is None:
            return (
                "discovery matches it"
                if other is None
                else f"{label(other.name, other.place)} matches it first"
            )
    return None


def unused(decision: Decision) -> Iterator[Problem]:
    """Yield a note for each rule, selector and alias that matches no device of this node."""
    matched: dict[str, list[HostDevice]] = {}
    for device_id, match in decision.matched.items():
        if (host_device := decision.snapshot.host.device(device_id)) is not None:
            matched.setdefault(match.resource, []).append(host_device)
    for rule in decision.snapshot.spec.rules:
        if not isinstance(rule, DirectRule) and not rule.permitted:
            if rule.selectors:
                yield from _unused_selectors(rule, matched.get(rule.name, ()), decision)
            elif rule != type(rule)(rule.name):
                yield from _unused_options(rule, decision)
        elif isinstance(rule, CdiRule) and not _matched_directly(rule, decision.snapshot):
            missing = f"no file in /etc/cdi or /var/run/cdi defines such a {rule.spec_kind}"
            yield _unused(f'the rule "{rule.name}"', rule, missing)
        elif isinstance(rule, MdevRule) and rule.permitted and rule.name not in matched:
            yield from _not_made(rule, decision)
    yield from _unused_aliases(decision)


def _not_made(rule: MdevRule, decision: Decision) -> Iterator[Problem]:
    """Yield a note about vGPUs that the KubeVirt CR permits, if a card of this node could have them."""
    cards = sorted({card for each in rule.selectors for card in _find_cards(each, decision)})
    if cards:
        what = f"{rule.name} is permitted, but no such vGPU exists; supported by {naming.shorten(cards)}"
        hint = "if it is for this node, add its type to mdevs.types, or to the CR's mediatedDeviceTypes"
        yield note(ProblemCode.NOT_MADE, what, hint, rule.name)


def _unused(subject: str, rule: Rule, reason: str, number: int | None = None) -> Problem:
    code = ProblemCode.IDLE_RULE if number is None else ProblemCode.IDLE_SELECTOR
    about = " ".join(filter(None, (rule.name, rule.place, str(number or ""))))
    return note(code, f"{rule.place}: {subject} matches no device here: {reason}", _FOR_OTHERS, about)


def _unused_options(rule: DeviceRule, decision: Decision) -> Iterator[Problem]:
    """Yield a note about a rule without selectors whose options apply to no device."""
    by_name = {match.resource: match.rule for match in decision.matched.values()}
    other = by_name.get(ResourceName(rule.name))
    if other is None:
        near = naming.find_similar(rule.name, by_name)
        nearest = f'; nearest is "{near[0]}"' if near else ""
        reason = f"neither discovery nor the KubeVirt CR has devices of this name{nearest}"
        yield _unused(f'the rule "{rule.name}"', rule, reason)
    elif other.kind is not rule.kind:
        add = "; add mdev: []" if other.kind is Kind.MDEV else ""
        yield _unused(f'the rule "{rule.name}"', rule, f"the devices of this name are {other.words}{add}")


def _unused_selectors(
    rule: DeviceRule, matched: Sequence[HostDevice], decision: Decision
) -> Iterator[Problem]:
    """Yield a note about the rule if it matches no device, else about each selector that matches none."""
    names = decision.snapshot.names
    chosen: Sequence[Selector] = rule.selectors
    if matched and len(chosen) > _MOST_SELECTORS:
        return
    idle = {
        number: selector
        for number, selector in enumerate(chosen, 1)
        if not any(selectors.is_match(selector, each, names) for each in matched)
    }
    if len(idle) == len(chosen):
        shown = [_why_unused(each, rule, decision) for each in list(idle.values())[:_MOST_SHOWN]]
        yield _unused(f'the rule "{rule.name}"', rule, "; ".join(dict.fromkeys(shown)))
        return
    for number, selector in idle.items():
        subject = f'selector {number} of the rule "{rule.name}"'
        yield _unused(subject, rule, _why_unused(selector, rule, decision), number)


def _why_unused(selector: Selector, rule: DeviceRule, decision: Decision) -> str:
    """Return which earlier rule matches the devices of the selector, or else the most similar device."""
    names, devices = decision.snapshot.names, _devices_for(rule, decision)
    owners: dict[str, list[str]] = {}
    for each in devices:
        if selectors.is_match(selector, each, names):
            match = decision.matched.get(each.id)
            place = f" ({match.rule.place})" if match is not None and match.rule.place else ""
            owner = "no rule" if match is None else f'the rule "{match.rule.name}"{place}'
            owners.setdefault(owner, []).append(each.id)
    if owners:
        return "; ".join(f"{owner} before it has {naming.shorten(ids)}" for owner, ids in owners.items())
    if isinstance(selector, MdevSelector):
        if cards := _find_cards(selector, decision):
            return (
                f"no such mdev exists, but {naming.shorten(cards)} supports it; add the type to mdevs.types"
            )
        devices += _possible_mdevs(decision)
    near = selectors.find_nearest(selector, devices, names, naming.ALIKE)
    if near is None:
        return "no device here is similar"
    nearest, difference = near
    shown = nearest.id or f"a type of {getattr(nearest, 'parent', None)}"
    return f"nearest is {shown}: {difference}"


def _find_cards(selector: MdevSelector, decision: Decision) -> list[str]:
    """Return the parent devices on which an mdev that the selector matches could be created."""
    names, possible = decision.snapshot.names, _possible_mdevs(decision)
    return sorted({each.parent or "" for each in possible if selectors.is_match(selector, each, names)})


def _possible_mdevs(decision: Decision) -> list[Mdev]:
    """Return a hypothetical mdev without an id for each mdev type that could be created."""
    parents = decision.snapshot.host.mdev_parents
    return [Mdev("", parent, each.type_id, each.name) for parent, types in parents.items() for each in types]


def _unused_aliases(decision: Decision) -> Iterator[Problem]:
    spec, found = decision.snapshot.spec, _discovered_names(decision)
    aliases = dict(spec.aliases)
    used = {aliases[name] for name in aliases if any(by == "" for by, _ in found.get(name, ()))}
    for name, target in spec.aliases:
        if target not in used:
            if not spec.discovery.enabled:
                reason = matches.OFF
            elif name in found:
                ids = naming.shorten(sorted(device_id for _, device_id in found[name]))
                reason = f'the rule "{found[name][0][0]}" has {ids}'
            else:
                near = naming.find_similar(name, found)
                reason = f'nearest is "{near[0]}"' if near else "no name here is similar"
            what = f'the alias "{name}" renames nothing here: {reason}'
            yield note(ProblemCode.IDLE_ALIAS, what, _FOR_OTHERS, name)


def _discovered_names(decision: Decision) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Map each discovered name to its devices, each with the rule that matches it instead ("": none)."""
    spec, names = decision.snapshot.spec, decision.snapshot.names
    found: dict[str, list[tuple[str, str]]] = {}
    for device_id, match in decision.matched.items():
        host_device = decision.snapshot.host.device(device_id)
        if host_device is not None and kinds.find_kind(host_device).label and host_device.vendor:
            name = matches.unaliased_name(host_device, spec, names)
            by = "" if match.resource == dict(spec.aliases).get(name, name) else match.rule.name
            found.setdefault(name, []).append((by, device_id))
    return found
