# SPDX-License-Identifier: Apache-2.0
"""Nobody is given a part of a group while its drivers are being changed: all of it may go back yet."""

from __future__ import annotations

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import PATIENCE, Node, eventually, health, until_health
from tests.sim.drivers import SimulatedDrivers, Wrote, simulated

FIRST, SECOND = "0000:3c:00.0", "0000:3b:00.0"
"""In the order in which they are moved."""
CARDS = "example.com/card"
OFFERS = f"""apiVersion: nodeagent/v1
discovery: {{enabled: false}}
resources: [{{name: {CARDS}, pci: [{{devices: ["1eb8"]}}]}}]
"""
RULE = f'passthrough: [{{match: [{{addresses: ["{FIRST}", "{SECOND}"]}}]}}]\n'


def add_cards(node: Node) -> None:
    for address in (FIRST, SECOND):
        node.host.add_function(
            address, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=10
        )


def ever_healthy(kubelet: FakeKubelet) -> set[str]:
    """The ids that any list had as Healthy."""
    sent = kubelet.statistics.lists.get(CARDS, ())
    return {each for one in sent for each, told in one.health.items() if told == "Healthy"}


def both(drivers: SimulatedDrivers) -> set[str | None]:
    return {drivers.driver(each) for each in (FIRST, SECOND)}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rule", "hand"])
@pytest.mark.parametrize("fault", ["lost", "torn"])
async def test_nothing_is_offered_of_a_group_of_which_the_second_function_cannot_be_bound(
    node: Node, how: str, fault: str
) -> None:
    add_cards(node)
    node.configure(OFFERS)
    async with (
        simulated(node.host, FIRST, SECOND) as drivers,
        node.running(listed={CARDS: 2}) as (_, kubelet),
    ):
        drivers.faults.set(f"probe:{SECOND}", fault)
        if how == "hand":
            assert (await node.command("bind", FIRST, SECOND)).returncode != 0
        else:
            node.configure(OFFERS + RULE)
        await eventually(lambda: Wrote("reprobe", FIRST) in drivers.writes, PATIENCE)
        await eventually(lambda: both(drivers) == {"nvidia"}, PATIENCE)
        assert ever_healthy(kubelet) == set()
        drivers.faults.clear(f"probe:{SECOND}")
        if how == "a rule":
            for each in (FIRST, SECOND):
                await until_health(kubelet, CARDS, each, "Healthy")
            assert both(drivers) == {"vfio-pci"}


async def test_what_was_on_vfio_already_is_not_offered_while_the_rest_of_its_group_is_on_its_way(
    node: Node,
) -> None:
    """The second one's driver is away for a moment: nothing of the host is in the group then."""
    add_cards(node)
    node.host.bind(FIRST, "vfio-pci")
    node.configure(OFFERS + f'passthrough: [{{match: [{{addresses: ["{SECOND}"]}}]}}]\n')
    async with simulated(node.host, FIRST, SECOND) as drivers:
        drivers.faults.set(f"probe:{SECOND}", "lost")
        async with node.kubelet() as kubelet, node.daemon():
            await eventually(lambda: Wrote("reprobe", SECOND) in drivers.writes, PATIENCE)
            assert ever_healthy(kubelet) == set()
            await until_health(kubelet, CARDS, FIRST, "Unhealthy")
            assert health(kubelet, CARDS)[SECOND] == "Unhealthy"


async def test_what_goes_back_is_no_longer_offered_before_its_driver_changes(node: Node) -> None:
    add_cards(node)
    node.configure(OFFERS + RULE)
    async with (
        simulated(node.host, FIRST, SECOND) as drivers,
        node.running(listed={CARDS: 2}) as (_, kubelet),
    ):
        for each in (FIRST, SECOND):
            await until_health(kubelet, CARDS, each, "Healthy")
        drivers.faults.set("release", 0.5)
        node.configure(OFFERS)
        await node.until_told(lambda told: told["resources"][0]["healthy"] == 0)
        await kubelet.until(lambda: "Healthy" not in health(kubelet, CARDS).values(), PATIENCE)
        assert both(drivers) == {"vfio-pci"}
        await eventually(lambda: both(drivers) == {"nvidia"}, PATIENCE)


async def test_one_change_of_a_group_is_made_at_a_time_though_the_function_it_is_named_by_is_unplugged(
    node: Node,
) -> None:
    add_cards(node)
    node.configure(OFFERS + RULE)
    async with simulated(node.host, FIRST, SECOND) as drivers:
        drivers.faults.set(f"unbind:{FIRST}", 1.5)
        async with node.kubelet(), node.daemon():
            await eventually(lambda: Wrote("unbind", FIRST) in drivers.writes, PATIENCE)
            node.host.unplug(SECOND)
            together = set()
            while drivers.driver(FIRST) != "vfio-pci":
                together.add(len((await node.status())["changes"]["inProgress"]))
            assert max(together) == 1
