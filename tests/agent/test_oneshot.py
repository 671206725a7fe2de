# SPDX-License-Identifier: Apache-2.0
"""One look without a daemon: from the host, from a saved one, and with what a daemon tells."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from nodeagent import config
from nodeagent.agent import oneshot
from nodeagent.base import jsonsocket
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import explain
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost

ONE = PciAddress(nodes.address(0))
KNOWN = {"podResources": "answers", "holdersKnown": True}


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return nodes.many(tmp_path, 2)


def loaded(host: SimulatedHost) -> config.Settings:
    return config.load(config.Sources(host.directory, {}, {}))


async def test_a_look_decides_as_the_daemon_would(host: SimulatedHost) -> None:
    host.pci_ids("10de  NVIDIA Corporation\n\t1000  Made-up Card\n")
    decision = await oneshot.inspect(Root(host.directory), loaded(host))
    (resource,) = decision.resources.values()
    assert resource.name == "nvidia.com/MADEUP_CARD"
    assert len(resource.devices) == 2
    assert not decision.snapshot.allocations.complete


async def test_a_saved_host_is_not_mixed_with_the_present_one(host: SimulatedHost) -> None:
    decision = await oneshot.inspect(Root(host.directory), loaded(host), Host(iommu=True))
    assert decision.snapshot.host.functions == {}


@pytest.mark.parametrize(
    ("told", "known", "holders"),
    [
        ({"holders": {ONE: {"pod": "ns/p", "resource": "a/b"}}, "kubelet": KNOWN}, True, {ONE: "ns/p"}),
        ({"kubelet": KNOWN}, True, {}),
        ({"kubelet": {"podResources": "answers", "holdersKnown": False}}, False, {}),
        ({}, False, {}),
        (["no document"], False, {}),
    ],
    ids=["holders", "none", "not yet", "nothing", "garbage"],
)
async def test_a_running_daemon_says_who_holds_what(
    host: SimulatedHost, told: object, known: bool, holders: dict[str, str]
) -> None:
    root, settings = Root(host.directory), loaded(host)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jsonsocket.serve, root.path(settings.status.socket), lambda: told)
        await anyio.wait_all_tasks_blocked()
        decision = await oneshot.inspect(root, settings)
        tasks.cancel_scope.cancel()
    assert decision.snapshot.allocations.complete is known
    assert {name: str(holder) for name, holder in decision.snapshot.allocations.holders.items()} == holders


async def test_what_the_daemon_lists_is_offered_whatever_would_take_it_now(host: SimulatedHost) -> None:
    host.bind(ONE, "nouveau")
    root, settings = Root(host.directory), loaded(host)
    listed = {"resources": [{"name": "a.b/gpu", "devices": [{"id": ONE}, {"id": "gone"}]}]}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jsonsocket.serve, root.path(settings.status.socket), lambda: listed, "")
        await anyio.wait_all_tasks_blocked()
        told = await oneshot.with_hints(root, await oneshot.inspect(root, settings), ONE)
        tasks.cancel_scope.cancel()
    found = explain.explain(ONE, told)
    assert found is not None
    assert found.verdict.startswith("offered as a.b/gpu, Unhealthy: its driver is nouveau")
    assert found.rules[-1][0] == "memory"


async def test_hints_are_read_for_one_function_only(host: SimulatedHost) -> None:
    root = Root(host.directory)
    decision = await oneshot.inspect(root, loaded(host))
    assert decision.snapshot.host.functions[ONE].hints is None
    host.write(ONE, "aer_dev_fatal", "TOTAL_ERR_FATAL 2")
    found = (await oneshot.with_hints(root, decision, ONE)).snapshot.host.functions
    hints = found[ONE].hints
    assert hints is not None
    assert hints.aer_fatal == 2
    assert found[PciAddress(nodes.address(1))].hints is None


async def test_an_unknown_function_has_no_hints(host: SimulatedHost) -> None:
    root = Root(host.directory)
    decision = await oneshot.inspect(root, loaded(host))
    assert await oneshot.with_hints(root, decision, PciAddress("0000:ff:00.0")) is decision


@pytest.mark.parametrize("known", list(Knowledge))
def test_a_plan_is_made_with_what_is_known_of_the_holders(known: Knowledge) -> None:
    held = {"x": Holder("ns", "p", ResourceName("example.com/gpu"))}
    planned = oneshot.to_plan(Snapshot(Host(), Desired(), {}, Allocations(held, known)), "m")
    assert (planned.holders, planned.holders_known) == (held, known is Knowledge.COMPLETE)
