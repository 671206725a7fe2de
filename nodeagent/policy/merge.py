# SPDX-License-Identifier: Apache-2.0
"""What is desired of this node: configuration × labels of the node → one Desired. Pure.

The label of the host name comes from the name of the node, and chooses nothing that a given label chooses
otherwise. Of a vgpu-device-manager file one configuration counts: that of the node's label, else the default
of the settings; what nodeagent cannot do in the others is nobody's mistake. Each further source of wishes is
one more argument of ``merge``. Every finding tells all of its story in two lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.model.configuration import Finding
from nodeagent.model.desired import Desired, MdevsWanted, NodeRule
from nodeagent.policy import contradictions, naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nodeagent.model.configuration import Alias, Configuration, Node, VgpuConfiguration
    from nodeagent.model.desired import CardTypes

HOSTNAME = "kubernetes.io/hostname"
VGPU_CONFIG = "nvidia.com/vgpu.config"
"""The label by which vgpu-device-manager chooses a node's configuration."""


def merge(configuration: Configuration) -> Desired:
    """The Desired of a configuration without findings; chains of aliases end at their last name."""
    home = configuration.home
    return Desired(
        discovery=configuration.discovery,
        aliases=_followed(configuration.aliases),
        rules=tuple(replace(rule, place=rule.place.removeprefix(home)) for rule in configuration.rules),
        mdevs=_mdevs(configuration),
        sriov=tuple(replace(rule, place=rule.place.removeprefix(home)) for rule in configuration.sriov),
        labels=labels(configuration.node),
    )


def findings(configuration: Configuration) -> tuple[Finding, ...]:
    """All that is wrong between the parts of a configuration, in the order written."""
    return (*contradictions.contradictions(configuration), *_vgpu_findings(configuration))


def warnings(configuration: Configuration) -> tuple[str, ...]:
    """What is odd, but no error: whole lines for people."""
    return (*_unchosen(configuration), *_idle_rules(configuration), *_idle_sources(configuration))


def labels(node: Node) -> tuple[tuple[str, str], ...]:
    """The labels of the node; its name is one, as the kubelet sets it, unless another was given."""
    name = {HOSTNAME: node.name} if node.name else {}
    return tuple((name | dict(node.labels)).items())


def _followed(aliases: Iterable[Alias]) -> tuple[tuple[str, str], ...]:
    targets = {alias.name: alias.target for alias in aliases}
    return tuple((name, contradictions.last_name(name, targets)) for name in targets)


def _mdevs(configuration: Configuration) -> MdevsWanted:
    written, definitions = configuration.mdevs, configuration.imported.mdevctl
    return MdevsWanted(
        manage=written.manage,
        types=written.types,
        nodes=written.nodes,
        adopt=written.adopt,
        excluded=written.exclude,
        cards=_cards(configuration),
        definitions=definitions.wanted,
        defined=definitions.uuids,
        reserved=definitions.reserved,
    )


def _cards(configuration: Configuration) -> tuple[CardTypes, ...]:
    chosen = _chosen(configuration)
    return () if chosen is None else chosen.cards


def _chosen(configuration: Configuration) -> VgpuConfiguration | None:
    """The configuration that counts of a vgpu-device-manager file, if there is one of that name."""
    vgpu, name = configuration.imported.vgpu, _chosen_name(configuration)
    named = () if vgpu is None else (known for known in vgpu.configurations if known.name == name)
    return next(iter(named), None)


def _chosen_name(configuration: Configuration) -> str:
    """The name that the node's label gives, else the one that the settings give; "" if none does."""
    return dict(labels(configuration.node)).get(VGPU_CONFIG) or configuration.mdevs.vgpu_config


def _vgpu_findings(configuration: Configuration) -> Iterator[Finding]:
    """Why the configuration that is chosen cannot be carried out."""
    vgpu, name = configuration.imported.vgpu, _chosen_name(configuration)
    if vgpu is None or not name:
        return
    chosen = _chosen(configuration)
    fault = vgpu.fault or (chosen.fault if chosen is not None else None)
    if fault is not None:
        yield Finding("", fault.what, fault.hint)
    elif chosen is None:
        hint = naming.nearest(name, (known.name for known in vgpu.configurations))
        yield Finding(vgpu.path, f'it has no configuration "{name}"', hint)


def _unchosen(configuration: Configuration) -> Iterator[str]:
    if configuration.imported.vgpu is not None and not _chosen_name(configuration):
        what = "mdevs.vgpuConfigFile is set, but no configuration of it is chosen"
        yield f"{what}; set mdevs.vgpuConfig, or the label {VGPU_CONFIG} in node.labels"


def _idle_rules(configuration: Configuration) -> Iterator[str]:
    """A warning for each resource that takes nothing."""
    for rule in configuration.rules:
        if not isinstance(rule, NodeRule) and not rule.selectors:
            yield f'{rule.place}: "{rule.name}" has no selector and takes no device'


def _idle_sources(configuration: Configuration) -> Iterator[str]:
    """A warning for each source of wishes that nodeagent has no leave to carry out."""
    mdevs = configuration.mdevs
    sources = (("mdevs.mdevctl", mdevs.mdevctl), ("mdevs.vgpuConfigFile", mdevs.vgpu_config_file))
    for key, given in sources:
        if given and not mdevs.manage:
            yield f"{key} is set, but mdevs.manage is not: nothing is made; set mdevs.manage: true"
