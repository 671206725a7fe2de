# SPDX-License-Identifier: Apache-2.0
"""Rules for device nodes: ids and health of shares, and which nodes go with a node that leads."""

from __future__ import annotations

import pytest

from nodeagent.model.host import Host, Kind
from nodeagent.model.nodes import DevNode
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import NodePath, NodeRule, Spec
from nodeagent.policy.offer import node_rules
from tests.facts import names
from tests.policy.samples import ids

TUN = NodeRule("devices.example.com/tun", "/dev/net/tun", count=3)
CAMERAS = tuple(DevNode(f"/dev/video{number}") for number in (10, 2, 0))


def _snapshot(*nodes: str) -> Snapshot:
    """A host that was saved with no more than the names of its nodes."""
    return Snapshot(Host(nodes=frozenset(nodes)), Spec(rules=(TUN,)))


def test_a_node_that_exists_is_offered_as_so_many_healthy_shares() -> None:
    found = node_rules.resource(TUN, _snapshot("/dev/net/tun"))
    assert (found.name, found.kind) == (TUN.name, Kind.NODE)
    assert ids(found.devices) == ["net_tun-0", "net_tun-1", "net_tun-2"]
    assert all(device.healthy and device.numa is None for device in found.devices)


def test_a_node_that_is_missing_is_listed_unhealthy_and_named() -> None:
    found = node_rules.resource(TUN, _snapshot("/dev/net"))
    reasons = {device.reason for device in found.devices}
    (reason,) = reasons
    assert reason is not None
    assert reason.code is ReasonCode.NODE_MISSING
    names(reason.message, "/dev/net/tun")


@pytest.mark.parametrize(
    ("device_id", "share"),
    [
        ("net_tun-0", True),
        ("net_tun-2", True),
        ("net_tun-3", False),
        ("net_tun-00", False),
        ("net_tun-", False),
        ("net_tun", False),
        ("net_tun--1", False),
        ("kvm-0", False),
        ("", False),
        ("0000:65:00.0", False),
    ],
)
def test_only_its_own_ids_are_shares_of_a_rule(device_id: str, share: bool) -> None:
    assert (node_rules.resource(TUN, _snapshot("/dev/net/tun")).device(device_id) is not None) is share


def led(*paths: NodePath, nodes: tuple[DevNode, ...]) -> list[list[str]]:
    """The paths of each unit that the first path leads, and what is missing of it after a dash."""
    rule = NodeRule("a.b/c", paths=paths, per_path=True)
    host = Host(dev_nodes={node.path: node for node in nodes})
    found = node_rules.build_units(rule, Snapshot(host, Spec(rules=(rule,))))
    return [
        [*(node.path[5:] for node in unit.nodes), *(f"-{path}" for path in unit.missing)] for unit in found
    ]


def test_leaders_stand_in_the_order_in_which_people_count() -> None:
    assert led(NodePath("/dev/video*"), nodes=CAMERAS) == [["video0"], ["video2"], ["video10"]]


@pytest.mark.parametrize(
    ("follower", "given"),
    [
        (NodePath("/dev/snd*"), ["snd0", "snd1", "-/dev/snd*"]),
        (NodePath("/dev/snd*", optional=True), ["snd0", "snd1", ""]),
        (NodePath("/dev/snd*", limit=2), ["snd0", "snd0", "snd1"]),
        (NodePath("/dev/fuse"), ["fuse", "fuse", "fuse"]),
        (NodePath("/dev/fuse", limit=2), ["fuse", "fuse", "-/dev/fuse"]),
        (NodePath("/dev/none", optional=True), ["", "", ""]),
    ],
)
def test_what_is_of_no_common_device_is_dealt_out_in_order(follower: NodePath, given: list[str]) -> None:
    nodes = (*CAMERAS, DevNode("/dev/snd0"), DevNode("/dev/snd1"), DevNode("/dev/fuse"))
    found = led(NodePath("/dev/video*"), follower, nodes=nodes)
    assert [" ".join(unit[1:]) for unit in found] == given


def test_what_is_of_one_device_goes_together_whatever_its_number() -> None:
    nodes = tuple(
        DevNode(f"/dev/{name}", parent=f"/sys/devices/{parent}")
        for name, parent in (("r0", "a"), ("r1", "b"), ("c0", "b"), ("c1", "a"), ("c2", "a"))
    )
    found = led(NodePath("/dev/r*"), NodePath("/dev/c*"), nodes=nodes)
    assert found == [["r0", "c1", "c2"], ["r1", "c0"]]


def test_names_in_ids_are_short_and_tell_long_ones_apart() -> None:
    nodes = tuple(DevNode(f"/dev/v{number}", alias=f"v4l/{'x' * 80}{number}") for number in range(2))
    rule = NodeRule("a.b/c", paths=(NodePath("/dev/v*"),), per_path=True, count=2)
    host = Host(dev_nodes={node.path: node for node in nodes})
    found = [unit.name for unit in node_rules.build_units(rule, Snapshot(host, Spec(rules=(rule,))))]
    assert len(set(found)) == 2
    assert all(len(name) <= 54 for name in found)
