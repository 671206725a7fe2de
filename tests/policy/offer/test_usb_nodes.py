# SPDX-License-Identifier: Apache-2.0
"""USB devices of which containers have nodes: what that costs where there are many of both."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.host import Host, UsbDevice
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import CdiDevice, CdiFile, DevNode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, NodePath, NodeRule, Spec, UsbRule, UsbSelector
from nodeagent.policy.offer import turn

TTYS, KIND = ResourceName("example.com/tty"), "vendor.example/tty"
STICK = UsbDevice("46f4:0001-X", "2-1", bus=2, number=4, vendor="46f4", product="0001", present=True)
BY_USB = UsbRule("example.com/stick", (UsbSelector(vendors=("46f4",)),))
BY_NODE = NodeRule(TTYS, paths=(NodePath("/dev/ttyUSB*"),), per_path=True)
BY_CDI = CdiRule(TTYS, KIND)


def host(count: int) -> Host:
    """So many serial adapters, each with its node, and a stick."""
    adapters = [UsbDevice(f"1a86:7523-{each}", f"1-{each}", bus=1, number=each) for each in range(count)]
    nodes = {f"/dev/ttyUSB{each.number}": f"/sys/devices/usb1/{each.name}/tty" for each in adapters}
    named = tuple(CdiDevice(path.removeprefix("/dev/"), (path,), path) for path in nodes)
    return Host(
        usb={each.id: each for each in (*adapters, STICK)},
        nodes=frozenset(nodes),
        dev_nodes={path: DevNode(path, parent=parent) for path, parent in nodes.items()},
        cdi={"/etc/cdi/tty.json": CdiFile("/etc/cdi/tty.json", KIND, named)},
    )


def calls_in(work: Callable[[], Any]) -> int:
    """How many functions are called."""
    seen = Counter[str]()
    sys.setprofile(lambda _, event, __: seen.update((event,)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]


def calls_of_a_turn(rule: NodeRule | CdiRule, count: int) -> int:
    """Those of the turn in which one more pod has a node, while others have all but that."""
    snapshot = Snapshot(host(count), Spec(rules=(rule, BY_USB)))
    first = turn.decide_first(snapshot)
    holders: dict[str, Holder] = {
        each.id: Holder("ns", each.id, TTYS) for each in first.resources[TTYS].devices
    }
    most = dict(tuple(holders.items())[1:])
    before = turn.decide_next(first, replace(snapshot, allocations=Allocations.of(most, Knowledge.COMPLETE)))
    now = replace(snapshot, allocations=Allocations.of(holders, Knowledge.COMPLETE))
    return calls_in(lambda: turn.decide_next(before, now))


@pytest.mark.parametrize("rule", [BY_NODE, BY_CDI], ids=["node", "cdi"])
def test_four_times_as_many_nodes_that_pods_have_cost_four_times_as_much(rule: NodeRule | CdiRule) -> None:
    assert calls_of_a_turn(rule, 160) < 6 * calls_of_a_turn(rule, 40)


def test_a_link_that_leads_to_a_usb_device_by_now_was_not_given_to_whoever_had_another_node() -> None:
    """And the device to which it led then is not free, wherever it leads to by now."""
    rule = NodeRule(TTYS, "/dev/mine")
    other = STICK._replace(id="46f4:0001-Y", name="2-2", number=5)
    led, leads = (DevNode("/dev/mine", target=each.node) for each in (other, STICK))
    usb = {each.id: each for each in (STICK, other)}
    here = Host(usb=usb, nodes=frozenset({"/dev/mine"}), dev_nodes={"/dev/mine": led})
    held = Allocations.of(
        {"mine-0": Holder("ns", "box", TTYS)}, Knowledge.COMPLETE, nodes={TTYS: {"mine-0": (other.node,)}}
    )
    before = turn.decide_first(Snapshot(here, Spec(rules=(rule, BY_USB)), allocations=held))
    now = replace(before.snapshot, host=replace(here, dev_nodes={"/dev/mine": leads}))
    for decision in (turn.decide_next(before, now), turn.decide_first(now)):
        sticks = decision.resources[ResourceName(BY_USB.name)].devices
        assert {each.id: each.healthy for each in sticks} == {STICK.id: True, other.id: False}
