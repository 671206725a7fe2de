# SPDX-License-Identifier: Apache-2.0
"""Builds Settings from the values that were read, by key; cross-checks are ``policy.merge``'s."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodeagent.config import records
from nodeagent.config.reader.reading import PLACE
from nodeagent.model.desired import (
    Discovery,
    MdevRule,
    MdevSelector,
    MdevsWanted,
    NodeRule,
    NodeTypes,
    PciRule,
    PciSelector,
    SriovRule,
    WantedType,
)
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodeagent.config.imports.imported import Imported
    from nodeagent.model.desired import Rule

HOSTNAME = "kubernetes.io/hostname"

Values = dict[str, Any]


def settings(
    values: Values,
    shown: Sequence[records.Value],
    warnings: Sequence[str],
    imported: Imported,
    watched: Sequence[str] = (),
) -> records.Settings:
    """The Settings of a full set of values and of what was imported from files of other tools."""
    wanted = mdevs(values, imported)
    return records.Settings(
        desired=replace(
            merge.merged(discovery(values), rules(values), aliases(values), wanted, tuple(_sriov(values))),
            labels=tuple(_labels(values).items()),
        ),
        kubelet=records.Kubelet(
            values["kubelet.registration"],
            values["kubelet.devicePluginDir"],
            values["kubelet.pluginsRegistryDir"],
            values["kubelet.podResources"],
        ),
        node=records.Node(values["node.name"], tuple(_labels(values).items())),
        timing=records.Timing(values["timing.settle"], values["timing.resync"], values["timing.holders"]),
        log=records.Log(values["log.format"], values["log.level"]),
        status_socket=values["status.socket"],
        cdi_spec_dir=values["cdi.specDir"],
        values=tuple(shown),
        warnings=tuple(warnings),
        watched=tuple(watched),
    )


def _labels(values: Values) -> dict[str, str]:
    """The labels of the node; its name is one, as the kubelet sets it, unless another was given."""
    name: str = values["node.name"]
    given: dict[str, str] = values["node.labels"]
    return ({HOSTNAME: name} if name else {}) | given


def discovery(values: Values) -> Discovery:
    """What is discovered."""
    return Discovery(
        values["discovery.enabled"],
        values["discovery.naming"],
        values["discovery.prefix"],
        values["discovery.classes"],
    )


def mdevs(values: Values, imported: Imported) -> MdevsWanted:
    """What is wanted of mdevs and vGPUs."""
    return MdevsWanted(
        manage=values["mdevs.manage"],
        types=_types(values["mdevs.types"]),
        nodes=tuple(
            NodeTypes(tuple(node.get("nodeSelector", {}).items()), _types(node.get("types", ())))
            for node in values["mdevs.nodes"]
        ),
        adopt=values["mdevs.adopt"],
        excluded=values["mdevs.exclude"],
        cards=imported.cards,
        definitions=tuple(imported.definitions.found),
        defined=frozenset(imported.definitions.uuids),
        reserved=frozenset(imported.definitions.left),
    )


def _types(listed: Sequence[Any]) -> tuple[WantedType, ...]:
    return tuple(
        WantedType(each["type"], each.get("count")) if isinstance(each, dict) else WantedType(each)
        for each in listed
    )


def _sriov(values: Values) -> Iterator[SriovRule]:
    for rule in values["sriov"]:
        selectors = tuple(_selector(selector) for selector in rule["match"])
        yield SriovRule(selectors, rule["numVFs"], rule[PLACE].short)


def aliases(values: Values, places: Mapping[str, str] | None = None) -> tuple[merge.Alias, ...]:
    """The aliases in the order written; ``places`` tells where each name was written."""
    known = places or {}
    return tuple(merge.Alias(name, target, known.get(name, "")) for name, target in values["aliases"].items())


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
        if not resource.get("pci") and not resource.get("mdev") and "node" not in resource
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
    if "mdev" in resource:
        return MdevRule(
            name=resource["name"],
            selectors=tuple(
                MdevSelector(selector.get("types", ()), selector.get("names", ()))
                for selector in resource["mdev"]
            ),
            isolation=Isolation(resource.get("isolation", "group")),
            iommufd=Iommufd(resource.get("iommufd", "never")),
            cdi=resource.get("cdi", False),
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
