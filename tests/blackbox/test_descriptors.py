# SPDX-License-Identifier: Apache-2.0
"""A daemon that may open no file any more: what it could not look at is not gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.harness import STATE, T4, Node, eventually, health, healths, until_health
from tests.exhausted import no_descriptors
from tests.sim.vfs import vf_addresses

CARD, VGPU = "0000:3b:00.0", "nvidia.com/NVIDIA_A40-12Q"


async def test_a_look_that_fails_takes_no_device_away(node: Node) -> None:
    one, two = node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon("--timing-resync", "1s") as daemon:
        await kubelet.until_listed(T4, 2)
        with no_descriptors(daemon.pid):
            node.host.unplug(two)
            await daemon.logged("host-read-failed")
            for number in range(5):
                node.host.write(one, "power_state", f"D{number}")
            assert health(kubelet, T4) == {one: "Healthy", two: "Healthy"}
        await until_health(kubelet, T4, two, None)
        assert healths(kubelet.statistics.lists[T4]) == [
            {one: "Healthy", two: "Healthy"},
            {one: "Healthy"},
        ]
        await daemon.logged("host-read-recovered")
        await daemon.logged("host-read-failed")
        assert len(daemon.lines("host-read-failed")) == 1, "once, not at each look"


@pytest.mark.slow
async def test_what_is_ours_is_still_ours_after_looks_that_failed(node: Node) -> None:
    card = Card(CARD, (Type("1", 4, "NVIDIA A40-12Q"),), vfs=vf_addresses(CARD, 4), vgpu=True)
    node.configure("apiVersion: nodeagent/v1\nmdevs: {manage: true, types: ['1']}\n")
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    add_card(node.host, card, 10)
    simulated = simulated_cards(node.host, MdevKernel([card]))
    async with simulated as made, node.kubelet() as kubelet, node.daemon("--timing-resync", "1s") as daemon:
        await kubelet.until_listed(VGPU, 4)
        await eventually(lambda: len(on_record(node)["types"]) == 4)
        before = on_record(node)
        with no_descriptors(daemon.pid):
            await daemon.logged("host-read-failed")
        await daemon.logged("host-read-recovered")
        node.configure("apiVersion: nodeagent/v1\nmdevs: {manage: true, types: []}\n")
        await eventually(lambda: not on_record(node)["types"])
        assert before["types"] == dict.fromkeys(card.vfs, "1")
        assert made.types_on(CARD) == [], "only what is ours is cleared"


@pytest.mark.slow
async def test_a_damaged_record_of_what_is_ours_is_told_once_and_nothing_is_cleared(node: Node) -> None:
    card = Card(CARD, (Type("1", 4, "NVIDIA A40-12Q"),), vfs=vf_addresses(CARD, 4), vgpu=True)
    node.configure("apiVersion: nodeagent/v1\nmdevs: {manage: true, types: ['1']}\n")
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])) as made, node.kubelet() as kubelet:
        async with node.daemon() as first:
            await kubelet.until_listed(VGPU, 4)
            await eventually(lambda: len(on_record(node)["types"]) == 4)
            await first.end()
        damaged = record(node).read_bytes()[:-1]
        record(node).write_bytes(damaged)
        node.configure("apiVersion: nodeagent/v1\nmdevs: {manage: true, types: []}\n")
        async with node.daemon("--timing-resync", "1s") as second:
            await kubelet.until_listed("nvidia.com/vgpu-without-name", 4)  # the record had the name
            told = await second.logged("state-damaged")
            assert f"{record(node).name}.broken" in told["message"]
            before = scans(await node.status())
            await node.until_told(lambda status: scans(status) > before + 2)
            assert len(second.lines("state-damaged")) == 1, "once, not at each look"
        assert len(made.types_on(CARD)) == 4
        assert record(node).with_suffix(".json.broken").read_bytes() == damaged


def scans(status: dict[str, Any]) -> int:
    """How often the host was scanned."""
    return sum(status["host"]["scans"]["counts"])


def record(node: Node) -> Path:
    """The file of what is ours."""
    return node.root / STATE


def on_record(node: Node) -> dict[str, Any]:
    """The record of what is ours."""
    return {"types": {}} | node.state("ledger")
