# SPDX-License-Identifier: Apache-2.0
"""Rights are needed as the settings ask for them, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.agent.cluster.inspection import needed_rights
from nodeagent.config import Cluster, Settings
from nodeagent.model.configuration import Configuration, KubeVirt
from nodeagent.model.resource import Via
from nodeagent.model.spec import PciRule
from tests.agent.cluster.telling import DEFAULTS
from tests.facts import names

VERBS = ("list", "watch", "create", "update", "delete")
FOLLOW = ["list kubevirts.kubevirt.io", "watch kubevirts.kubevirt.io", "list nodes", "watch nodes"]


def settings(enabled: str = "true", **cluster: Any) -> Settings:
    """Settings that write nothing to the cluster unless they say so."""
    configuration = Configuration(kubevirt=KubeVirt(enabled=enabled))
    return replace(DEFAULTS, configuration=configuration, cluster=Cluster(**({"events": False} | cluster)))


def needed(found: Settings) -> list[str]:
    return [f"{need.verb} {need.object}" for need in needed_rights(found, "n") if need.required]


@pytest.mark.parametrize(
    ("found", "more"),
    [
        (settings(), []),
        (settings(events=True), ["create events", "patch events"]),
        (settings(stale_resources="remove"), ["patch nodes/status"]),
        (settings(condition=True, stale_resources="remove"), ["patch nodes/status"]),
    ],
)
def test_each_setting_needs_its_rights_and_no_others(found: Settings, more: list[str]) -> None:
    assert needed(found) == [*FOLLOW, *more]


def test_who_follows_no_cluster_needs_nothing() -> None:
    assert needed(settings("false", events=True, condition=True, stale_resources="remove")) == []


def test_a_right_says_what_it_is_for() -> None:
    wanted = settings(condition=True, stale_resources="remove")
    (patch,) = (each for each in needed_rights(wanted, "n") if each.subresource)
    names(patch.purpose, "cluster.condition", "cluster.staleResources: remove")


def test_the_node_is_asked_for_by_its_name() -> None:
    found = needed_rights(settings(stale_resources="remove"), "node1")
    assert {need.name for need in found if need.resource == "nodes"} == {"node1"}


def test_devices_by_dra_need_their_rights_also_if_kubevirt_is_not_followed() -> None:
    rules = (PciRule("example.com/gpu", via=Via.DRA),)
    configuration = Configuration(kubevirt=KubeVirt(enabled="false"), rules=rules)
    of_slices = [f"{verb} resourceslices.resource.k8s.io" for verb in VERBS]
    assert needed(replace(DEFAULTS, configuration=configuration)) == [
        *of_slices,
        "get nodes",
        "get resourceclaims.resource.k8s.io",
    ]
