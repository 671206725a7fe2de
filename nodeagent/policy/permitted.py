# SPDX-License-Identifier: Apache-2.0
"""Splits the permitted devices of the KubeVirt CR into rules of this node and entries of virt-handler. Pure.

nodeagent advertises the devices of an entry if the entry has ``externalResourceProvider: true`` (see
``kubevirt.serve``). An entry that contradicts an earlier one (same name for other devices, same device for
another provider) is ignored; the other entries count. A rule of the configuration takes precedence over a CR
entry with the same name. If that rule has no selectors, the CR entry selects the devices, and the rule sets
their options, such as ``via``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.model.host import Kind
from nodeagent.model.problem import Problem, misconfigured, virt_handler_conflict
from nodeagent.model.spec import (
    NO_RULES,
    DirectRule,
    MdevRule,
    MdevSelector,
    PciRule,
    PciSelector,
    UsbRule,
    UsbSelector,
)
from nodeagent.policy import naming
from nodeagent.policy.contradictions import claim_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.model.configuration import Configuration
    from nodeagent.model.kubevirt import KubeVirtCR, Permitted
    from nodeagent.model.spec import BySelector, DeviceRule, Rule

EXTERNAL, ALL = "external", "all"  # values of kubevirt.serve; any other value serves no entry
SOURCE = "KubeVirt CR"
WORDS = {rule.kind: rule.words for rule in (PciRule, MdevRule, UsbRule)}
_RuleKey = tuple[Kind, str, str]
"""Kind and name; each USB entry is a rule of its own, with its place as the third part."""

_NO_OPTIONS: Mapping[tuple[Kind, str], DeviceRule] = MappingProxyType({})


class Entries(NamedTuple):
    """The CR entries of nodeagent and virt-handler, and problems. ``served``: the ``rules`` by selector."""

    rules: tuple[DeviceRule, ...] = ()
    served: BySelector = NO_RULES
    foreign: BySelector = NO_RULES
    findings: tuple[Problem, ...] = ()


def entries(cr: KubeVirtCR, configuration: Configuration) -> Entries:
    """The rules for the CR entries that nodeagent serves, in their order, and the entries of virt-handler."""
    if cr.permitted is None:
        return Entries()
    serve, listed = configuration.kubevirt.serve, cr.permitted
    foreign = [entry for entry in listed if serve != ALL and not entry.external]
    misnamed = [problem for entry in listed if (problem := _misnamed(entry)) is not None]
    places = {problem.subject for problem in misnamed}
    meant = [entry for entry in listed if _is_served(entry, serve) and entry.place not in places]
    served, refused = _sort(meant, foreign, configuration)
    rules = _rules(served, _find_options(configuration))
    return Entries(
        tuple(rules.values()),
        _by_selector(served, rules),
        _by_selector(foreign, _rules(foreign)),
        (*misnamed, *refused, *_find_conflicts(configuration, foreign), *_find_shared(serve, listed)),
    )


def _is_served(entry: Permitted, serve: str) -> bool:
    """True if the settings let nodeagent serve the entry."""
    return serve == ALL or (serve == EXTERNAL and entry.external)


def _misnamed(entry: Permitted) -> Problem | None:
    """A Problem if no plugin, not even virt-handler's, can offer a resource of this name."""
    fault = naming.find_fault(entry.resource)
    if fault is None:
        return None
    text = f'"{entry.resource}" is not a valid resource name: {fault.message}'
    return misconfigured(entry.place, text, fault.hint)


def _sort(
    meant: Sequence[Permitted], foreign: Sequence[Permitted], configuration: Configuration
) -> tuple[list[Permitted], list[Problem]]:
    """The entries that become rules, and the Problems of others; configured names need no rule."""
    own = {rule.name for rule in configuration.rules} - {name for _, name in _find_options(configuration)}
    claims = _Claims(configuration, foreign)
    served: list[Permitted] = []
    refused: list[Problem] = []
    for entry in meant:
        problem = claims.claim(entry)
        if problem is not None:
            refused.append(problem)
        elif entry.resource not in own and _selectors(entry):
            served.append(entry)
    return served, refused


class _Claims:
    """Names, selectors and environment variables, each with the first entry that uses it."""

    def __init__(self, configuration: Configuration, foreign: Sequence[Permitted]) -> None:
        self._foreign = {each for entry in foreign for each in (entry.resource, *_selectors(entry))}
        self._kinds: dict[str, Kind] = {}
        self._names: dict[tuple[str, ...], str] = {}  # by selectors
        self._variables: dict[str, str] = {}
        rules = [rule for rule in configuration.rules if not isinstance(rule, DirectRule)]
        named = [(rule.kind, rule.name) for rule in rules]
        named += [(kind, alias.target) for alias in configuration.aliases for kind in WORDS]
        named += [(entry.kind, entry.resource) for entry in foreign]
        for kind, name in named:
            self._variables.setdefault(naming.env_key(kind, name), name)

    def claim(self, entry: Permitted) -> Problem | None:
        """Record the name, selectors and variable of an entry; a Problem if an earlier entry conflicts."""
        name, kind, selectors, place = entry.resource, entry.kind, _selectors(entry), entry.place
        if not self._foreign.isdisjoint((name, *selectors)):
            part = name if name in self._foreign else entry.selector
            text = f'"{part}" belongs to virt-handler by another entry'
            hint = "set externalResourceProvider on both entries, or on neither"
            return virt_handler_conflict(place, text, hint)
        if (first := self._names.get(selectors, name)) != name:
            text = f'"{entry.selector}" is "{first}" by an earlier entry'
            return misconfigured(place, text, "use one resourceName for each selector")
        if (other := self._kinds.get(name, kind)) is not kind:
            text = f'"{name}" is the name of {WORDS[other]} by an earlier entry'
            hint = f"use another name for {WORDS[kind]}: virt-launcher would search for both kinds of devices"
            return misconfigured(place, text, hint)
        problem = claim_variable(self._variables, kind, name, place)
        if problem is None:
            self._names[selectors] = name
            self._kinds[name] = kind
        return problem


def _selectors(entry: Permitted) -> tuple[str, ...]:
    """The selectors of an entry in the form in which they are compared; a USB entry has several."""
    if entry.kind is Kind.USB:
        return tuple(naming.usb_selector(*each.split(":")) for each in entry.selectors)
    return (naming.normalize_type(entry.selector) if entry.kind is Kind.MDEV else entry.selector,)


def _rule_key(entry: Permitted) -> _RuleKey:
    return entry.kind, entry.resource, entry.place if entry.kind is Kind.USB else ""


def _find_options(configuration: Configuration) -> dict[tuple[Kind, str], DeviceRule]:
    """The configured rules without selectors, by kind and name."""
    rules = (rule for rule in configuration.rules if not isinstance(rule, DirectRule) and not rule.selectors)
    return {(rule.kind, rule.name): rule for rule in rules}


def _rules(
    listed: Iterable[Permitted], options: Mapping[tuple[Kind, str], DeviceRule] = _NO_OPTIONS
) -> dict[_RuleKey, DeviceRule]:
    """One rule for each name, with all of its selectors, the place of its first entry, and these options."""
    by_key: dict[_RuleKey, list[Permitted]] = {}
    for entry in listed:
        by_key.setdefault(_rule_key(entry), []).append(entry)
    return {key: _rule(same, options.get(key[:2])) for key, same in by_key.items()}


def _by_selector(listed: Iterable[Permitted], rules: Mapping[_RuleKey, DeviceRule]) -> BySelector:
    """The rules by selector; selectors are in the form in which they are compared with devices."""
    found: dict[str, DeviceRule] = {}
    for entry in listed:
        for selector in _selectors(entry):
            found.setdefault(selector, rules[_rule_key(entry)])
    return found


def _rule(same: Sequence[Permitted], options: DeviceRule | None) -> DeviceRule:
    """The rule for all CR entries of one kind with one resource name, and the options of a rule."""
    name, place = same[0].resource, f"{SOURCE}: {same[0].place.rpartition('.')[2]}"
    selectors = [selector for each in same for selector in each.selectors]
    if same[0].kind is Kind.MDEV:
        mdevs = tuple(MdevSelector(names=(each,)) for each in dict.fromkeys(selectors))
        own = options if isinstance(options, MdevRule) else MdevRule(name)
        return replace(own, selectors=mdevs, permitted=True, place=place)
    ids = [each.split(":") for each in selectors]
    if same[0].kind is Kind.PCI:
        pci = dict.fromkeys(PciSelector((vendor,), (device,)) for vendor, device in ids)
        rule = options if isinstance(options, PciRule) else PciRule(name)
        return replace(rule, selectors=tuple(pci), permitted=True, place=place)
    usb = tuple(UsbSelector((vendor,), (product,)) for vendor, product in ids)
    return UsbRule(name, usb, bundle=True, permitted=True, place=place)


def _find_conflicts(configuration: Configuration, foreign: Sequence[Permitted]) -> Iterator[Problem]:
    """The Problems of entries that virt-handler serves although a rule of the configuration has their name.

    The rule takes precedence, because it was written for this node.
    """
    owners: dict[str, Rule] = {}
    for rule in configuration.rules:
        for selector in rule.selectors if isinstance(rule, PciRule) else ():
            ids = (f"{vendor}:{device}" for vendor in selector.vendors for device in selector.devices)
            owners |= dict.fromkeys(ids, rule)
    owners |= {rule.name: rule for rule in configuration.rules}
    for entry in foreign:
        owner = owners.get(entry.resource)
        if owner is None and entry.kind is Kind.PCI:
            owner = owners.get(entry.selector)
        if owner is not None:
            at = owner.place or owner.name
            text = f'virt-handler offers "{entry.resource}", and so does nodeagent by {at}'
            if not isinstance(owner, DirectRule) and not owner.selectors:
                text = f'virt-handler offers "{entry.resource}", so {at} sets options of no device'
            hint = "set externalResourceProvider: true in the CR, or remove the rule"
            yield virt_handler_conflict(entry.place, text, hint)


def _find_shared(serve: str, listed: Sequence[Permitted]) -> Iterator[Problem]:
    """A Problem if ``serve: all`` serves entries that virt-handler serves as well."""
    names = list(dict.fromkeys(entry.resource for entry in listed if serve == ALL and not entry.external))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"both virt-handler and nodeagent offer {names[0]}{more}"
        hint = "set externalResourceProvider: true in the CR, unless no virt-handler runs on this node"
        yield virt_handler_conflict("kubevirt.serve", text, hint)
