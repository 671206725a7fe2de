# SPDX-License-Identifier: Apache-2.0
"""What goes with a node that leads: what is of the same device, else one after the other."""

from __future__ import annotations

import pytest

from nodeagent.model.desired import Desired, NodePath, NodeRule
from nodeagent.model.host import Host
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import nodeunits

CAMERAS = tuple(DevNode(f"/dev/video{number}") for number in (10, 2, 0))


def led(*paths: NodePath, nodes: tuple[DevNode, ...]) -> list[list[str]]:
    """The paths of each unit that the first path leads, and what is missing of it after a dash."""
    rule = NodeRule("a.b/c", paths=paths, per_path=True)
    host = Host(dev_nodes={node.path: node for node in nodes})
    found = nodeunits.units(rule, Snapshot(host, Desired(rules=(rule,))))
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
    names = [unit.name for unit in nodeunits.units(rule, Snapshot(host, Desired(rules=(rule,))))]
    assert len(set(names)) == 2
    assert all(len(name) <= 54 for name in names)
