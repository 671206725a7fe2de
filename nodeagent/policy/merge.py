# SPDX-License-Identifier: Apache-2.0
"""Merges the configuration, the KubeVirt CR and the labels of the node into one Spec. Pure.

Rules of the configuration have precedence over entries of the KubeVirt CR, and those over discovery. The
KubeVirt CR is used unless ``kubevirt.enabled`` is false. Labels of the Node replace the labels in the
settings. If the Node is unknown, the label of the host name is set from the name of the node, unless the
settings have that label. A configuration with ``findings`` is rejected as a whole. ``objections`` are
problems of the KubeVirt CR: each disables only the part that it names. Both are Problems: place, cause, and
fix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from nodeagent.model.spec import NO_RULES, DirectRule, PassthroughRule, Rule, Spec, SriovRule
from nodeagent.policy import contradictions, mdev_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodeagent.model.configuration import Configuration
    from nodeagent.model.kubevirt import KubeVirtCR
    from nodeagent.model.problem import Problem
    from nodeagent.policy.permitted import Entries

R = TypeVar("R", bound=Rule | SriovRule | PassthroughRule)

HOSTNAME = "kubernetes.io/hostname"
VIRT_HANDLERS = frozenset(f"devices.kubevirt.io/{name}" for name in ("kvm", "tun", "vhost-net"))
"""Resources that virt-handler always offers (pkg/virt-handler/device-manager)."""


def merge(
    configuration: Configuration, cr: KubeVirtCR | None = None, labels: Mapping[str, str] | None = None
) -> Spec:
    """The Spec of a configuration without findings; chains of aliases end at their last name.

    An invalid ``cr`` is ignored, as if it were None. ``labels`` is None if the labels of the Node are not
    known.
    """
    home, cr = configuration.home, _usable(configuration, cr)
    entries = _entries(configuration, cr)
    rules = _relative(configuration.rules, home)
    here = _labels(configuration, labels)
    targets = {alias.name: alias.target for alias in configuration.aliases}
    return Spec(
        discovery=configuration.discovery,
        aliases=tuple((name, contradictions.last_name(name, targets)) for name in targets),
        rules=rules if entries is None else (*rules, *entries.rules),
        kubevirt_rules=NO_RULES if entries is None else entries.served,
        virt_handler_rules=NO_RULES if entries is None else entries.foreign,
        mdevs=mdev_spec.build_spec(configuration, cr, here),
        sriov=_relative(configuration.sriov, home),
        passthrough=_relative(configuration.passthrough, home),
        labels=tuple(here.items()),
        following=configuration.following,
    )


def _relative(rules: Iterable[R], home: str) -> tuple[R, ...]:
    """The rules, with places relative to the directory of the configuration."""
    return tuple(replace(rule, place=rule.place.removeprefix(home)) for rule in rules)


def findings(configuration: Configuration) -> tuple[Problem, ...]:
    """The contradictions between parts of a configuration, in the order of the file."""
    _, unusable = mdev_spec.choose_vgpu(configuration, _labels(configuration, None))
    return (*contradictions.contradictions(configuration), *unusable)


def warnings(configuration: Configuration) -> tuple[str, ...]:
    """Warnings, as whole lines, about parts of the configuration that are valid, but suspicious."""
    unchosen = mdev_spec.warn_of_unchosen(configuration, _labels(configuration, None))
    return (*unchosen, *_warn_of_rules(configuration), *_warn_of_sources(configuration))


def objections(
    configuration: Configuration, cr: KubeVirtCR | None, labels: Mapping[str, str] | None = None
) -> tuple[Problem, ...]:
    """The Problems of CR entries that are ignored on this node, or that virt-handler also serves.

    The place of a Problem is in the CR if it starts with the name of a section of the CR; else it is a
    setting.
    """
    cr = _usable(configuration, cr)
    entries = _entries(configuration, cr)
    return (
        *(() if cr is None else cr.refused),
        *(() if entries is None else entries.findings),
        *mdev_spec.find_obstacles(configuration, cr, _labels(configuration, labels)),
        *mdev_spec.find_ignored(configuration, cr),
    )


def _labels(configuration: Configuration, of_node: Mapping[str, str] | None) -> dict[str, str]:
    """The labels of the Node; if they are not known (None), the labels in the settings.

    The label kubernetes.io/hostname is added, as the kubelet does, unless the settings have it.
    """
    if of_node is not None:
        return dict(of_node)
    node = configuration.node
    return ({HOSTNAME: node.name} if node.name else {}) | dict(node.labels)


def _usable(configuration: Configuration, cr: KubeVirtCR | None) -> KubeVirtCR | None:
    """The KubeVirt CR; None if the settings disable it or it is invalid."""
    ignored = configuration.kubevirt.enabled == "false"
    return None if ignored or cr is None or cr.fault is not None else cr


def _entries(configuration: Configuration, cr: KubeVirtCR | None) -> Entries | None:
    """The CR entries that nodeagent serves, and those that virt-handler serves; None without a CR."""
    if cr is None:
        return None
    from nodeagent.policy import permitted  # here: most nodes read no CR at their start

    return permitted.entries(cr, configuration)


def _warn_of_rules(configuration: Configuration) -> Iterator[str]:
    """Warn of names that virt-handler always registers, and of rules without selectors and options."""
    named = [(rule.name, rule.place) for rule in configuration.rules]
    named += [(alias.target, alias.place) for alias in configuration.aliases]
    for name, place in named:
        if name in VIRT_HANDLERS:
            yield (
                f'{place}: virt-handler always registers "{name}" itself, and the kubelet uses one of them; '
                "choose another name, unless no virt-handler runs on this node"
            )
    for rule in configuration.rules:
        if not isinstance(rule, DirectRule) and rule == type(rule)(rule.name):
            yield f'{rule.place}: "{rule.name}" has no selector and no option, so it has no effect'


def _warn_of_sources(configuration: Configuration) -> Iterator[str]:
    """The warnings about settings for mdevs that have no effect."""
    mdevs, kubevirt = configuration.mdevs, configuration.kubevirt
    sources = {"mdevs.mdevctl": mdevs.mdevctl, "mdevs.vgpuConfigFile": mdevs.vgpu_config_file}
    for key in (key for key, value in sources.items() if value and not mdevs.manage):
        yield f"{key} is set, but mdevs.manage is not, so no mdev is created; set mdevs.manage: true"
    if kubevirt.manage_mdevs and kubevirt.enabled == "false":
        yield (
            "kubevirt.manageMdevs is set, but the KubeVirt CR is not read; "
            "set kubevirt.enabled: auto, or remove it"
        )
