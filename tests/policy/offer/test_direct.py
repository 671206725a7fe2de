# SPDX-License-Identifier: Apache-2.0
"""Turns of what is no HostDevice: a held node or CDI name that goes stays listed, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import CdiDevice, CdiFile, DevNode
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, Discovery, NodePath, NodeRule, Spec
from nodeagent.policy.offer import turn

CAMERA, PART = ResourceName("a.b/camera"), ResourceName("a.b/part")
RULES = (
    NodeRule(CAMERA, paths=(NodePath("/dev/video*"),), per_path=True),
    CdiRule(PART, "v.com/part"),
)
NODES = {path: DevNode(path) for path in ("/dev/video0", "/dev/video1", "/dev/part")}
FILE = CdiFile("/etc/cdi/x", "v.com/part", (CdiDevice("one", ("/dev/part",), "1"), CdiDevice("two", (), "2")))
HELD = {
    "video1": Holder("ns", "pod", CAMERA),
    "v.com/part=one": Holder("ns", "pod", PART),
}
WHOLE = Snapshot(
    Host(dev_nodes=NODES, cdi={FILE.path: FILE}),
    Spec(Discovery(enabled=False), rules=RULES),
    allocations=Allocations.of(HELD, Knowledge.COMPLETE),
)


def listed(decision: turn.Decision, name: ResourceName) -> dict[str, ReasonCode | None]:
    """Id → why it cannot be given."""
    devices = decision.resources[name].devices
    return {device.id: device.reason.code if device.reason else None for device in devices}


def test_what_is_held_stays_listed_until_its_release_and_what_is_not_goes() -> None:
    before = turn.decide_first(WHOLE)
    assert listed(before, CAMERA) == {"video0": None, "video1": None}
    assert listed(before, PART) == {"v.com/part=one": None, "v.com/part=two": None}
    empty = replace(WHOLE, host=Host(generation=1))
    after = turn.decide_next(before, empty)
    assert listed(after, CAMERA) == {"video1": ReasonCode.GONE}
    assert listed(after, PART) == {"v.com/part=one": ReasonCode.GONE}
    released = turn.decide_next(after, replace(empty, allocations=Allocations.of({}, Knowledge.COMPLETE)))
    assert listed(released, CAMERA) == listed(released, PART) == {}


def test_what_is_held_stays_listed_when_its_rule_goes_though_another_plugin_s_pod_has_such_an_id() -> None:
    nic = Holder("ns", "other", ResourceName("vendor.example/nic"))
    others = {nic.resource: dict.fromkeys(HELD, nic)}
    hidden = Allocations({**WHOLE.allocations.table, **others}, Knowledge.COMPLETE)
    before = turn.decide_first(replace(WHOLE, allocations=hidden))
    wanted = Spec(Discovery(enabled=False), rules=(replace(RULES[0], name="a.b/new"),))
    after = turn.decide_next(before, replace(before.snapshot, spec=wanted))
    assert listed(after, CAMERA) == {"video1": ReasonCode.EXCLUDED}
    assert listed(after, PART) == {"v.com/part=one": ReasonCode.EXCLUDED}
    nobody = replace(hidden, table=others)
    released = turn.decide_next(after, replace(after.snapshot, allocations=nobody))
    assert released.resources.keys() == {"a.b/new"}


def test_a_resource_of_which_nothing_has_changed_is_the_same_object() -> None:
    before = turn.decide_first(WHOLE)
    host = replace(WHOLE.host, dev_nodes={**NODES, "/dev/video2": DevNode("/dev/video2")}, generation=1)
    after = turn.decide_next(before, replace(WHOLE, host=host))
    assert list(listed(after, CAMERA)) == ["video0", "video1", "video2"]
    assert after.resources[PART] is before.resources[PART]
