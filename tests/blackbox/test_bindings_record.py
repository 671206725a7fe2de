# SPDX-License-Identifier: Apache-2.0
"""What gives functions their own drivers back: a damaged record, what came back as another, a torn group."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.blackbox.harness import PATIENCE, STATE, Node, eventually
from tests.blackbox.test_bindings import (
    AUDIO,
    BOUND,
    GPU,
    OWN,
    RESOURCE,
    RULE,
    add_card,
    drivers_of,
)
from tests.blackbox.test_bindings_faults import killing
from tests.sim.drivers import simulated


def record(node: Node) -> Path:
    """The file with the former drivers."""
    return node.root / STATE


def damage(node: Node) -> bytes:
    """Cut its last letter; what it is then."""
    damaged = record(node).read_bytes()[:-1]
    record(node).write_bytes(damaged)
    return damaged


async def test_a_damaged_record_of_own_drivers_is_set_aside_and_told_and_nothing_is_given_back(
    node: Node,
) -> None:
    add_card(node)
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        async with node.daemon():
            await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
        damaged = damage(node)
        node.configure(RESOURCE)
        assert (await node.command("plan")).returncode == 0
        assert record(node).read_bytes() == damaged, "who does not write it leaves it alone"
        async with node.daemon() as daemon:
            told = await daemon.logged("state-damaged")
            assert f"{record(node).name}.broken" in told["message"]
            await node.until_told(lambda told: not told["changes"]["inProgress"])
            assert drivers_of(drivers) == BOUND
        assert record(node).with_suffix(".json.broken").read_bytes() == damaged


async def test_what_came_back_on_another_driver_gets_that_one_back(node: Node) -> None:
    add_card(node)
    node.host.add_function(
        "0000:5e:00.0", vendor="10de", device="10f9", pci_class="040300", driver="snd_other", group=20
    )
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
        drivers.own[AUDIO] = "snd_other"
        node.host.unplug(AUDIO)
        node.host.plug(AUDIO)
        node.host.bind(AUDIO, "snd_other")
        await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
        node.configure(RESOURCE)
        await eventually(lambda: drivers_of(drivers) == [OWN[0], ("snd_other", "")], PATIENCE)


@pytest.mark.parametrize(("write", "then"), [(2, None), (5, "vfio-pci")], ids=["let go of", "bound"])
async def test_what_a_killed_daemon_had_taken_goes_back_where_the_rest_may_not_follow(
    node: Node, write: int, then: str | None
) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        async with node.daemon(ready=False) as daemon:
            drivers.around = killing(daemon, write, False)
            assert await daemon.process.wait() == -signal.SIGKILL
        assert drivers.driver(AUDIO) == then
        node.host.write(GPU, "boot_vga", "1")
        async with node.daemon() as daemon:
            await daemon.logged("plan-problem")
            await eventually(lambda: drivers_of(drivers) == OWN, PATIENCE)
            await daemon.logged("action-done")
            told = await node.until_told(lambda told: not told["changes"]["inProgress"])
            assert "boot display" in told["changes"]["problems"][0]["message"]
            assert told["changes"]["writes"] == 1
            await eventually(lambda: not node.has_former_drivers(), PATIENCE)
