# SPDX-License-Identifier: Apache-2.0
"""Drivers of the host that leave the count of opens of a function above zero, as i915 does: it is nobody's.

Another function of the group keeps the node of the group, as whoever has this one open would.
"""

from __future__ import annotations

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import stays
from tests.blackbox.harness import Node, eventually, pod, until_health
from tests.blackbox.test_bindings import AUDIO, CARDS, GPU, RESOURCE, RULE
from tests.blackbox.test_one_group_counts import OLD
from tests.sim.drivers import SimulatedDrivers, simulated

LONG = 20.0  # seconds: a binding takes less than one, and what is refused is tried again


def configured(node: Node) -> None:
    """A display function, and its audio function that VFIO has."""
    for address, device, code, driver in ((GPU, "4680", "030000", "i915"), (AUDIO, "51c8", "040300", None)):
        node.host.add_function(address, vendor="8086", device=device, pci_class=code, driver=driver, group=10)
    node.host.bind(AUDIO, "vfio-pci")
    node.configure(RESOURCE + RULE)


async def given(drivers: SimulatedDrivers, kubelet: FakeKubelet) -> None:
    await eventually(lambda: drivers.driver(GPU) == "vfio-pci", LONG)
    await until_health(kubelet, CARDS, GPU, "Healthy")


async def test_it_is_bound_by_the_daemon_that_comes_after_one_was_killed_in_the_middle(node: Node) -> None:
    configured(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet:
        drivers.leaves[GPU] = 1
        async with node.daemon() as daemon:

            def killed(number: int, done: bool) -> None:
                if not done and drivers.writes[-1] == ("unbind", GPU):  # after it the next write begins
                    daemon.process.kill()

            drivers.around = killed
            with anyio.fail_after(LONG):
                await daemon.process.wait()
        drivers.around = lambda number, done: None
        assert drivers.driver(GPU) is None
        async with node.daemon():
            await given(drivers, kubelet)


@pytest.mark.slow
async def test_it_is_bound_again_when_somebody_has_unbound_it(node: Node) -> None:
    configured(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet, node.daemon():
        drivers.leaves[GPU] = 1
        await given(drivers, kubelet)
        await stays(kubelet, lambda: True, OLD)
        node.host.bind(GPU, None)
        node.host.write(GPU, "enable", "1")
        await until_health(kubelet, CARDS, GPU, "Unhealthy")
        await given(drivers, kubelet)


@pytest.mark.slow
async def test_what_was_seen_only_while_it_was_open_is_not_bound_before_it_is_closed(node: Node) -> None:
    """No daemon has bound it, so its lowest count may be of whoever has it open."""
    configured(node)
    node.host.bind(GPU, "vfio-pci")
    node.host.write(GPU, "enable", "1")
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(CARDS, 1)
        node.host.begin_going_away(GPU)
        await node.until_told(lambda told: "being removed" in str(told["changes"]))
        await stays(kubelet, lambda: drivers.driver(GPU) is None, OLD)
        node.host.write(GPU, "enable", "0")
        await given(drivers, kubelet)


@pytest.mark.slow
async def test_what_somebody_has_open_is_not_bound_before_it_is_closed(node: Node) -> None:
    """The unbind of somebody waits, and a write to its driver's files would, which no signal ends."""
    configured(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet, node.daemon():
        drivers.leaves[GPU] = 1
        await given(drivers, kubelet)
        one = await kubelet.admit(pod("one", {CARDS: 1}))
        assert one.phase == "Running"
        node.host.write(GPU, "enable", "2")
        kubelet.delete(one)
        node.host.bind(GPU, None)
        node.host.write(GPU, "enable", "2")
        wrote = len(drivers.writes)
        await until_health(kubelet, CARDS, GPU, "Unhealthy")
        await stays(kubelet, lambda: len(drivers.writes) == wrote, OLD)
        node.host.write(GPU, "enable", "1")
        await given(drivers, kubelet)
