# SPDX-License-Identifier: Apache-2.0
"""A device that has fallen off the bus: its configuration space reads all ones, and nobody says so."""

from __future__ import annotations

import os
from pathlib import Path

import grpclib
import pytest

from tests.blackbox.harness import T4, Node, allocate, health, pod, until_health

ALIVE = bytes.fromhex("de10b81e0604100000a10203") + bytes(52)
ONES = b"\xff" * 64


def configuration_space(node: Node, address: str, header: bytes) -> None:
    Path(node.host.path(f"/sys/bus/pci/devices/{address}/config")).write_bytes(header)


async def test_it_is_refused_when_it_is_to_be_given_and_not_offered_again(node: Node) -> None:
    one, two = node.add_gpus(2)
    configuration_space(node, one, ONES)
    configuration_space(node, two, ALIVE)
    async with node.kubelet() as kubelet:
        async with node.daemon("--timing-resync", "1s") as daemon:
            await kubelet.until_listed(T4, 2)
            assert health(kubelet, T4) == {one: "Healthy", two: "Healthy"}, "a sleeping device is not woken"
            with pytest.raises(grpclib.GRPCError, match=one):
                await allocate(kubelet, T4, [one])
            await until_health(kubelet, T4, one, "Unhealthy")
            assert len(await allocate(kubelet, T4, [two])) == 1
            line = await daemon.logged("device-unhealthy", device=one)
            assert line["reason"] == "fallen-off-the-bus"
        async with node.daemon("--timing-resync", "1s") as daemon:
            await daemon.logged("device-unhealthy", device=one)
            node.host.bind(one, None)
            await daemon.logged("device-unhealthy", device=one, reason="driver-changed")
            configuration_space(node, one, ALIVE)
            node.host.bind(one, "vfio-pci")
            await until_health(kubelet, T4, one, "Healthy")
            assert len(await allocate(kubelet, T4, [one])) == 1


async def test_it_is_healthy_again_when_it_answers_again(node: Node) -> None:
    """One that is slow on its way out of D3cold reads all ones for a moment."""
    (one,) = node.add_gpus(1)
    configuration_space(node, one, ONES)
    async with node.kubelet() as kubelet, node.daemon("--timing-resync", "1s") as daemon:
        await kubelet.until_listed(T4, 1)
        with pytest.raises(grpclib.GRPCError, match=one):
            await allocate(kubelet, T4, [one])
        await until_health(kubelet, T4, one, "Unhealthy")
        scans = await scanned(node)
        await node.until_told(lambda told: sum(told["host"]["scans"]["counts"]) > scans + 2)
        assert health(kubelet, T4) == {one: "Unhealthy"}
        configuration_space(node, one, ALIVE)
        await until_health(kubelet, T4, one, "Healthy")
        assert len(await allocate(kubelet, T4, [one])) == 1
        assert len(daemon.lines("device-unhealthy")) == 1


async def test_one_that_is_reset_as_its_vm_starts_stays_healthy(node: Node) -> None:
    """The kernel lets nobody read its configuration space until the reset is over."""
    (one,) = node.add_gpus(1)
    config = Path(node.host.path(f"/sys/bus/pci/devices/{one}/config"))
    async with node.kubelet() as kubelet, node.daemon("--timing-resync", "1s") as daemon:
        await kubelet.until_listed(T4, 1)
        await kubelet.admit(pod("vm", {T4: 1}))
        os.mkfifo(config)  # whoever reads waits
        node.host.hold(one)
        scans = await scanned(node)
        await node.until_told(lambda told: sum(told["host"]["scans"]["counts"]) > scans + 3)
        assert health(kubelet, T4) == {one: "Healthy"}
        assert daemon.lines("device-unhealthy") == []
        assert daemon.usage().threads < 20, "one look waits, not one for each scan"


async def scanned(node: Node) -> int:
    return sum((await node.status())["host"]["scans"]["counts"])


async def test_the_pod_that_has_it_is_told_and_also_when_it_answers_again(node: Node) -> None:
    (one,) = node.add_gpus(1)
    node.host.write(one, "power_state", "D3hot")
    configuration_space(node, one, ALIVE)
    async with node.kubelet() as kubelet, node.daemon("--timing-resync", "1s"):
        await kubelet.until_listed(T4, 1)
        vm = pod("vm", {T4: 1})
        await kubelet.admit(vm)
        node.host.hold(one)
        node.host.write(one, "power_state", "D0")
        configuration_space(node, one, ONES)
        await until_health(kubelet, T4, one, "Unhealthy")
        configuration_space(node, one, ALIVE)
        await until_health(kubelet, T4, one, "Healthy")
