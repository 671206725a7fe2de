# SPDX-License-Identifier: Apache-2.0
"""What the KubeVirt CR permits → rules of this node, what is virt-handler's, and what cannot be done. Pure.

An entry is served if another plugin than virt-handler's is to provide it (``kubevirt.serve``). One name means
one thing here, too, and no device is to be given by two: such an entry is refused alone, the others count.
A rule of the configuration stands: the CR's entry of that name only permits it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nodeagent.model.desired import (
    NO_RULES,
    DirectRule,
    MdevRule,
    MdevSelector,
    PciRule,
    PciSelector,
    UsbRule,
    UsbSelector,
)
from nodeagent.model.host import Kind
from nodeagent.model.kubevirt import PermittedMdev, PermittedPci, PermittedUsb
from nodeagent.model.problem import Problem, misconfigured
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.model.configuration import Configuration
    from nodeagent.model.desired import BySelector, DeviceRule
    from nodeagent.model.kubevirt import KubeVirtCR, Permitted

EXTERNAL, ALL = "external", "all"  # anything else: none
SOURCE = "KubeVirt CR"
_KINDS = {PermittedPci: Kind.PCI, PermittedMdev: Kind.MDEV, PermittedUsb: Kind.USB}
_WORDS = {Kind.PCI: "PCI functions", Kind.MDEV: "mediated devices", Kind.USB: "USB devices"}
_OWNERS = "let one of the two have it: set externalResourceProvider on both, or on neither"

_Named = tuple[Kind, str, str]
"""What one rule is for: a kind of devices and a resource name; of USB each entry is a rule of its own."""


class Entries(NamedTuple):
    """The entries by whose they are, and what is wrong. ``served`` has the ``rules`` by selector."""

    rules: tuple[DeviceRule, ...] = ()
    served: BySelector = NO_RULES
    foreign: BySelector = NO_RULES
    findings: tuple[Problem, ...] = ()


def entries(cr: KubeVirtCR, configuration: Configuration) -> Entries:
    """What of the CR this node serves, in the order of the CR, and what it leaves to virt-handler."""
    if cr.permitted is None:
        return Entries()
    serve, listed = configuration.kubevirt.serve, cr.permitted.entries
    foreign = [entry for entry in listed if serve != ALL and not entry.external]
    judge = _Judge(configuration, foreign)
    misnamed = {entry.place: _misnamed(entry) for entry in listed if naming.fault(entry.resource) is not None}
    meant = (entry for entry in listed if _meant(entry, serve) and entry.place not in misnamed)
    served = [entry for entry in meant if judge.takes(entry)]
    findings = (
        *misnamed.values(),
        *judge.findings,
        *_fought_over(configuration, foreign),
        *_shared(serve, listed),
    )
    rules = _rules(served)
    return Entries(
        tuple(rules.values()), _by_selector(served, rules), _by_selector(foreign, _rules(foreign)), findings
    )


def _meant(entry: Permitted, serve: str) -> bool:
    """True if the settings let nodeagent serve the entry."""
    return serve == ALL or (serve == EXTERNAL and entry.external)


def _misnamed(entry: Permitted) -> Problem:
    """No plugin can offer a resource of such a name, be it virt-handler's."""
    fault = naming.fault(entry.resource)
    why, hint = ("", "") if fault is None else (fault.what, fault.hint)
    return misconfigured(entry.place, f'"{entry.resource}" is no name of a resource: {why}', hint)


class _Judge:
    """Takes entries one after the other, and notes why it does not take one."""

    def __init__(self, configuration: Configuration, foreign: Sequence[Permitted]) -> None:
        self.findings: list[Problem] = []
        self._own = {rule.name for rule in configuration.rules}
        self._foreign = {each for entry in foreign for each in (entry.resource, *_parts(entry))}
        self._kinds: dict[str, Kind] = {}
        self._names: dict[tuple[str, str], str] = {}  # selector → the name of the entry that has it
        self._variables: dict[str, str] = {}
        for rule in configuration.rules:
            if not isinstance(rule, DirectRule):
                self._variables.setdefault(naming.env_key(rule.kind, rule.name), rule.name)
        either = [(kind, alias.target) for alias in configuration.aliases for kind in _KINDS.values()]
        foreigners = [(_KINDS[type(entry)], entry.resource) for entry in foreign]
        for kind, name in (*either, *foreigners):
            self._variables.setdefault(naming.env_key(kind, name), name)

    def takes(self, entry: Permitted) -> bool:
        """True if the entry is served as the CR's; one that the configuration has is not, without a word."""
        refused = self._refusal(entry)
        if refused is not None:
            self.findings.append(misconfigured(entry.place, *refused))
            return False
        self._kinds.setdefault(entry.resource, _KINDS[type(entry)])
        self._names.setdefault(_selector(entry), entry.resource)
        named_alone = isinstance(entry, PermittedUsb) and not entry.selectors
        return entry.resource not in self._own and not named_alone

    def _refusal(self, entry: Permitted) -> tuple[str, str] | None:
        name = entry.resource
        if name in self._foreign or not self._foreign.isdisjoint(_parts(entry)):
            what = name if name in self._foreign else _selected(entry)
            return f'"{what}" is given to virt-handler by another entry, and it keeps it', _OWNERS
        return self._other_name(entry) or self._other_kind(entry) or self._other_variable(entry)

    def _other_name(self, entry: Permitted) -> tuple[str, str] | None:
        first = self._names.get(_selector(entry), entry.resource)
        if first == entry.resource:
            return None
        return f'"{_selected(entry)}" is "{first}" by an earlier entry', "give each selector one resourceName"

    def _other_kind(self, entry: Permitted) -> tuple[str, str] | None:
        own = _KINDS[type(entry)]
        first = self._kinds.get(entry.resource, own)
        if first is own:
            return None
        return (
            f'"{entry.resource}" is the name of {_WORDS[first]} by an earlier entry',
            f"give {_WORDS[own]} another name: virt-launcher would look for both",
        )

    def _other_variable(self, entry: Permitted) -> tuple[str, str] | None:
        variable = naming.env_key(_KINDS[type(entry)], entry.resource)
        first = self._variables.setdefault(variable, entry.resource)
        if first == entry.resource:
            return None
        what = f'"{entry.resource}" and "{first}" would share the variable {variable}'
        return what, "make the names differ in more than case, '.', '/' and '_'"


def _selected(entry: Permitted) -> str:
    """The selector as it is told."""
    if isinstance(entry, PermittedUsb):
        return ", ".join(":".join(pair) for pair in entry.selectors)
    return entry.selector


def _selector(entry: Permitted) -> tuple[str, str]:
    """The kind, and the selector as it is compared; two that are equal mean the same devices."""
    if isinstance(entry, PermittedMdev):
        return Kind.MDEV, naming.type_called(entry.selector)
    return _KINDS[type(entry)], _selected(entry)


def _parts(entry: Permitted) -> tuple[object, ...]:
    """All that may be virt-handler's: what it selects, and each device of a bundle."""
    return (_selector(entry), *(entry.selectors if isinstance(entry, PermittedUsb) else ()))


def _named(entry: Permitted) -> _Named:
    return _KINDS[type(entry)], entry.resource, entry.place if isinstance(entry, PermittedUsb) else ""


def _rules(listed: Iterable[Permitted]) -> dict[_Named, DeviceRule]:
    """One rule for each name, with all of its selectors; its place is that of its first entry."""
    by_name: dict[_Named, list[Permitted]] = {}
    for entry in listed:
        by_name.setdefault(_named(entry), []).append(entry)
    return {named: _rule(named[1], named[0], same) for named, same in by_name.items()}


def _by_selector(listed: Iterable[Permitted], rules: Mapping[_Named, DeviceRule]) -> BySelector:
    """The rules, to be found by what is compared of a device."""
    found: dict[str, DeviceRule] = {}
    for entry in listed:
        for selector in _compared(entry):
            found.setdefault(selector, rules[_named(entry)])
    return found


def _compared(entry: Permitted) -> Iterable[str]:
    if isinstance(entry, PermittedUsb):
        return [naming.usb_selector(*pair) for pair in entry.selectors]
    return (_selector(entry)[1],)


def _rule(name: str, kind: Kind, same: Sequence[Permitted]) -> DeviceRule:
    place = f"{SOURCE}: {same[0].place.rpartition('.')[2]}"
    if kind is Kind.USB:
        pairs = [pair for each in same if isinstance(each, PermittedUsb) for pair in each.selectors]
        devices = tuple(UsbSelector(vendors=(vendor,), products=(product,)) for vendor, product in pairs)
        return UsbRule(name, devices, bundle=True, permitted=True, place=place)
    if kind is Kind.PCI:
        functions = dict.fromkeys(
            PciSelector(vendors=(each.vendor,), devices=(each.device,))
            for each in same
            if isinstance(each, PermittedPci)
        )
        return PciRule(name, tuple(functions), permitted=True, place=place)
    types = dict.fromkeys(
        MdevSelector(names=(each.selector,)) for each in same if isinstance(each, PermittedMdev)
    )
    return MdevRule(name, tuple(types), permitted=True, place=place)


def _fought_over(configuration: Configuration, foreign: Sequence[Permitted]) -> Iterator[Problem]:
    """Entries of virt-handler that a rule of the configuration takes away from it.

    The rule stands: it is the word of whoever has this node. But the kubelet would get two plugins.
    """
    by_name = {rule.name: rule for rule in configuration.rules}
    by_ids = {
        (vendor, device): rule
        for rule in configuration.rules
        if isinstance(rule, PciRule)
        for selector in rule.selectors
        for vendor in selector.vendors
        for device in selector.devices
    }
    for entry in foreign:
        ids = (entry.vendor, entry.device) if isinstance(entry, PermittedPci) else None
        rule = by_name.get(entry.resource) or (by_ids.get(ids) if ids is not None else None)
        if rule is not None:
            yield misconfigured(
                entry.place,
                f'virt-handler offers "{entry.resource}", and so does nodeagent by {rule.place or rule.name}',
                "set externalResourceProvider: true in the CR, or remove the rule",
            )


def _shared(serve: str, listed: Sequence[Permitted]) -> Iterator[Problem]:
    """With ``serve: all`` nothing tells virt-handler to keep off."""
    names = dict.fromkeys(entry.resource for entry in listed if serve == ALL and not entry.external)
    if names:
        what = f"virt-handler offers what nodeagent serves as well: {next(iter(names))}"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield misconfigured(
            "kubevirt.serve",
            what + more,
            "set externalResourceProvider: true in the CR, unless no virt-handler runs on this node",
        )
