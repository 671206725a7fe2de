# SPDX-License-Identifier: Apache-2.0
"""Builds Settings from the values that were read, by key; cross-checks are ``policy.desired``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.model.desired import Discovery, NodeRule, PciRule, PciSelector
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.policy import desired
from nodeagent.settings import tree
from nodeagent.settings.reading import PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model.desired import Rule

Values = dict[str, Any]


def settings(values: Values, shown: Sequence[tree.Value], warnings: Sequence[str]) -> tree.Settings:
    """The Settings of a full set of values."""
    discovery = Discovery(
        values["discovery.enabled"],
        values["discovery.naming"],
        values["discovery.prefix"],
        values["discovery.classes"],
    )
    return tree.Settings(
        desired=desired.merged(discovery, rules(values), aliases(values)),
        kubelet=tree.Kubelet(
            values["kubelet.registration"],
            values["kubelet.devicePluginDir"],
            values["kubelet.pluginsRegistryDir"],
            values["kubelet.podResources"],
        ),
        node=tree.Node(values["node.name"], tuple(values["node.labels"].items())),
        timing=tree.Timing(values["timing.settle"], values["timing.resync"], values["timing.holders"]),
        log=tree.Log(values["log.format"], values["log.level"]),
        status_socket=values["status.socket"],
        cdi_spec_dir=values["cdi.specDir"],
        values=tuple(shown),
        warnings=tuple(warnings),
    )


def aliases(values: Values, places: Mapping[str, str] | None = None) -> tuple[desired.Alias, ...]:
    """The aliases in the order written; ``places`` tells where each name was written."""
    known = places or {}
    return tuple(
        desired.Alias(name, target, known.get(name, "")) for name, target in values["aliases"].items()
    )


def rules(values: Values, *, full_places: bool = False) -> tuple[Rule, ...]:
    """The rules in the order written; their places with the whole path for errors, else short."""
    return tuple(
        _rule(resource, resource[PLACE].full if full_places else resource[PLACE].short)
        for resource in values["resources"]
    )


def empty_rules(values: Values) -> tuple[str, ...]:
    """A warning for each resource that takes nothing."""
    return tuple(
        f'{resource[PLACE].full}: "{resource["name"]}" has no selector and takes no device'
        for resource in values["resources"]
        if not resource.get("pci") and "node" not in resource
    )


def _rule(resource: Values, place: str) -> Rule:
    if "node" in resource:
        node = resource["node"]
        return NodeRule(
            name=resource["name"],
            path=node["path"],
            count=node.get("count", 1),
            permissions=node.get("permissions", "rw"),
            place=place,
        )
    return PciRule(
        name=resource["name"],
        selectors=tuple(_selector(selector) for selector in resource.get("pci", ())),
        isolation=Isolation(resource.get("isolation", "group")),
        iommufd=Iommufd(resource.get("iommufd", "never")),
        cdi=resource.get("cdi", False),
        place=place,
    )


def _selector(selector: Values) -> PciSelector:
    return PciSelector(
        vendors=selector.get("vendors", ()),
        devices=selector.get("devices", ()),
        subsystems=selector.get("subsystems", ()),
        classes=selector.get("classes", ()),
        drivers=selector.get("drivers", ()),
        addresses=selector.get("addresses", ()),
        numa_nodes=selector.get("numaNodes", ()),
        iommu_groups=selector.get("iommuGroups", ()),
        vgpu_types=selector.get("vgpuTypes", ()),
    )
