# SPDX-License-Identifier: Apache-2.0
"""From Resources to the kubelet: endpoints come and go, and an Allocate takes a fresh look."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nodeagent.base import log
from nodeagent.base.errors import AllocationRefused
from nodeagent.kubelet.device_plugin import DeviceList
from nodeagent.model.allocation import Holder
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import ReasonCode
from nodeagent.model.spec import PciRule, PciSelector
from nodeagent.sim.kubelet.state import Pod
from tests.agent.wired import GPU, GPUS, KVM, KVMS, NEIGHBOUR, ONE, TWO, Agent, agent_in
from tests.conftest import Said
from tests.facts import names
from tests.sim import fifos


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    async with agent_in(tmp_path, GPUS, KVMS) as found:
        yield found


async def test_each_resource_is_registered(agent: Agent, said: Said) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    await agent.kubelet.until_listed(KVM, 3)
    assert agent.plugins.endpoints.keys() == {GPU, KVM}


async def test_a_list_is_sent_again_where_the_kubelet_reads_it(agent: Agent) -> None:
    await agent.kubelet.until_listed(KVM, 3)
    agent.kubelet.faults.set(f"no-list:{KVM}")
    agent.wish(GPUS)
    await agent.kubelet.until(lambda: agent.kubelet.statistics.streams[KVM] == 0)
    agent.wish(KVMS)
    await agent.kubelet.until(lambda: len(agent.kubelet.statistics.accepted(KVM)) == 2)
    await agent.kubelet.until(lambda: agent.kubelet.statistics.streams[GPU] == 0)
    assert not agent.plugins.send_again()
    agent.wish(KVMS, GPUS)
    await agent.kubelet.until(lambda: agent.kubelet.capacity(GPU) == (2, 2))
    assert agent.plugins.send_again()
    assert agent.plugins.endpoints[GPU].devices.resends == 1


async def test_a_resource_that_appears_is_served_and_one_that_vanishes_is_not(
    agent: Agent, said: Said
) -> None:
    await agent.kubelet.until_listed(KVM, 3)
    agent.wish(GPUS)
    await agent.kubelet.until(lambda: agent.kubelet.statistics.streams[KVM] == 0)
    assert agent.plugins.endpoints.keys() == {GPU}
    assert [event["resource"] for event in said(log.RESOURCE_REMOVED)] == [KVM]
    agent.wish(GPUS, KVMS)
    await agent.kubelet.until(lambda: len(agent.kubelet.statistics.accepted(KVM)) == 2)
    await agent.kubelet.until_listed(KVM, 3)
    assert len(agent.kubelet.statistics.accepted(GPU)) == 1


async def test_a_resource_that_comes_back_waits_for_the_end_of_its_old_self(agent: Agent) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    for address in (ONE, TWO):
        fifos.hang(agent.host, address, "enable")
    async with anyio.create_task_group() as pods:
        pods.start_soon(agent.kubelet.admit, Pod("ns", "p", [{GPU: 1}]))
        await agent.eyes.until(lambda host: any(each.unreadable for each in host.functions.values()))
        agent.wish(KVMS)
        await agent.until(lambda found: GPU not in found)
        agent.wish(GPUS, KVMS)
        await agent.until(lambda found: GPU in found)
        with anyio.move_on_after(0.5):
            await agent.kubelet.until(lambda: len(agent.kubelet.statistics.accepted(GPU)) > 1)
        assert len(agent.kubelet.statistics.accepted(GPU)) == 1
        for address in (ONE, TWO):
            fifos.unhang(agent.host, address, "enable")
        await agent.kubelet.until(lambda: len(agent.kubelet.statistics.accepted(GPU)) == 2)
    await agent.kubelet.until_listed(GPU, 2)


async def test_a_change_reaches_the_kubelet_and_is_logged_once(agent: Agent, said: Said) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    agent.host.bind(ONE, "nouveau")
    agent.eyes.scan_requests.add(ONE)
    await agent.kubelet.until(lambda: agent.kubelet.capacity(GPU) == (2, 1))
    agent.host.bind(ONE, "vfio-pci")
    agent.eyes.scan_requests.add(ONE)
    await agent.kubelet.until(lambda: agent.kubelet.capacity(GPU) == (2, 2))
    (event,) = said(log.DEVICE_UNHEALTHY)
    assert (event["device"], event["reason"]) == (ONE, ReasonCode.DRIVER_CHANGED.value)
    names(str(event["hint"]), ONE, "vfio-pci")
    assert [each["device"] for each in said(log.DEVICE_HEALTHY)] == [ONE]
    assert {each["pci_address"] for each in (event, *said(log.DEVICE_HEALTHY))} == {ONE}


async def test_devices_that_come_and_go_are_logged(agent: Agent, said: Said) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    agent.host.unplug(ONE)
    agent.eyes.scan_requests.add(None)
    await agent.kubelet.until_listed(GPU, 1)
    agent.host.plug(ONE)
    agent.host.bind(ONE, "vfio-pci")
    agent.eyes.scan_requests.add(None)
    await agent.kubelet.until_listed(GPU, 2)
    assert [each["device"] for each in said(log.DEVICE_REMOVED)] == [ONE]
    assert [each["device"] for each in said(log.DEVICE_ADDED)] == [ONE]
    assert [each["pci_address"] for each in said(log.DEVICE_REMOVED) + said(log.DEVICE_ADDED)] == [ONE, ONE]


async def test_a_pod_gets_its_device(agent: Agent, said: Said) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    pod = await agent.kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
    (given,) = pod.result.ids[GPU]
    assert pod.result.envs == {"PCI_RESOURCE_EXAMPLE_COM_GPU": given}
    assert "/dev/vfio/vfio" in [device[0] for device in pod.result.devices]
    assert agent.given == {given}
    group = str(agent.snapshots.now.host.functions[PciAddress(given)].group)
    assert said(log.ALLOCATED) == [{"resource": GPU, "device": (given,), "group": (group,)}]


async def test_a_device_that_changed_unseen_is_refused_and_shown_before_the_refusal(
    agent: Agent, said: Said
) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    for address in (ONE, TWO):
        agent.host.bind(address, "nouveau")
    pod = await agent.kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
    assert pod.phase == "Failed"
    names(pod.message, "nouveau", "vfio-pci")
    (asked,) = agent.kubelet.statistics.allocations
    last = agent.kubelet.statistics.lists[GPU][-1]
    assert last.health[asked.ids[0]] == "Unhealthy"
    assert last.when <= asked.when
    assert agent.given == frozenset()
    (event,) = said(log.ALLOCATE_REFUSED)
    assert (event["device"], event["reason"]) == ((asked.ids[0],), ReasonCode.DRIVER_CHANGED.value)


async def with_a_neighbour(agent: Agent, **snapshot: Any) -> None:
    """A third function, in the group of the first, that the daemon has seen."""
    agent.host.add_function(NEIGHBOUR, group=0, numa=0, **snapshot)
    with anyio.fail_after(5):
        await agent.eyes.observer.rescan(frozenset({NEIGHBOUR, "/sys/kernel/iommu_groups/0"}))
    agent.offering.one_turn()


async def test_a_neighbour_that_changed_unseen_is_felt_by_an_allocate(agent: Agent) -> None:
    await with_a_neighbour(agent, vendor="8086", device="15e9", pci_class="0c0330", driver=None)
    agent.host.bind(NEIGHBOUR, "xhci_hcd")
    with anyio.fail_after(5), pytest.raises(AllocationRefused, match="xhci_hcd"):
        await agent.answers().allocate([ONE])


async def test_devices_of_one_group_are_preferred_together(agent: Agent) -> None:
    await with_a_neighbour(agent, vendor="10de", device="1000", pci_class="030200", driver="vfio-pci")
    assert set(await agent.answers().prefer([TWO, ONE, NEIGHBOUR], [], 2)) == {ONE, NEIGHBOUR}


async def test_the_list_knows_of_a_refusal_as_soon_as_it_is_raised(agent: Agent) -> None:
    devices = DeviceList(agent.resource().devices)
    agent.host.bind(ONE, "nouveau")
    with pytest.raises(AllocationRefused, match="nouveau"):
        await agent.answers(devices=devices).allocate([ONE])
    assert [device.healthy for device in devices.cell.get()] == [False, True]


@pytest.mark.parametrize("device_id", ["0000:ff:1f.7", "nonsense"])
async def test_an_unknown_device_is_refused(agent: Agent, device_id: str) -> None:
    with pytest.raises(AllocationRefused, match=device_id):
        await agent.answers().allocate([device_id])


async def test_a_resource_that_is_gone_refuses_everything(agent: Agent) -> None:
    with pytest.raises(AllocationRefused, match=ONE):
        await agent.answers(ResourceName("example.com/none")).allocate([ONE])


async def test_shares_of_a_node_are_not_preferred_and_functions_are(agent: Agent) -> None:
    assert agent.answers().preferring
    assert not agent.answers(KVM).preferring
    assert await agent.answers().prefer([ONE, TWO], [TWO], 1) == (TWO,)
    with pytest.raises(AllocationRefused, match="exceeds allocation size"):
        await agent.answers().prefer([ONE, TWO], [ONE, TWO], 1)


async def test_what_a_pod_holds_stays_listed_after_it_left_the_machine(agent: Agent) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    agent.hold(**{ONE: Holder("ns", "p", GPU, 0)})
    agent.host.unplug(ONE)
    agent.eyes.scan_requests.add(None)
    await agent.kubelet.until(lambda: agent.kubelet.capacity(GPU) == (2, 1))
    assert agent.releases.awaited.get() == {ONE}
    agent.hold()
    await agent.kubelet.until_listed(GPU, 1)
    await anyio.wait_all_tasks_blocked()
    assert agent.releases.awaited.get() == frozenset()


async def test_a_turn_with_nothing_new_gives_the_same_outcome(agent: Agent) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    assert agent.offering.one_turn() is agent.offering.one_turn()


async def test_a_resource_that_fails_is_served_again_and_the_others_go_on(agent: Agent, said: Said) -> None:
    await agent.kubelet.until_listed(GPU, 2)
    await agent.kubelet.until_listed(KVM, 3)
    agent.failing.add(GPU)
    await agent.kubelet.restart()
    await agent.kubelet.until_listed(KVM, 3)
    await agent.kubelet.until(lambda: len(said(log.SUBSYSTEM_FAILED)) >= 1)
    agent.failing.clear()
    await agent.kubelet.until_listed(GPU, 2)
    assert {event["subsystem"] for event in said(log.SUBSYSTEM_FAILED)} == {f"resource {GPU}"}


async def test_cdi_files_are_there_before_the_devices(tmp_path: Path) -> None:
    rule = PciRule(GPU, (PciSelector(vendors=("10de",)),), cdi=True)
    async with agent_in(tmp_path, rule) as agent:
        await agent.kubelet.until_listed(GPU, 2)
        (written,) = os.listdir(tmp_path / "run" / "cdi")
        pod = await agent.kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
        (given,) = pod.result.ids[GPU]
        assert pod.result.cdi == [f"nodeagent.local/vfio={given}"]
        assert pod.result.devices == []
        agent.wish()
        await agent.until(lambda found: {each.id for each in found[GPU].devices} == {given})
        assert written in os.listdir(tmp_path / "run" / "cdi")  # the container may not be started yet
        agent.kubelet.delete(pod)
        with anyio.fail_after(10.0):
            while agent.offering.resources.get():  # what an Allocate gave is pending for a second
                await agent.usage.request()
        await agent.kubelet.until(lambda: agent.kubelet.statistics.streams[GPU] == 0)
        with anyio.fail_after(10.0):
            while written in os.listdir(tmp_path / "run" / "cdi"):
                await anyio.lowlevel.checkpoint()


async def test_a_cdi_file_that_cannot_be_written_refuses_until_it_can(tmp_path: Path) -> None:
    rule = PciRule(GPU, (PciSelector(vendors=("10de",)),), cdi=True)
    in_the_way = tmp_path / "run" / "cdi"
    in_the_way.parent.mkdir()
    in_the_way.write_text("")
    async with agent_in(tmp_path, rule) as agent:
        await agent.kubelet.until_listed(GPU, 2)
        pod = await agent.kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
        names(pod.message, "CDI", "directory")
        (problem,) = agent.cdi.problems
        names(problem.message, GPU, "CDI")
        in_the_way.unlink()
        pod = await agent.kubelet.admit(Pod("ns", "q", [{GPU: 1}]))
        assert pod.phase == "Running"
        assert agent.cdi.problems == ()
