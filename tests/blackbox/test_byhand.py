# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind`` and ``release``: what the rules would do, by hand, with a daemon and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import facts
from tests.blackbox.harness import PATIENCE, Node, eventually, pod, until_health
from tests.blackbox.test_bindings import (
    AUDIO,
    BOUND,
    CARDS,
    GPU,
    NIC,
    OWN,
    RESOURCE,
    RULE,
    add_card,
    add_disk,
    add_network,
    drivers_of,
)
from tests.blackbox.test_bindings_faults import (
    BACK,
    FORTH,
    GROUPS,
    add_groups,
    everything,
    faulty,
    states,
)
from tests.sim.drivers import SimulatedDrivers, simulated

DAEMON, ALONE = "daemon", "alone"
WAYS = pytest.mark.parametrize("way", [DAEMON, ALONE])


class Hand:
    """Somebody who binds and releases by hand on a node on which a daemon runs, or none."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def says(self, code: int, *words: str) -> str:
        """Run the verb, which ends with that code; what it answers."""
        done = await self.node.command(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    async def told(self, code: int, *words: str) -> dict[str, Any]:
        """The same as a document."""
        document: dict[str, Any] = json.loads(await self.says(code, *words, "-o", "json"))
        return document


def torn(drivers: SimulatedDrivers) -> bool:
    return drivers_of(drivers) not in (OWN, BOUND)


async def bound_and_released(hand: Hand, drivers: SimulatedDrivers, *names: str) -> None:
    """All that is named becomes bound, and gets its own driver back."""
    facts.names(await hand.says(0, "bind", *names, "--dry-run"), "would be done", GPU, AUDIO, "vfio-pci")
    assert (drivers.writes, drivers_of(drivers)) == ([], OWN)
    said = await hand.says(0, "bind", *names)
    facts.names(said, "done: ", GPU, AUDIO, "vfio-pci")
    assert drivers_of(drivers) == BOUND
    wrote = len(drivers.writes)
    assert "nothing to do" in await hand.says(0, "bind", *names)
    assert "would be done" in await hand.says(0, "release", *names, "--dry-run")
    assert (len(drivers.writes), drivers_of(drivers)) == (wrote, BOUND)
    assert "done: " in await hand.says(0, "release", *names)
    assert drivers_of(drivers) == OWN
    assert not hand.node.has_former_drivers()
    assert "nothing to do" in await hand.says(0, "release", *names)
    assert len(drivers.writes) == wrote + 2 * len(BACK)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [GPU, "3b:00.0", "3b:*", "10de:1eb8"])
async def test_a_group_is_bound_and_given_back_by_a_daemon_that_has_no_rules(node: Node, name: str) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        await bound_and_released(Hand(node), drivers, name)


@pytest.mark.timeout(60)
async def test_without_a_daemon_the_verb_does_the_work_itself(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        await bound_and_released(Hand(node), drivers, GPU)


@pytest.mark.timeout(60)
async def test_what_was_bound_by_hand_outlives_new_settings_and_the_daemon(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        async with node.running(listed={CARDS: 1}) as (daemon, kubelet):
            await Hand(node).says(0, "bind", GPU)
            await until_health(kubelet, CARDS, GPU, "Healthy")
            node.configure(RESOURCE + RULE.replace(GPU, "0000:99:00.0"))
            await daemon.logged("config-reloaded")
            assert "nothing to do" in (await node.command("plan")).stdout
        async with node.running(listed={CARDS: 1}) as (_, kubelet):
            await until_health(kubelet, CARDS, GPU, "Healthy")
            wrote = len(drivers.writes)
            node.host.unplug(AUDIO)
            node.host.plug(AUDIO)
            node.host.bind(AUDIO, "snd_hda_intel")
            await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
            assert len(drivers.writes) > wrote
            await Hand(node).says(0, "release", GPU)
            assert drivers_of(drivers) == OWN


@pytest.mark.timeout(60)
async def test_another_device_in_the_same_slot_is_not_bound(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        await Hand(node).says(0, "bind", GPU)
        node.host.unplug(GPU)
        node.host.unplug(AUDIO)
        node.host.add_function(GPU, vendor="144d", device="a808", pci_class="010802", driver="nvme", group=11)
        await node.until_nothing_is_to_do()
        assert node.driver_of(GPU) == "nvme"
        assert [wrote.kind for wrote in drivers.writes] == [*FORTH[:2] * 2, *FORTH[2:] * 2]


@WAYS
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("prepare", "evidence"),
    [
        (add_disk, ("nvme0n1", "/srv/data")),
        (add_network, ("eth0", "default route")),
        (lambda node: node.host.write(GPU, "boot_vga", "1"), ("boot display",)),
        (
            lambda node: node.host.write(AUDIO, "driver_override", "snd_hda_intel"),
            ("driver_override", "snd_hda_intel"),
        ),
    ],
)
async def test_what_rules_would_refuse_is_refused_with_the_same_evidence(
    node: Node, way: str, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        if way == ALONE:
            told = await Hand(node).told(3, "bind", GPU)
        else:
            async with node.daemon():
                told = await Hand(node).told(3, "bind", GPU)
                assert (await node.status())["changes"]["problems"] == []
        (result,) = told["results"]
        (problem,) = result["refusals"]
        facts.names(problem["message"], *evidence)
        assert (result["outcome"], bool(problem["hint"])) == ("refused", True)
        assert [wrote for wrote in drivers.writes if wrote.kind != "override"] == []
        assert [driver for driver, _ in drivers_of(drivers)] == ["nouveau", "snd_hda_intel"]


async def test_a_bridge_that_is_named_is_refused_and_a_pattern_passes_it_by(node: Node) -> None:
    add_card(node)
    port = "0000:3b:01.0"
    node.host.add_function(
        port, vendor="8086", device="2030", pci_class="060400", driver="pcieport", group=12
    )
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        assert "it is a bridge" in await Hand(node).says(3, "bind", port)
        assert "bridge" not in await Hand(node).says(0, "bind", "3b:*")
        assert drivers_of(drivers) == BOUND
        assert node.driver_of(port) == "pcieport"


@pytest.mark.timeout(60)
async def test_what_a_pod_holds_is_neither_bound_nor_released(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.running(listed={CARDS: 1}) as (_, kubelet),
    ):
        hand = Hand(node)
        await hand.says(0, "bind", GPU)
        await until_health(kubelet, CARDS, GPU, "Healthy")
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        wrote = len(drivers.writes)
        assert "ns/vm" in await hand.says(3, "release", GPU)
        assert "nothing to do" in await hand.says(0, "bind", GPU)
        kubelet.delete(vm)
        assert (len(drivers.writes), drivers_of(drivers)) == (wrote, BOUND)
        await hand.says(0, "release", GPU)
        assert drivers_of(drivers) == OWN


@pytest.mark.timeout(60)
async def test_without_a_daemon_the_kubelet_is_asked_who_holds_what(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet:
        await Hand(node).says(0, "bind", GPU)
        async with node.daemon():
            await kubelet.until_listed(CARDS, 1, PATIENCE)
            await until_health(kubelet, CARDS, GPU, "Healthy")
            vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        assert "ns/vm" in await Hand(node).says(3, "release", GPU)
        assert drivers_of(drivers) == BOUND
        kubelet.delete(vm)
        async with node.daemon():
            await kubelet.until_listed(CARDS, 1, PATIENCE)
            await until_health(kubelet, CARDS, GPU, "Healthy")
            await Hand(node).says(0, "release", GPU)
            assert drivers_of(drivers) == OWN


@pytest.mark.timeout(60)
async def test_what_only_waits_to_go_back_stays_bound_if_somebody_asks_for_it(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(CARDS, 1, PATIENCE)
            await until_health(kubelet, CARDS, GPU, "Healthy")
            vm = await kubelet.admit(pod("vm", {CARDS: 1}))
            node.configure(RESOURCE)
            await daemon.logged("action-waiting")
            assert "done: " in await Hand(node).says(0, "bind", GPU)
            kubelet.delete(vm)
        async with node.daemon():
            assert "nothing to do" in (await node.command("plan")).stdout
            assert drivers_of(drivers) == BOUND


@WAYS
@pytest.mark.timeout(60)
async def test_what_a_rule_wants_is_not_released_and_the_rule_is_named(node: Node, way: str) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        async with node.daemon():
            await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
            said = await Hand(node).says(3, "release", AUDIO)
        if way == ALONE:
            said = await Hand(node).says(3, "release", AUDIO)
        assert "config.yaml:4" in said
        assert drivers_of(drivers) == BOUND


@WAYS
@pytest.mark.timeout(60)
async def test_what_nodeagent_never_bound_is_not_released(node: Node, way: str) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        node.host.bind(GPU, "vfio-pci")
        if way == ALONE:
            said = await Hand(node).says(3, "release", GPU)
        else:
            async with node.daemon():
                said = await Hand(node).says(3, "release", GPU)
        facts.names(said, "refused", GPU, "nodeagent")
        assert drivers.writes == []
        assert "nothing to do" in await Hand(node).says(0, "release", AUDIO)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", ["lost", "torn"])
@WAYS
async def test_of_sixteen_groups_by_one_name_each_is_as_asked_or_as_before(
    node: Node, way: str, fault: str
) -> None:
    groups = add_groups(node)
    async with simulated(node.host, *everything(groups)) as drivers, node.kubelet():
        failing = faulty(groups, FORTH)
        for kind, address in failing.values():
            drivers.faults.set(f"{kind}:{address}", fault)
        wanted = ["before" if number in failing else "wished" for number in range(GROUPS)]
        if way == ALONE:
            document = await Hand(node).told(3, "bind", "8086:10d3")
        else:
            async with node.daemon():
                document = await Hand(node).told(3, "bind", "8086:10d3")
                await node.until_told(lambda told: not told["changes"]["inProgress"])
                await node.until_nothing_is_to_do()  # what is given back after a refusal is scanned again
        assert states(drivers, groups) == wanted
        assert "nothing to do" in (await node.command("plan")).stdout
        became = {each["functions"][0]: each["outcome"] for each in document["results"]}
        assert became == {
            group[0]: "refused" if number in failing else "done" for number, group in enumerate(groups)
        }


@pytest.mark.timeout(120)
@pytest.mark.time_scale(3)  # the simulated drivers answer late while other tests run
async def test_a_group_that_cannot_be_given_back_stays_bound_and_is_released_at_the_next_try(
    node: Node,
) -> None:
    groups = add_groups(node, 7, 2)
    async with simulated(node.host, *everything(groups)) as drivers, node.kubelet(), node.daemon():
        hand = Hand(node)
        await hand.says(0, "bind", "8086:10d3")
        failing = faulty(groups, BACK)
        for kind, address in failing.values():
            drivers.faults.set(f"{kind}:{address}", "lost")
        await hand.says(3, "release", "8086:10d3")
        wanted = ["wished" if number in failing else "before" for number in range(len(groups))]
        await eventually(lambda: states(drivers, groups) == wanted, PATIENCE)
        for kind, address in failing.values():
            drivers.faults.clear(f"{kind}:{address}")
        await node.until_nothing_is_to_do()
        await hand.says(0, "release", "8086:10d3")
        assert states(drivers, groups) == ["before"] * len(groups)


@pytest.mark.timeout(60)
async def test_force_of_a_rule_does_not_count_for_a_hand(node: Node) -> None:
    add_card(node)
    add_network(node)
    async with simulated(node.host, GPU, AUDIO, NIC), node.kubelet():
        assert "default route" in await Hand(node).says(3, "bind", NIC)
