# SPDX-License-Identifier: Apache-2.0
"""``nodeagent cluster check``: rights, objects and entries, each with what to do; nothing is changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nodeagent.sim.apiserver.requests import USER
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.slices import COUNTERS, TAINTS
from nodeagent.sim.apiserver.store import RESOURCE_SLICES
from tests.blackbox.harness import Node
from tests.blackbox.test_cluster import ENTRY, FLAGS, NAME, followed, put, server_of
from tests.facts import names

MACHINES = "get virtualmachineinstances.kubevirt.io"


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    async with server_of(node) as server:
        yield server


async def checked(node: Node, code: int, *flags: str) -> dict[str, Any]:
    """The answer as JSON, by what was looked at."""
    done = await node.command("cluster", "check", "-o", "json", *(flags or FLAGS))
    assert done.returncode == code, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told | {"by": {each["subject"]: each for each in told.get("checks", ())}}


async def test_all_that_a_node_needs_is_there(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    before = server.store.version
    told = await checked(node, 0)
    assert told["ok"]
    assert told["user"] == USER
    assert {what for what, each in told["by"].items() if each.get("required", True)} == {
        "list kubevirts.kubevirt.io",
        "watch kubevirts.kubevirt.io",
        "list nodes",
        "watch nodes",
        "create events",
        "patch events",
        "the kind kubevirts.kubevirt.io",
        f"the Node {NAME}",
        "the KubeVirt CR kubevirt/kubevirt",
    }
    assert server.store.version == before, "nothing was changed"


async def test_each_right_that_is_missing_has_the_rule_that_gives_it(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    server.denied.update({("watch", "nodes"), ("list", "kubevirts")})
    done = await node.command("cluster", "check", *FLAGS)
    assert done.returncode == 3
    lines = [line.strip() for line in done.stdout.splitlines()]
    names(lines[0], USER, "kubeconfig")
    for right, rule in (
        ("watch nodes", '{apiGroups: [""], resources: ["nodes"], verbs: ["watch"]}'),
        (
            "list kubevirts.kubevirt.io",
            '{apiGroups: ["kubevirt.io"], resources: ["kubevirts"], verbs: ["list"]}',
        ),
    ):
        at = next(number for number, line in enumerate(lines) if right in line)
        assert lines[at].startswith("NO ")
        assert rule in lines[at + 1]
    assert lines[-1].split()[-1] == "2"


async def test_a_right_that_only_a_person_needs_may_be_missing(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    server.denied.add(("get", "virtualmachineinstances"))
    told = await checked(node, 0)
    assert not told["by"][MACHINES]["ok"]
    assert "explain vmi" in told["by"][MACHINES]["message"]


async def test_the_status_of_nodes_is_patched_only_where_that_is_asked_for(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    server.denied.add(("patch", "nodes/status"))
    assert "patch nodes/status" not in (await checked(node, 0))["by"]
    told = await checked(node, 3, *FLAGS, "--cluster-stale-resources", "remove")
    assert not told["by"]["patch nodes/status"]["ok"]


async def test_objects_that_are_missing_are_told(node: Node, server: FakeApiServer) -> None:
    told = await checked(node, 3, *FLAGS, "--node-name", "other")
    assert "node.name" in told["by"]["the Node other"]["hint"]
    assert not told["by"]["a KubeVirt CR"]["ok"]
    server.absent.add("kubevirt.io")
    told = await checked(node, 3)
    assert "install KubeVirt" in told["by"]["the kind kubevirts.kubevirt.io"]["hint"]
    assert "a KubeVirt CR" not in told["by"]


async def test_what_of_the_cr_would_not_be_in_force_is_told(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY | {"pciVendorSelector": "all"}, ENTRY)
    told = await checked(node, 3)
    (entry,) = (each for each in told["checks"] if each["kind"] == "entry")
    assert entry["subject"].startswith("KubeVirt CR: permittedHostDevices.pciHostDevices[0]")
    assert entry["message"]
    assert entry["hint"]


async def test_a_daemon_is_spoken_of_with_its_own_settings_and_flags_go_over_them(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    async with followed(node):
        told = await checked(node, 0, "-o", "json")
        assert "patch nodes/status" not in told["by"]
        assert told["by"][f"the Node {NAME}"]["ok"]
        more = await checked(node, 0, "--cluster-stale-resources", "remove")
        assert more["by"]["patch nodes/status"]["ok"]


async def test_settings_that_follow_no_cluster_need_nothing(node: Node, server: FakeApiServer) -> None:
    done = await node.command("cluster", "check")
    assert done.returncode == 0
    names(done.stdout, "kubevirt.enabled", "auto")
    assert not (await checked(node, 0, "-o", "json"))["enabled"]
    assert server.statistics.requests == []


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        ((*FLAGS, "--kubeconfig", "/etc/none"), 1, "the kubeconfig"),
        ((*FLAGS, "--kubevirt-enabled", "perhaps"), 2, "perhaps"),
        ((*FLAGS,), 1, "401"),
    ],
)
async def test_what_cannot_be_asked_is_two_lines(
    node: Node, server: FakeApiServer, flags: tuple[str, ...], code: int, what: str
) -> None:
    server.tokens.add("another")
    done = await node.command("cluster", "check", *flags)
    assert (done.returncode, done.stdout) == (code, "")
    first, second = done.stderr.splitlines()
    assert what in first
    assert second


BY_DRA = "resources: [{name: example.com/gpu, via: dra, pci: [{vendors: [10de]}]}]"


async def test_with_dra_its_rights_its_api_and_its_feature_gates_are_checked(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    node.configure(BY_DRA)
    server.faults.set("gates", {TAINTS})
    server.denied.add(("get", "resourceclaims"))
    told = await checked(node, 3)
    by = told["by"]
    assert not by["get resourceclaims.resource.k8s.io"]["ok"]
    assert by["update resourceslices.resource.k8s.io"]["ok"]
    assert by["the kind resourceslices.resource.k8s.io (v1)"]["ok"]
    gates = {subject.split()[-1]: each for subject, each in by.items() if "gate" in subject}
    assert {gate: each["ok"] for gate, each in gates.items()} == {TAINTS: False, COUNTERS: True}
    assert not any(each.get("required", True) for each in gates.values())
    server.denied.clear()
    assert (await checked(node, 0))["ok"], "a missing gate is no fault"
    assert not list(server.store.all(RESOURCE_SLICES)), "nothing was changed"


async def test_a_cluster_without_dra_is_named(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    node.configure(BY_DRA)
    server.absent.add("resource.k8s.io")
    kind = (await checked(node, 3))["by"]["the kind resourceslices.resource.k8s.io (v1)"]
    assert not kind["ok"]
    names(kind["hint"], "1.34", "via: dra")
