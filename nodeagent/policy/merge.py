# SPDX-License-Identifier: Apache-2.0
"""What is desired of this node: configuration × KubeVirt CR × labels of the node → one Desired. Pure.

Rules of the configuration come first, what the CR permits after them, discovery last. A CR counts where
``kubevirt.enabled`` is not false. Labels that the cluster tells count alone; without them, those of the
settings: there the label of the host name comes from the name of the node, and chooses nothing that a given
label chooses otherwise. Each further source of wishes is one more argument of ``merge``. What is wrong with
the configuration refuses it (``findings``); what is wrong in the cluster is told, and the rest counts
(``objections``). Every finding tells all of its story in two lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.model.desired import NO_RULES, Desired, DirectRule
from nodeagent.model.problem import Problem
from nodeagent.policy import contradictions, mdev_wishes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodeagent.model.configuration import Alias, Configuration, Node
    from nodeagent.model.kubevirt import KubeVirtCR
    from nodeagent.policy.permitted import Entries

HOSTNAME = "kubernetes.io/hostname"
VIRT_HANDLERS = frozenset(f"devices.kubevirt.io/{name}" for name in ("kvm", "tun", "vhost-net"))
"""Resources that virt-handler offers without being told to (pkg/virt-handler/device-manager)."""


def merge(
    configuration: Configuration, cr: KubeVirtCR | None = None, labels: Mapping[str, str] | None = None
) -> Desired:
    """The Desired of a configuration without findings; chains of aliases end at their last name.

    ``cr`` None or at fault: none is known. ``labels`` None: no cluster has told them.
    """
    home, cr = configuration.home, _counting(configuration, cr)
    entries = _entries(configuration, cr)
    written = tuple(replace(rule, place=rule.place.removeprefix(home)) for rule in configuration.rules)
    here = _labels(configuration, labels)
    return Desired(
        discovery=configuration.discovery,
        aliases=_followed(configuration.aliases),
        rules=written if entries is None else (*written, *entries.rules),
        permits=NO_RULES if entries is None else entries.served,
        foreign=NO_RULES if entries is None else entries.foreign,
        mdevs=mdev_wishes.wanted(configuration, cr, here),
        sriov=tuple(replace(rule, place=rule.place.removeprefix(home)) for rule in configuration.sriov),
        passthrough=tuple(
            replace(rule, place=rule.place.removeprefix(home)) for rule in configuration.passthrough
        ),
        labels=tuple(here.items()),
        following=configuration.following,
    )


def findings(configuration: Configuration) -> tuple[Problem, ...]:
    """All that is wrong between the parts of a configuration, in the order written."""
    vgpu = mdev_wishes.vgpu_findings(configuration, dict(labels(configuration.node)))
    return (*contradictions.contradictions(configuration), *vgpu)


def warnings(configuration: Configuration) -> tuple[str, ...]:
    """What is odd, but no error: whole lines for people."""
    unchosen = mdev_wishes.unchosen(configuration, dict(labels(configuration.node)))
    return (
        *unchosen,
        *_virt_handlers_own(configuration),
        *_idle_rules(configuration),
        *_idle_sources(configuration),
    )


def objections(
    configuration: Configuration, cr: KubeVirtCR | None, labels: Mapping[str, str] | None = None
) -> tuple[Problem, ...]:
    """What of the wishes of the cluster is not carried out, and where others own the same; in their order.

    Places that begin with the name of a section of the CR lie in the CR, others are keys of settings.
    """
    counting, here = _counting(configuration, cr), _labels(configuration, labels)
    entries = _entries(configuration, counting)
    return (
        *(() if counting is None else counting.refused),
        *(() if entries is None else entries.findings),
        *mdev_wishes.obstacles(configuration, counting, here),
        *mdev_wishes.odd(configuration, counting),
    )


def labels(node: Node) -> tuple[tuple[str, str], ...]:
    """The labels of the settings; its name is one, as the kubelet sets it, unless another was given."""
    name = {HOSTNAME: node.name} if node.name else {}
    return tuple((name | dict(node.labels)).items())


def _labels(configuration: Configuration, told: Mapping[str, str] | None) -> dict[str, str]:
    return dict(labels(configuration.node) if told is None else told)


def _counting(configuration: Configuration, cr: KubeVirtCR | None) -> KubeVirtCR | None:
    """The CR, if the settings let it count and it can be used."""
    if cr is None or cr.fault is not None or configuration.kubevirt.enabled == "false":
        return None
    return cr


def _entries(configuration: Configuration, cr: KubeVirtCR | None) -> Entries | None:
    """What the CR permits, sorted; None without one."""
    if cr is None:
        return None
    from nodeagent.policy import permitted  # here: most nodes read no CR at their start

    return permitted.entries(cr, configuration)


def _followed(aliases: Iterable[Alias]) -> tuple[tuple[str, str], ...]:
    targets = {alias.name: alias.target for alias in aliases}
    return tuple((name, contradictions.last_name(name, targets)) for name in targets)


def _virt_handlers_own(configuration: Configuration) -> Iterator[str]:
    """A warning for each name that virt-handler registers on each of its nodes, whatever its CR says."""
    named = [(rule.name, rule.place) for rule in configuration.rules]
    named += [(alias.target, alias.place) for alias in configuration.aliases]
    for name, place in named:
        if name in VIRT_HANDLERS:
            yield (
                f'{place}: virt-handler always registers "{name}" itself, and the kubelet heeds one of two; '
                "choose another name, unless no virt-handler runs on this node"
            )


def _idle_rules(configuration: Configuration) -> Iterator[str]:
    """A warning for each resource that takes nothing."""
    for rule in configuration.rules:
        if not isinstance(rule, DirectRule) and not rule.selectors:
            yield f'{rule.place}: "{rule.name}" has no selector and takes no device'


def _idle_sources(configuration: Configuration) -> Iterator[str]:
    """A warning for each source of wishes that nodeagent has no leave to carry out."""
    mdevs, kubevirt = configuration.mdevs, configuration.kubevirt
    sources = (("mdevs.mdevctl", mdevs.mdevctl), ("mdevs.vgpuConfigFile", mdevs.vgpu_config_file))
    for key, given in sources:
        if given and not mdevs.manage:
            yield f"{key} is set, but mdevs.manage is not: nothing is made; set mdevs.manage: true"
    if kubevirt.manage_mdevs and kubevirt.enabled == "false":
        why = "kubevirt.manageMdevs is set, but the KubeVirt CR is not read"
        yield f"{why}; set kubevirt.enabled: auto, or remove it"
