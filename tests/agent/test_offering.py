# SPDX-License-Identifier: Apache-2.0
"""The loop in the middle: each input wakes it, and nothing new costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import pytest

from nodeagent.agent.offering import Offering
from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.desired import Desired, NodeRule, PciRule, PciSelector
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device
from nodeagent.policy.offer import releases

KVM = ResourceName("example.com/kvm")


@dataclass
class Cells:
    """The inputs, all of which wake one loop."""

    wake: Latest[None] = field(default_factory=lambda: Latest(None))

    def __post_init__(self) -> None:
        told = self.wake.touch
        rule = NodeRule(KVM, "/dev/kvm", 2)
        self.host = Latest(Host(nodes=frozenset({"/dev/kvm"})), told)
        self.desired = Latest(Desired(rules=(rule,)), told)
        self.names: Latest[Mapping[str, str]] = Latest({}, told)
        self.allocations = Latest(Allocations(), told)
        self.settling = Latest(frozenset[str](), told)
        self.reconcile = Offering(
            self.wake, self.host, self.desired, self.names, self.allocations, self.settling
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.reconcile.resources.get()[KVM].devices


def test_before_the_first_turn_there_are_no_resources() -> None:
    assert Cells().reconcile.resources.get() == {}


def test_a_turn_decides_what_is_offered() -> None:
    cells = Cells()
    decision = cells.reconcile.one_turn()
    assert decision is cells.reconcile.decision
    assert [device.healthy for device in cells.devices] == [True, True]


def test_the_same_inputs_are_not_decided_again() -> None:
    cells = Cells()
    first = cells.reconcile.one_turn()
    assert cells.reconcile.one_turn() is first
    assert cells.reconcile.resources.version == 1


@pytest.mark.parametrize("which", ["host", "desired", "names", "allocations", "settling"])
def test_each_input_that_was_replaced_is_decided_on(which: str) -> None:
    cells = Cells()
    first = cells.reconcile.one_turn()
    cells.host.set(Host() if which == "host" else cells.host.get())
    cells.desired.set(Desired() if which == "desired" else cells.desired.get())
    cells.names.set({"10de": "x"} if which == "names" else cells.names.get())
    holders = {"x": Holder("ns", "p", KVM)}
    cells.allocations.set(
        Allocations(holders, Knowledge.COMPLETE) if which == "allocations" else cells.allocations.get()
    )
    cells.settling.set(frozenset({"x"}) if which == "settling" else cells.settling.get())
    assert cells.reconcile.one_turn() is not first


@pytest.mark.parametrize("known", list(Knowledge))
def test_whether_the_holders_are_known_is_decided_on(known: Knowledge) -> None:
    cells = Cells()
    cells.allocations.set(Allocations({"x": Holder("ns", "p", KVM)}, known))
    assert cells.reconcile.one_turn().snapshot.allocations.knowledge is known


async def test_the_loop_turns_when_an_input_changes() -> None:
    cells = Cells()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cells.reconcile.run)
        await anyio.wait_all_tasks_blocked()
        seen = cells.reconcile.resources.version
        cells.host.set(Host())
        with anyio.fail_after(5):
            await cells.reconcile.resources.newer(seen)
        assert [device.healthy for device in cells.devices] == [False, False]
        tasks.cancel_scope.cancel()


def test_a_missing_node_ends_by_no_release() -> None:
    cells = Cells()
    cells.host.set(Host())
    cells.reconcile.one_turn()
    assert releases.awaited(cells.reconcile.decision) == frozenset()


def test_a_held_group_awaits_the_release_of_all_its_functions() -> None:
    cells, addresses = Cells(), [PciAddress(f"0000:01:00.{number}") for number in (0, 1)]
    functions = {
        each: PciFunction(each, "10de", "1eb8", driver="vfio-pci", vfio=True, group=GroupNumber(7), inode=1)
        for each in addresses
    }
    group = Group(GroupNumber(7), tuple(addresses), node=True)
    cells.host.set(Host(functions, {group.number: group}, nodes=frozenset({"/dev/vfio/vfio"}), iommu=True))
    cells.desired.set(Desired(rules=(PciRule("example.com/gpu", (PciSelector(vendors=("10de",)),)),)))
    cells.reconcile.one_turn()
    assert releases.awaited(cells.reconcile.decision) == frozenset()
    cells.allocations.set(
        Allocations({addresses[0]: Holder("ns", "p", ResourceName("example.com/gpu"))}, Knowledge.COMPLETE)
    )
    cells.reconcile.one_turn()
    assert releases.awaited(cells.reconcile.decision) == set(addresses)
