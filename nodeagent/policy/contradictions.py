# SPDX-License-Identifier: Apache-2.0
"""Finds contradictions between rules, aliases and desired mdevs. Pure.

Each resource name must have one kind, one set of options and one environment variable; a list of devices must
fit into one message to the kubelet. Values that are invalid by themselves are reported earlier, when the
configuration file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.host import Kind
from nodeagent.model.problem import Problem, misconfigured
from nodeagent.model.spec import CdiRule, DeviceRule, DirectRule, MdevRule, NodeRule, PciRule, UsbRule
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodeagent.model.configuration import Alias, Configuration, Mdevs
    from nodeagent.model.spec import Rule

MESSAGE_LIMIT = 3_670_016  # 3.5 MiB; at 4 MiB grpc-go in the kubelet cuts the stream for good
DEVICE_FRAME = 13  # bytes of a Device on the wire beside its id: tags, lengths, "Unhealthy"
ID_LIMIT = 63  # a longer id is no valid label value; other parts of Kubernetes use ids as label values


def contradictions(configuration: Configuration) -> tuple[Problem, ...]:
    """All contradictions between rules, aliases and desired mdevs, in the order of the configuration."""
    rules, aliases = configuration.rules, configuration.aliases
    return (
        *_doubles(rules),
        *_shared_leaders(rules),
        *_too_large(rules),
        *_cycles(aliases),
        *_aliased_rules(rules, aliases),
        *_shared_variables(rules, aliases),
        *_excluded(configuration.mdevs),
    )


def last_name(name: str, targets: Mapping[str, str]) -> str:
    """The name at the end of a chain of aliases; in a cycle, the last name before a name repeats."""
    seen = {name}
    while name in targets and targets[name] not in seen:
        name = targets[name]
        seen.add(name)
    return name


def _doubles(rules: Sequence[Rule]) -> Iterator[Problem]:
    """Rules with the same name but different kinds or options."""
    first: dict[str, Rule] = {}
    for rule in rules:
        earlier = first.setdefault(rule.name, rule)
        if earlier is rule:
            continue
        difference = _difference(earlier, rule)
        if difference is not None:
            what = f'"{rule.name}" is the name of two rules {difference} ({_at(earlier)})'
            yield misconfigured(
                rule.place, what, "give one of the two rules another name, or the same kind and options"
            )


def _difference(one: Rule, other: Rule) -> str | None:
    if one.kind is not other.kind:
        return "of different kinds"
    if isinstance(one, NodeRule) or isinstance(other, NodeRule):
        return None if one.topology == other.topology else "with different options"
    if isinstance(one, CdiRule) or isinstance(other, CdiRule):
        return "for CDI devices; only one such rule may have this name"
    return None if _options(one) == _options(other) else "with different options"


def _options(rule: DeviceRule) -> tuple[object, ...]:
    bundle = isinstance(rule, UsbRule) and rule.bundle
    return rule.isolation, rule.iommufd, rule.cdi, rule.topology, rule.via, bundle


def _shared_leaders(rules: Sequence[Rule]) -> Iterator[Problem]:
    """Rules for device nodes with one resource name and devices with equal ids."""
    first: dict[tuple[str, bool, str], NodeRule] = {}
    for rule in rules:
        if isinstance(rule, NodeRule):
            from nodeagent.policy.offer import node_rules  # here: few nodes have rules for device nodes

            path = rule.entries[0].path
            leader = path if rule.per_path else node_rules.name_unit(rule)
            earlier = first.setdefault((rule.name, rule.per_path, leader), rule)
            if earlier is not rule:
                what = f'"{rule.name}": two rules give the devices of {path} the same ids ({_at(earlier)})'
                yield misconfigured(rule.place, what, "use count for more shares, or another name")


def _too_large(rules: Sequence[Rule]) -> Iterator[Problem]:
    shares: dict[str, int] = {}
    for rule in rules:
        if not isinstance(rule, NodeRule):
            continue
        from nodeagent.policy.offer import node_rules  # here: few nodes have rules for device nodes

        longest = ID_LIMIT if rule.paths else len(node_rules.share_id(rule.path, rule.count - 1))
        most = MESSAGE_LIMIT // (min(longest, ID_LIMIT) + DEVICE_FRAME)
        shares[rule.name] = shares.get(rule.name, 0) + rule.count
        if shares[rule.name] > most:
            what = f'"{rule.name}": {shares[rule.name]} shares do not fit into one message to the kubelet'
            yield misconfigured(
                rule.place, what, f"set count to at most {most}, in all rules of this name together"
            )


def _cycles(aliases: Sequence[Alias]) -> Iterator[Problem]:
    targets = {alias.name: alias.target for alias in aliases}
    for alias in aliases:
        if last_name(alias.name, targets) in targets:
            what = f'the alias "{alias.name}" is part of a cycle'
            yield misconfigured(
                alias.place, what, "change one alias, so that the chain of aliases ends at a new name"
            )


def _aliased_rules(rules: Sequence[Rule], aliases: Sequence[Alias]) -> Iterator[Problem]:
    by_name = {rule.name: rule for rule in rules}
    for alias in aliases:
        if alias.name in by_name:
            what = f'the alias "{alias.name}" is also the name of a rule, so it renames nothing'
            yield misconfigured(alias.place, what, "aliases are for discovered names: rename the rule")
        rule = by_name.get(alias.target)
        only_options = not isinstance(rule, DirectRule | None) and not rule.selectors
        if rule is not None and not only_options and not _plain(rule):
            what = f'the alias target "{alias.target}" is a rule for device nodes or with options'
            yield misconfigured(alias.place, what, f"choose another name, or see {_at(rule)}")


def _plain(rule: Rule) -> bool:
    """True if the rule has no options, so that discovered devices may have the same resource name."""
    return any(_difference(rule, plain(rule.name)) is None for plain in (PciRule, MdevRule))


def _shared_variables(rules: Sequence[Rule], aliases: Sequence[Alias]) -> Iterator[Problem]:
    """Resource names whose devices would share one environment variable; the kubelet uses the first one.

    A resource name from an alias may be that of any kind of device, unless a rule has the same name.
    """
    kinds = {rule.name: (rule.kind,) for rule in rules if not isinstance(rule, DirectRule)}
    named = [(rule.name, rule.place) for rule in rules if rule.name in kinds]
    named += [(alias.target, alias.place) for alias in aliases]
    owners: dict[str, str] = {}
    for name, place in named:
        shared = [
            claim_variable(owners, kind, name, place) for kind in kinds.get(name, (Kind.PCI, Kind.MDEV))
        ]
        yield from [problem for problem in shared if problem is not None][:1]


def claim_variable(owners: dict[str, str], kind: Kind, name: str, place: str) -> Problem | None:
    """Record the resource as the owner of its environment variable; a Problem if another resource has it.

    KubeVirt uses the same variable for names that differ only in case, or in '.', '/' and '_'.
    """
    variable = naming.env_key(kind, name)
    first = owners.setdefault(variable, name)
    if first == name:
        return None
    what = f'"{name}" and "{first}" would share the variable {variable}'
    return misconfigured(place, what, "use names that differ in more than case, '.', '/' and '_'")


def _excluded(mdevs: Mdevs) -> Iterator[Problem]:
    """The vGPU types that the configuration both desires and excludes."""
    excluded = {naming.normalize_type(name) for name in mdevs.exclude}
    wanted = (*mdevs.types, *(wanted for node in mdevs.nodes for wanted in node.types))
    names = dict.fromkeys(wanted_type.name for wanted_type in wanted)
    for name in (name for name in names if naming.normalize_type(name) in excluded):
        yield misconfigured("mdevs.exclude", f'"{name}" is both desired and excluded', "keep one of the two")


def _at(rule: Rule) -> str:
    return rule.place or "the other rule"
