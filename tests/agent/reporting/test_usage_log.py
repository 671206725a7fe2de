# SPDX-License-Identifier: Apache-2.0
"""Who has a device since when, and when it was let go: the log answers for last night."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reporting.usage_log import UsageLog
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import Allocations, Holder, unnamed
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import NodeRule, Spec
from tests.agent.parts import settings
from tests.conftest import Said

PORT, OTHER = ResourceName("example.com/port"), ResourceName("example.com/other")
RED, BLUE = Holder("ns", "red", PORT), Holder("ns", "blue", PORT)


class Node:
    """A node that offers PORT, and the component."""

    def __init__(self) -> None:
        self.snapshots = Snapshots(Snapshot(Host(nodes=frozenset({"/dev/port"}))))
        self.offering = Offering(self.snapshots, Releases(settings()), Timeouts())
        self.offer(PORT)

    def offer(self, *names: ResourceName) -> None:
        self.wish(*names)
        self.offering.one_turn()

    def wish(self, *names: ResourceName) -> None:
        """Rules of these names, before anything is decided from them."""
        spec = Spec(rules=tuple(NodeRule(name, "/dev/port", 2) for name in names))
        self.snapshots.publish(replace(self.snapshots.now, spec=spec))

    async def hold(
        self, holders: Mapping[str, Holder], came_with: Mapping[str, Holder] | None = None
    ) -> None:
        """The kubelet names these, and whoever follows that has done so."""
        allocations = Allocations.of(holders, came_with=came_with or {})
        self.snapshots.publish(replace(self.snapshots.now, allocations=allocations))
        await anyio.wait_all_tasks_blocked()

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(UsageLog(self.snapshots, self.offering).run)
            await anyio.wait_all_tasks_blocked()
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_pod_has_a_device_until_it_lets_go_and_each_is_said_once(node: Node, said: Said) -> None:
    async with node.telling():
        await node.hold({"port-0": RED})
        await node.hold({"port-0": RED, "port-1": BLUE})
        await node.hold({"port-1": BLUE})
    assert [(each["text"], each["device"], each["pod"]) for each in said(log.DEVICE_IN_USE)] == [
        ("ns/red uses port-0", ("port-0",), ("ns/red",)),
        ("ns/blue uses port-1", ("port-1",), ("ns/blue",)),
    ]
    assert said(log.DEVICE_RELEASED) == [
        {
            "resource": PORT,
            "text": "ns/red no longer uses port-0",
            "device": ("port-0",),
            "pod": ("ns/red",),
        }
    ]


async def test_what_is_held_at_the_start_is_said_then(node: Node, said: Said) -> None:
    await node.hold({"port-0": RED, "port-1": RED})
    async with node.telling():
        pass
    assert [each["text"] for each in said(log.DEVICE_IN_USE)] == ["ns/red uses port-0,port-1"]


async def test_what_passes_from_pod_to_pod_is_let_go_of_first(node: Node, said: Said) -> None:
    async with node.telling():
        await node.hold({"port-0": RED})
        await node.hold({"port-0": BLUE})
    assert [each["pod"] for each in said(log.DEVICE_IN_USE)] == [("ns/red",), ("ns/blue",)]
    assert [each["pod"] for each in said(log.DEVICE_RELEASED)] == [("ns/red",)]


async def test_a_pod_without_a_name_neither_has_a_device_nor_takes_it_from_another(
    node: Node, said: Said
) -> None:
    async with node.telling():
        await node.hold({"port-0": unnamed(PORT, None)})
        await node.hold({"port-0": RED})
        await node.hold({"port-0": unnamed(PORT, 1)})
        assert said(log.DEVICE_RELEASED) == []
        await node.hold({})
    assert [each["pod"] for each in said(log.DEVICE_IN_USE)] == [("ns/red",)]
    assert [each["pod"] for each in said(log.DEVICE_RELEASED)] == [("ns/red",)]


async def test_what_others_give_is_theirs_to_tell(node: Node, said: Said) -> None:
    foreign = Holder("ns", "red", OTHER)
    async with node.telling():
        await node.hold({"port-0": foreign})
        await node.hold({})
        assert said(log.DEVICE_IN_USE) == said(log.DEVICE_RELEASED) == []
        await node.hold({"port-0": foreign})
        node.wish(OTHER)
        await anyio.wait_all_tasks_blocked()
        node.offering.one_turn()
        await anyio.wait_all_tasks_blocked()
    assert [each["resource"] for each in said(log.DEVICE_IN_USE)] == [OTHER]


async def test_a_resource_that_ends_takes_nothing_from_the_pods_that_have_it(node: Node, said: Said) -> None:
    async with node.telling():
        await node.hold({"port-0": RED})
        node.offer()
        await node.hold({"port-0": RED, "port-1": Holder("ns", "green", OTHER)})
        assert said(log.DEVICE_RELEASED) == []
        await node.hold({})
    assert [each["pod"] for each in said(log.DEVICE_RELEASED)] == [("ns/red",)]
    assert len(said(log.DEVICE_IN_USE)) == 1


async def test_what_came_with_a_device_is_found_by_its_own_id(node: Node, said: Said) -> None:
    came_with = {"0000:01:00.1": replace(RED, came_with="port-0")}
    async with node.telling():
        await node.hold({"port-0": RED}, came_with)
        await node.hold({})
    (held,), (released,) = said(log.DEVICE_IN_USE), said(log.DEVICE_RELEASED)
    assert held["device"] == released["device"] == ("port-0", "0000:01:00.1")


async def test_two_hundred_pods_at_a_start_are_a_few_lines_in_which_each_is_found(
    node: Node, said: Said
) -> None:
    await node.hold({f"port-{number}": Holder("ns", f"vm-{number}", PORT) for number in range(200)})
    async with node.telling():
        pass
    lines = said(log.DEVICE_IN_USE)
    assert len(lines) == 4
    pods = [pod for line in lines if isinstance(line["pod"], tuple) for pod in line["pod"]]
    assert sorted(pods) == sorted(f"ns/vm-{number}" for number in range(200))
    assert "ns/vm-7 uses port-7; ns/vm-8 uses port-8" in str(lines[0]["text"])
