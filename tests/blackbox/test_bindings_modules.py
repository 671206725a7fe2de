# SPDX-License-Identifier: Apache-2.0
"""A VFIO driver that is not loaded: it is named, nothing is touched, and it is noticed when it comes."""

from __future__ import annotations

import shutil

import pytest

from nodeagent.sim import files
from nodeagent.sim.host import DRIVERS
from tests.blackbox.harness import PATIENCE, Node, eventually
from tests.blackbox.test_bindings import AUDIO, CARDS, GPU, OWN, RESOURCE, RULE, add_card, drivers_of
from tests.facts import names
from tests.sim.drivers import simulated


async def test_a_missing_vfio_pci_is_named_and_what_is_wished_is_done_when_it_is_loaded(node: Node) -> None:
    add_card(node)
    shutil.rmtree(node.host.path(f"{DRIVERS}/vfio-pci"))
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.running(listed={CARDS: 1}) as (daemon, _):
        said = await daemon.logged("plan-problem")
        assert "vfio-pci" in said["text"]
        names(said["hint"], "modprobe vfio-pci", "/etc/modules-load.d/vfio-pci.conf")
        assert "modprobe vfio-pci" in (await node.command("plan")).stdout
        assert (drivers.writes, drivers_of(drivers)) == ([], OWN)
        files.directory(node.host.path(f"{DRIVERS}/vfio-pci"))
        await eventually(lambda: drivers.driver(GPU) == drivers.driver(AUDIO) == "vfio-pci", PATIENCE)


@pytest.mark.timeout(60)
async def test_a_missing_variant_is_named_and_what_is_wished_is_done_when_it_is_loaded(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE.replace("}]}]", "}], driver: mlx5_vfio_pci}]"))
    async with simulated(node.host, GPU, AUDIO) as drivers, node.running(listed={CARDS: 1}) as (daemon, _):
        said = await daemon.logged("action-failed")
        assert "mlx5_vfio_pci" in said["error"]
        names(said["hint"], "modprobe mlx5_vfio_pci", "/etc/modules-load.d/mlx5_vfio_pci.conf")
        assert "modprobe mlx5_vfio_pci" in (await node.command("status")).stdout
        assert (drivers.writes, drivers_of(drivers)) == ([], OWN)
        files.directory(node.host.path(f"{DRIVERS}/mlx5_vfio_pci"))
        await eventually(lambda: drivers.driver(GPU) == "mlx5_vfio_pci", PATIENCE)
        assert drivers.driver(AUDIO) == "vfio-pci"
