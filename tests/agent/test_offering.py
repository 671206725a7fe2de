# SPDX-License-Identifier: Apache-2.0
"""The loop in the middle: each input wakes it, and nothing new costs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import Allocations, Holder, Knowledge, Reservations
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.offer import turn
from tests.agent.parts import settings

KVM = ResourceName("example.com/kvm")


class Middle:
    """The loop, and the Snapshot that it decides from."""

    def __init__(self) -> None:
        host = Host(nodes=frozenset({"/dev/kvm"}))
        self.snapshots = Snapshots(Snapshot(host, Spec(rules=(NodeRule(KVM, "/dev/kvm", 2),))))
        self.releases = Releases(settings())
        self.offering = Offering(self.snapshots, self.releases, Timeouts())

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.offering.resources.get()[KVM].devices

    def publish(self, **parts: Any) -> None:
        """Other parts of the Snapshot."""
        self.snapshots.publish(replace(self.snapshots.now, **parts))


def test_before_the_first_turn_there_are_no_resources() -> None:
    assert Middle().offering.resources.get() == {}


def test_a_turn_decides_what_is_offered() -> None:
    middle = Middle()
    decision = middle.offering.one_turn()
    assert decision is middle.offering.decision
    assert [device.healthy for device in middle.devices] == [True, True]


def test_the_same_inputs_are_not_decided_again() -> None:
    middle = Middle()
    first = middle.offering.one_turn()
    assert middle.offering.one_turn() is first
    assert middle.offering.resources.version == 1


def test_a_node_that_nobody_has_looked_for_yet_is_not_said_to_be_missing() -> None:
    middle, tun = Middle(), ResourceName("example.com/tun")
    middle.publish(scanned_nodes=frozenset({"/dev/kvm"}))
    middle.offering.one_turn()
    named = (NodeRule(KVM, "/dev/kvm", 2), NodeRule(tun, "/dev/net/tun"))
    middle.publish(spec=Spec(rules=named))
    assert middle.offering.one_turn().resources.keys() == {KVM}
    nodes = frozenset({"/dev/kvm", "/dev/net/tun"})
    middle.publish(host=Host(nodes=nodes), scanned_nodes=nodes)
    assert all(device.healthy for device in middle.offering.one_turn().resources[tun].devices)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"host": Host()}, id="host"),
        pytest.param({"spec": Spec()}, id="spec"),
        pytest.param({"names": {"10de": "x"}}, id="names"),
        pytest.param({"allocations": Allocations.of({"x": Holder("ns", "p", KVM)})}, id="allocations"),
        pytest.param({"reservations": Reservations(admitting=frozenset({"x"}))}, id="settling"),
        pytest.param({"reservations": Reservations(withdrawn=frozenset({"x"}))}, id="withdrawn"),
        pytest.param({"unwanted": frozenset({"x"})}, id="unwanted"),
    ],
)
def test_each_part_that_offers_depend_on_is_decided_on(parts: dict[str, Any]) -> None:
    middle = Middle()
    first = middle.offering.one_turn()
    middle.publish(**parts)
    assert middle.offering.one_turn() is not first


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"open": frozenset({"x"})}, id="open"),
        pytest.param({"failures": {"x": "no"}}, id="failures"),
        pytest.param({"machine_id": "0"}, id="machine"),
    ],
)
def test_what_only_changes_of_the_host_depend_on_is_not_decided_on(parts: dict[str, Any]) -> None:
    middle = Middle()
    first = middle.offering.one_turn()
    middle.publish(**parts)
    assert middle.offering.one_turn() is first


@pytest.mark.parametrize("known", list(Knowledge))
def test_whether_the_holders_are_known_is_decided_on(known: Knowledge) -> None:
    middle = Middle()
    middle.publish(allocations=Allocations.of({"x": Holder("ns", "p", KVM)}, known))
    assert middle.offering.one_turn().snapshot.allocations.knowledge is known


async def test_the_loop_turns_when_an_input_changes() -> None:
    middle = Middle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(middle.offering.run)
        await anyio.wait_all_tasks_blocked()
        seen = middle.offering.resources.version
        middle.publish(host=Host())
        with anyio.fail_after(5):
            await middle.offering.resources.newer(seen)
        assert [device.healthy for device in middle.devices] == [False, False]
        tasks.cancel_scope.cancel()


def test_a_missing_node_ends_by_no_release() -> None:
    middle = Middle()
    middle.publish(host=Host())
    middle.offering.one_turn()
    assert turn.find_awaited(middle.offering.decision) == frozenset()


def test_a_held_group_awaits_the_release_of_all_its_functions() -> None:
    middle, addresses = Middle(), [PciAddress(f"0000:01:00.{number}") for number in (0, 1)]
    functions = {
        each: PciFunction(each, "10de", "1eb8", driver="vfio-pci", vfio=True, group=GroupNumber(7), inode=1)
        for each in addresses
    }
    group = Group(GroupNumber(7), tuple(addresses), node=True)
    middle.publish(
        host=Host(functions, {group.number: group}, nodes=frozenset({"/dev/vfio/vfio"}), iommu=True)
    )
    middle.publish(spec=Spec(rules=(PciRule("example.com/gpu", (PciSelector(vendors=("10de",)),)),)))
    middle.offering.one_turn()
    assert turn.find_awaited(middle.offering.decision) == frozenset()
    held = {str(addresses[0]): Holder("ns", "p", ResourceName("example.com/gpu"))}
    middle.publish(allocations=Allocations.of(held, Knowledge.COMPLETE))
    middle.offering.one_turn()
    assert turn.find_awaited(middle.offering.decision) == set(addresses)
