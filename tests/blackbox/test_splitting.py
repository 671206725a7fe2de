# SPDX-License-Identifier: Apache-2.0
"""Cards that the daemon splits: seen by the kubelet, by pods, and by whoever asks for its status."""

from __future__ import annotations

import errno
import signal
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.mdev import (
    Card,
    MdevKernel,
    SimulatedCards,
    Type,
    add_card,
    create_file,
    fail_create,
    mend_create,
    simulated_cards,
)
from tests.blackbox.boards import named, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, health, pod, within
from tests.facts import names
from tests.sim import fifos

TYPES = (Type("nvidia-222", 16, "GRID T4-1B"), Type("nvidia-228", 2, "GRID T4-8A"))
SMALL, LARGE = "nvidia.com/GRID_T4-1B", "nvidia.com/GRID_T4-8A"
FIRST, SECOND = "0000:3b:00.0", "0000:5e:00.0"
KEPT = 2.0  # seconds: an mdev that no pod has is removed in less than one
DEFINED = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def configure(node: Node, *types: str) -> None:
    wanted = f"mdevs: {{manage: true, types: [{', '.join(types)}]}}"
    node.configure(f"apiVersion: nodeagent/v1\n{wanted}\n")


@asynccontextmanager
async def two_cards(node: Node) -> AsyncIterator[SimulatedCards]:
    """Two Tesla T4 that answer to writes."""
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    split = [Card(FIRST, TYPES), Card(SECOND, TYPES)]
    for number, card in enumerate(split):
        add_card(node.host, card, 10 + number)
    async with simulated_cards(node.host, MdevKernel(split)) as made:
        yield made


def listed(kubelet: FakeKubelet, resource: str) -> int:
    return list(health(kubelet, resource).values()).count("Healthy")


async def test_a_type_that_comes_back_when_no_card_is_free_is_reported_with_the_way_out(node: Node) -> None:
    configure(node, "nvidia-228", "nvidia-222")
    async with two_cards(node), node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: (listed(kubelet, SMALL), listed(kubelet, LARGE)) == (16, 2), PATIENCE)
        configure(node, "nvidia-228")
        await kubelet.until(lambda: (listed(kubelet, SMALL), listed(kubelet, LARGE)) == (0, 4), PATIENCE)
        configure(node, "nvidia-228", "nvidia-222")
        await node.until_told(lambda told: "no-card" in str(told.get("findings")))
        for command in ("plan", "status"):
            names((await node.command(command)).stdout, "nvidia-222", FIRST, SECOND, "mdevs.nodes")
        configure(node)
        await kubelet.until(lambda: (listed(kubelet, SMALL), listed(kubelet, LARGE)) == (0, 0), PATIENCE)
        configure(node, "nvidia-228", "nvidia-222")
        await kubelet.until(lambda: (listed(kubelet, SMALL), listed(kubelet, LARGE)) == (16, 2), PATIENCE)


async def test_the_list_is_complete_after_the_last_instance_without_a_second_trigger(node: Node) -> None:
    configure(node, "nvidia-222", "nvidia-228")
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon("--timing-resync", "600s"):
        await kubelet.until(lambda: (listed(kubelet, SMALL), listed(kubelet, LARGE)) == (16, 2), 15)
        assert (made.types_on(FIRST), made.types_on(SECOND)) == (["nvidia-222"] * 16, ["nvidia-228"] * 2)
        assert made.writes == 18


@pytest.mark.slow
async def test_the_list_is_complete_within_100_ms_of_the_last_instance(node: Node) -> None:
    """The median of some rounds: what one of them lost to the rest of the machine is not the daemon's."""
    configure(node)
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon("--timing-resync", "600s"):
        took: list[float] = []
        for kind, resource, count in [("nvidia-222", SMALL, 32), ("nvidia-228", LARGE, 4)] * 4:
            configure(node, kind)
            await kubelet.until_listed(resource, count, 15)
            took.append(kubelet.statistics.lists[resource][-1].when - made.last_bind)
        assert statistics.median(took) < 0.1, took


@pytest.mark.slow
async def test_a_vgpu_that_a_pod_holds_outlives_the_wish_for_it(node: Node) -> None:
    configure(node, "nvidia-222")
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed(SMALL, 32, 15)
        vm = pod("vm", {SMALL: 1})
        await kubelet.admit(vm)
        (held,) = vm.result.ids[SMALL]
        configure(node, "nvidia-228")
        await eventually(lambda: [*made.types_on(FIRST), *made.types_on(SECOND)].count("nvidia-222") == 1)
        assert held in made.instances
        await node.until_told(
            lambda told: ["ns/vm" in each["message"] for each in told["changes"]["waiting"]] == [True]
        )
        await daemon.logged("action-waiting")
        kubelet.delete(vm)
        await kubelet.until_listed(LARGE, 4, 15)
        assert held not in made.instances


@pytest.mark.slow
async def test_a_vgpu_that_was_given_a_moment_ago_is_told_as_that(node: Node) -> None:
    configure(node, "nvidia-222")
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon("--timing-settle", "60s"):
        await kubelet.until_listed(SMALL, 32, 15)
        kubelet.faults.set("pod-resources-empty", 600.0)
        vm = pod("vm", {SMALL: 1})
        await kubelet.admit(vm)
        (given,) = vm.result.ids[SMALL]
        configure(node, "nvidia-228")
        await eventually(lambda: [*made.types_on(FIRST), *made.types_on(SECOND)].count("nvidia-222") == 1)
        assert given in made.instances
        await node.until_told(
            lambda told: (
                [
                    (each["kind"], "nvidia-222" in each["message"], "ns/vm" in each["message"])
                    for each in told["changes"]["waiting"]
                ]
                == [("remove-mdev", True, False)]
            )
        )


@pytest.mark.slow
async def test_a_new_daemon_keeps_the_vgpu_of_a_pod_that_a_new_kubelet_does_not_list(node: Node) -> None:
    """The checkpoint has it. The other vGPUs are in use by no pod, and are replaced at once."""
    configure(node, "nvidia-222")
    async with two_cards(node) as made, node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(SMALL, 32, 15)
            vm = await kubelet.admit(pod("vm", {SMALL: 1}))
            (held,) = vm.result.ids[SMALL]
        configure(node, "nvidia-228")
        kubelet.faults.set("pod-resources-empty", 600.0)
        await kubelet.restart()
        async with node.daemon():
            await kubelet.until_listed(LARGE, 2, 15)
            status = await node.until_told(lambda told: len(told["changes"]["waiting"]) == 1)
            assert status["changes"]["waiting"][0]["kind"] == "remove-mdev"
            await stays(kubelet, lambda: held in made.instances, KEPT)
            assert [*made.types_on(FIRST), *made.types_on(SECOND)].count("nvidia-222") == 1
            kubelet.faults.clear("pod-resources-empty")
            await named(node, held, vm)
            kubelet.delete(vm)
            await kubelet.until_listed(LARGE, 4, 15)
            assert held not in made.instances


async def test_a_card_that_fails_is_told_and_comes_back(node: Node) -> None:
    configure(node, "nvidia-228")
    async with two_cards(node) as made, node.kubelet() as kubelet:
        fail_create(made.host, FIRST, "nvidia-228", errno.EIO)
        async with node.daemon() as daemon:
            await kubelet.until_listed(LARGE, 2, 15)
            told = await node.until_told(lambda document: bool(document["changes"]["failing"]))
            (failing,) = told["changes"]["failing"]
            assert (failing["card"], failing["type"]) == (FIRST, "nvidia-228")
            assert failing["message"].endswith("Input/output error")
            assert any(failing["message"] in problem for problem in told["problems"])
            await daemon.logged("action-failed")
            mend_create(made.host, FIRST, "nvidia-228")
            await kubelet.until_listed(LARGE, 4, 15)
            told = await node.until_told(lambda document: not document["changes"]["failing"])
            await daemon.logged("action-failed")
            assert len(daemon.lines("action-failed")) == 1


async def test_killed_while_it_makes_vgpus_it_goes_on_with_the_same_ids(node: Node) -> None:
    configure(node, "nvidia-222")
    async with two_cards(node) as made, node.kubelet() as kubelet:
        async with node.daemon(ready=False) as daemon:
            await eventually(lambda: made.writes >= 5)
            await daemon.end(signal.SIGKILL)
        before = set(made.instances)
        assert len(before) >= 5
        async with node.daemon():
            await kubelet.until_listed(SMALL, 32, 15)
        assert before <= set(made.instances)
        assert len(made.instances) == 32, "what was made stays when the daemon ends"


async def test_a_write_that_never_returns_does_not_hold_up_the_end(node: Node) -> None:
    configure(node, "nvidia-228")
    async with two_cards(node) as made, node.kubelet() as kubelet:
        fifos.replace_by_fifo(create_file(made.host, FIRST, "nvidia-228"))
        async with node.daemon() as daemon:
            await kubelet.until_listed(LARGE, 2, 15)
            assert made.types_on(FIRST) == []
            assert await within(5, daemon.end()) == 0


async def test_without_leave_to_manage_nothing_is_written(node: Node) -> None:
    node.configure("apiVersion: nodeagent/v1\nmdevs: {types: [nvidia-228]}\n")
    async with two_cards(node) as made, node.kubelet(), node.daemon() as daemon:
        node.configure("apiVersion: nodeagent/v1\nmdevs: {types: [nvidia-222]}\n")
        await daemon.logged("config-reloaded")  # time enough to begin
        told = await node.status()
        assert (made.writes, told["changes"]["writes"]) == (0, 0)
        assert told["problems"] == []


def define(node: Node, parent: str, text: str) -> None:
    node.host.write_file(f"/etc/mdevctl.d/{parent}/{DEFINED}", text)


async def test_a_definition_with_a_wrong_type_costs_no_vgpu_and_is_told(node: Node) -> None:
    node.configure("apiVersion: nodeagent/v1\nmdevs: {manage: true, mdevctl: true, types: [nvidia-222]}\n")
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SMALL, 32, 15)
        before = dict(made.instances)
        define(node, FIRST, '{"mdev_type": "nvidia-22", "start": "auto"}')
        told = f"the definition {DEFINED} has the type nvidia-22, which {FIRST} does not offer"
        await node.until_told(lambda document: told in document["problems"])
        assert dict(made.instances) == before
        assert made.writes == 32


async def test_a_definition_that_breaks_does_not_cost_its_device_where_adopting_is_allowed(
    node: Node,
) -> None:
    wish = "apiVersion: nodeagent/v1\nmdevs: {manage: true, mdevctl: true, adopt: true, types: [%s]}\n"
    node.configure(wish % "")
    define(node, FIRST, '{"mdev_type": "nvidia-228", "start": "auto"}')
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed(LARGE, 1, 15)
        define(node, FIRST, "{bad")
        await daemon.logged("config-warning")
        node.configure(wish % "nvidia-222")
        await kubelet.until_listed(SMALL, 16, 15)
        assert (DEFINED in made.instances, len(made.instances)) == (True, 17)
        assert made.writes == 17
