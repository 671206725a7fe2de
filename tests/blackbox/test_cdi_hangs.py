# SPDX-License-Identifier: Apache-2.0
"""A directory of CDI files that hangs concerns the resources that have such files, and no others."""

from __future__ import annotations

import os

import pytest
from grpclib.exceptions import GRPCError

from nodeagent.kubelet import cdi
from tests.blackbox.harness import PATIENCE, Node, allocate, health, pod, until_health

PLAIN, WITH_CDI = "example.com/plain", "example.com/with-cdi"


@pytest.fixture
def cards(node: Node) -> list[str]:
    """Two GPUs for plain resources, and one whose CDI file cannot be written: opening it never returns."""
    cards = node.add_gpus(3)
    with_cdi = f"{{name: {WITH_CDI}, pci: [{{addresses: ['{cards[2]}']}}], cdi: true}}"
    node.configure(f"resources: [{with_cdi}, {{name: {PLAIN}, pci: [{{vendors: ['10de']}}]}}]")
    directory = node.root / "var/run/cdi"
    directory.mkdir(parents=True)
    os.mkfifo((directory / cdi.file_name(WITH_CDI)).with_suffix(".new"))
    return cards


async def test_resources_without_cdi_are_served_and_followed(node: Node, cards: list[str]) -> None:
    async with node.running(listed={PLAIN: 2}) as (daemon, kubelet):
        assert (await kubelet.admit(pod("vm", {PLAIN: 1}))).phase == "Running"
        node.host.bind(cards[1], None)
        await until_health(kubelet, PLAIN, cards[1], "Unhealthy")
        assert health(kubelet, WITH_CDI) == {}, "its file is to be there before it is offered"
        assert await daemon.end() == 0


async def test_a_resource_may_get_rid_of_cdi_while_its_file_hangs(node: Node, cards: list[str]) -> None:
    async with node.running(listed={PLAIN: 2}) as (daemon, kubelet):
        node.configure("resources: [{name: example.com/with-cdi, pci: [{vendors: ['10de']}]}]")
        await kubelet.until_listed(WITH_CDI, 3, PATIENCE)
        assert await allocate(kubelet, WITH_CDI, [cards[2]])
        assert await daemon.end() == 0


@pytest.mark.slow
async def test_an_allocate_whose_file_hangs_ends_in_time(node: Node, cards: list[str]) -> None:
    node.configure("resources: [{name: example.com/with-cdi, pci: [{vendors: ['10de']}]}]")
    async with node.running(listed={WITH_CDI: 3}) as (daemon, kubelet):
        node.configure("resources: [{name: example.com/with-cdi, pci: [{vendors: ['10de']}], cdi: true}]")
        await daemon.logged("config-reloaded")
        with pytest.raises(GRPCError):
            await allocate(kubelet, WITH_CDI, [cards[2]])
