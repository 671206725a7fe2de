# SPDX-License-Identifier: Apache-2.0
"""What of the configuration takes nothing on this node: rules, selectors, aliases; what comes nearest. Pure.

That may be as it was meant, as one configuration is often written for many nodes. Rules of the KubeVirt CR
are for all nodes and not looked at; a rule without selectors is for ``policy.merge`` to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodeagent.model.desired import CdiRule, DeviceRule, DirectRule, MdevSelector
from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.model.problem import Problem, ProblemCode, note
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import naming, selectors
from nodeagent.policy.offer import direct, kinds, matches
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.selectors import Selector

NAMED = 3  # selectors of which one line says what comes nearest
SELECTORS = 16  # of one rule, each of which is looked at by itself: a longer list is a list of addresses
_SCAN = "nodeagent scan shows what is there"
_FOR_OTHERS = f"change it, or leave it if it is for other nodes; {_SCAN}"


def rules(decision: Decision) -> Iterator[Problem]:
    """One for each rule that takes nothing, or else for each of its selectors that does, if they are few."""
    taken: dict[str, list[HostDevice]] = {}
    for device_id, match in decision.matched.items():
        if (host_device := decision.snapshot.host.device(device_id)) is not None:
            taken.setdefault(match.resource, []).append(host_device)
    for rule in decision.snapshot.desired.rules:
        if not isinstance(rule, DirectRule) and not rule.permitted and rule.selectors:
            yield from _rule(rule, taken.get(rule.name, ()), decision)


def cdi_rules(decision: Decision) -> Iterator[Problem]:
    """One for each rule for CDI devices of which there are none here."""
    for rule in decision.snapshot.desired.rules:
        if isinstance(rule, CdiRule) and not direct.of(rule).takes(rule, decision.snapshot):
            why = f"no file in /etc/cdi or /var/run/cdi defines such a {rule.spec_kind}"
            what = f'{rule.place}: the rule "{rule.name}" takes nothing here: {why}'
            yield note(ProblemCode.IDLE_RULE, what, _FOR_OTHERS, f"{rule.name} {rule.place}".strip())


def _rule(rule: DeviceRule, taken: Sequence[HostDevice], decision: Decision) -> Iterator[Problem]:
    names = decision.snapshot.names
    chosen: Sequence[Selector] = rule.selectors
    if taken and len(chosen) > SELECTORS:
        return
    idle = {
        number: selector
        for number, selector in enumerate(chosen, 1)
        if not any(selectors.fits(selector, each, names) for each in taken)
    }
    if len(idle) == len(chosen):
        why = "; ".join(dict.fromkeys(_why(each, rule, decision) for each in list(idle.values())[:NAMED]))
        what = f'{rule.place}: the rule "{rule.name}" takes nothing here: {why}'
        yield note(ProblemCode.IDLE_RULE, what, _FOR_OTHERS, f"{rule.name} {rule.place}".strip())
        return
    for number, selector in idle.items():
        why = _why(selector, rule, decision)
        what = f'{rule.place}: selector {number} of the rule "{rule.name}" takes nothing here: {why}'
        yield note(ProblemCode.IDLE_SELECTOR, what, _FOR_OTHERS, f"{rule.name} {rule.place} {number}")


def _why(selector: Selector, rule: DeviceRule, decision: Decision) -> str:
    devices = _of_kind(rule, decision)
    names = decision.snapshot.names
    picked = [each for each in devices if selectors.fits(selector, each, names)]
    return _shadowed(picked, decision) if picked else _nearest(selector, devices, decision)


def _of_kind(rule: DeviceRule, decision: Decision) -> list[HostDevice]:
    return [
        each
        for each in decision.snapshot.host.devices()
        if kinds.of(each).rule is type(rule)
        and not (isinstance(each, PciFunction) and each.bridge)
        and not (isinstance(each, UsbDevice) and each.hub)
    ]


def _shadowed(picked: Sequence[HostDevice], decision: Decision) -> str:
    """Who has what it would take; the first of them stands for the others."""
    owners: dict[str, list[str]] = {}
    for host_device in picked:
        match = decision.matched.get(host_device.id)
        owner = "nobody" if match is None else f'the rule "{match.rule.name}"'
        place = "" if match is None or not match.rule.place else f" ({match.rule.place})"
        owners.setdefault(f"{owner}{place}", []).append(host_device.id)
    return "; ".join(f"{owner} before it has {naming.few(ids)}" for owner, ids in owners.items())


def _nearest(selector: Selector, devices: Sequence[HostDevice], decision: Decision) -> str:
    names = decision.snapshot.names
    if isinstance(selector, MdevSelector):
        offered = [each for each in _offered(decision) if selectors.fits(selector, each, names)]
        if offered:
            cards = naming.few(sorted({each.parent or "" for each in offered}))
            return f"{cards} offers the type, and has none of it; mdevs.types has some made"
        devices = [*devices, *_offered(decision)]
    near = selectors.nearest(selector, devices, names, naming.ALIKE)
    if near is None:
        return "nothing here is like it"
    nearest, why = near
    shown = nearest.id or f"what {getattr(nearest, 'parent', None)} offers"
    return f"nearest is {shown}: {why}"


def _offered(decision: Decision) -> list[Mdev]:
    """An mdev without an id for each type that could be made."""
    parents = decision.snapshot.host.mdev_parents
    return [Mdev("", parent, each.type_id, each.name) for parent, types in parents.items() for each in types]


def aliases(decision: Decision) -> Iterator[Problem]:
    """One for each alias of a name that no device here is discovered under."""
    desired, found = decision.snapshot.desired, _discovered(decision)
    given = dict(desired.aliases)
    used = {given[name] for name in given if any(by == "" for by, _ in found.get(name, ()))}
    for name, target in desired.aliases:
        if target not in used:
            what = f'the alias "{name}" renames nothing here: {_unnamed(name, found, decision)}'
            yield note(ProblemCode.IDLE_ALIAS, what, _FOR_OTHERS, name)


_Found = Mapping[str, Sequence[tuple[str, str]]]
"""Name that discovery gives → the rule that takes such a device instead ("": none does), and its id."""


def _discovered(decision: Decision) -> _Found:
    desired, names = decision.snapshot.desired, decision.snapshot.names
    found: dict[str, list[tuple[str, str]]] = {}
    for device_id, match in decision.matched.items():
        host_device = decision.snapshot.host.device(device_id)
        if host_device is not None and host_device.vendor and not isinstance(host_device, UsbDevice):
            name = matches.unaliased_name(host_device, desired, names)
            by = "" if match.resource == dict(desired.aliases).get(name, name) else match.rule.name
            found.setdefault(name, []).append((by, device_id))
    return found


def _unnamed(name: str, found: _Found, decision: Decision) -> str:
    if not decision.snapshot.desired.discovery.enabled:
        return matches.OFF
    if name in found:
        return f'the rule "{found[name][0][0]}" has {naming.few(sorted(each for _, each in found[name]))}'
    near = naming.like(name, found)
    return f'nearest is "{near[0]}"' if near else "no name here is like it"
