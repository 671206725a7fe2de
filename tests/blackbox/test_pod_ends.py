# SPDX-License-Identifier: Apache-2.0
"""The end of a pod raises no event. Where anything waits for it, it is noticed within 3 s.

The settings are the defaults.

Each pod runs for a few seconds first, so that no event of its start is still being handled.
"""

from __future__ import annotations

import anyio
import pytest

from tests.blackbox.harness import PATIENCE, T4, Node, eventually, health, pod, until_health
from tests.blackbox.test_bindings import AUDIO, BOUND, CARDS, GPU, OWN, RESOURCE, add_card, drivers_of
from tests.blackbox.test_bindings import RULE as PASSTHROUGH
from tests.blackbox.test_splitting import FIRST, LARGE, SECOND, SMALL, configure, two_cards
from tests.blackbox.test_usb import NAME, QEMU, ROOT, RULE, configured, needs_root, owner, serial
from tests.facts import names
from tests.sim.drivers import simulated

pytestmark = pytest.mark.slow

RUNS = 5.0  # seconds
NOTICED = 3.0
DEFAULTS = ("--timing-holders", "2s")


@needs_root
async def test_a_usb_node_gets_its_owner_back(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running(*DEFAULTS, listed={NAME: 1}) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {NAME: 1}))
        await anyio.sleep(RUNS)
        assert owner(node, "/dev/bus/usb/001/004") == QEMU
        kubelet.delete(vm)
        await eventually(lambda: owner(node, "/dev/bus/usb/001/004") == ROOT, NOTICED)


async def test_another_device_of_the_group_becomes_healthy(node: Node) -> None:
    one, other = "0000:3b:00.0", "0000:3b:00.1"
    for each in (one, other):
        node.add_gpu(each, 10)
    async with node.running(*DEFAULTS, listed={T4: 2}) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        await anyio.sleep(RUNS)
        assert sorted(health(kubelet, T4).values()) == ["Healthy", "Unhealthy"]
        kubelet.delete(vm)
        await kubelet.until(lambda: health(kubelet, T4) == {one: "Healthy", other: "Healthy"}, NOTICED)


async def test_a_device_without_a_rule_is_no_longer_listed(node: Node) -> None:
    (card,) = node.add_gpus(1)
    async with node.running(*DEFAULTS, listed={T4: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        node.configure("apiVersion: nodeagent/v1\ndiscovery: {enabled: false}\n")
        await kubelet.until(lambda: health(kubelet, T4) == {card: "Unhealthy"}, PATIENCE)
        await anyio.sleep(RUNS)
        kubelet.delete(vm)
        with anyio.fail_after(NOTICED):
            await daemon.logged("resource-removed")


async def test_a_function_whose_driver_is_to_be_restored_is_unhealthy_until_then(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + PASSTHROUGH)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.running(*DEFAULTS, listed={CARDS: 1}) as (_, kubelet),
    ):
        await until_health(kubelet, CARDS, GPU, "Healthy")
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        assert vm.phase == "Running", vm.message
        for text, now in (
            (RESOURCE, "Unhealthy"),
            (RESOURCE + PASSTHROUGH, "Healthy"),
            (RESOURCE, "Unhealthy"),
        ):
            node.configure(text)
            await until_health(kubelet, CARDS, GPU, now)
        await anyio.sleep(RUNS)
        assert drivers_of(drivers) == BOUND
        kubelet.delete(vm)
        await eventually(lambda: drivers_of(drivers) == OWN, NOTICED)


async def test_a_vgpu_of_a_type_no_longer_configured_is_unhealthy_and_then_replaced(node: Node) -> None:
    configure(node, "nvidia-222")
    async with two_cards(node) as made, node.running(*DEFAULTS, listed={SMALL: 32}) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {SMALL: 1}))
        (used,) = vm.result.ids[SMALL]
        configure(node, "nvidia-228")
        await kubelet.until(lambda: health(kubelet, SMALL) == {used: "Unhealthy"}, PATIENCE)
        await anyio.sleep(RUNS)
        assert health(kubelet, SMALL) == {used: "Unhealthy"}
        status = await node.status()
        (device,) = next(each["devices"] for each in status["resources"] if each["name"] == SMALL)
        assert device["reason"] == "going-away"
        names(device["message"], "ns/vm")
        kubelet.delete(vm)
        await kubelet.until(lambda: len(health(kubelet, LARGE)) == 4, NOTICED)
        assert [*made.types_on(FIRST), *made.types_on(SECOND)] == ["nvidia-228"] * 4
