# SPDX-License-Identifier: Apache-2.0
"""Devices that are wanted and missing are named, with what to do: nothing of it passes as "all is well"."""

from __future__ import annotations

import json
from typing import Any

from nodeagent.sim.apiserver.store import KUBEVIRTS
from tests.blackbox.harness import Node
from tests.blackbox.test_cluster import followed, server_of
from tests.blackbox.test_splitting import FIRST, LARGE, SECOND, SMALL, configure, two_cards
from tests.cluster import crs
from tests.facts import contains, names

GPU = "0000:65:00.0"


def remarked(told: dict[str, Any], *facts: str) -> list[dict[str, Any]]:
    """The problems and notes of a status that name all of these."""
    return [each for each in told.get("findings", []) if contains(each["message"], *facts)]


async def test_a_gpu_without_a_driver_is_named_with_the_command_that_explains_it(node: Node) -> None:
    node.host.add_function(GPU, vendor="10de", device="1eb8", pci_class="030200", group=10)
    async with node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: bool(remarked(told, GPU)))
    (note,) = remarked(told, GPU)
    names(note["message"], "driver")
    names(note["hint"], "nodeagent explain")


async def test_types_without_a_card_that_offers_them_come_with_the_drivers_of_the_gpus(node: Node) -> None:
    """A GPU on vfio-pci or nouveau has no vGPU types, and a newer one has them on its VFs alone."""
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    bound, free, virtual = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
    node.add_gpu(bound, 10)
    node.add_gpu(free, 11)
    node.add_gpu(virtual, 12, device="26b9", sriov=32)
    node.host.bind(free, "nouveau")
    node.host.bind(virtual, "nvidia")
    configure(node, "nvidia-222")
    plan = json.loads((await node.command("plan", "-o", "json")).stdout)
    (problem,) = plan["problems"]
    names(problem["message"], bound, "vfio-pci", free, "nouveau", virtual, "VFs")
    names(problem["hint"], "driver", "sriov")


async def test_a_desired_type_that_no_card_is_free_for_is_named_with_its_way_out(node: Node) -> None:
    configure(node, "nvidia-228")
    async with two_cards(node), node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(LARGE, 4, 15)
        configure(node, "nvidia-228", "nvidia-222")
        told = await node.until_told(lambda told: bool(remarked(told, "nvidia-222")))
        plan = json.loads((await node.command("plan", "-o", "json")).stdout)
    (note,) = remarked(told, "nvidia-222")
    names(note["message"], FIRST, SECOND, "nvidia-228")
    assert note["hint"]
    assert note in plan["notes"]


async def test_a_name_that_covers_two_sizes_of_vgpus_is_named_with_both(node: Node) -> None:
    name = "example.com/vgpu"
    node.configure(
        "mdevs: {manage: true, types: [nvidia-222, nvidia-228]}\n"
        f"resources: [{{name: {name}, mdev: [{{types: [nvidia-222, nvidia-228]}}]}}]\n"
    )
    async with two_cards(node), node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(name, 18, 15)
        told = await node.until_told(lambda told: bool(remarked(told, name)))
    (note,) = remarked(told, name)
    names(note["message"], "GRID T4-1B", "GRID T4-8A")
    assert note["hint"]


async def test_a_permitted_type_that_a_card_could_make_and_none_makes_is_named(node: Node) -> None:
    configure(node, "nvidia-222")
    entry = {"mdevNameSelector": "GRID T4-8A", "resourceName": LARGE, "externalResourceProvider": True}
    section = {"enabled": False, "mediatedDeviceTypes": ["nvidia-222"]}
    permitted = {"permittedHostDevices": {"mediatedDevices": [entry]}}
    async with two_cards(node), server_of(node) as server:
        server.store.put(KUBEVIRTS, crs.document({**permitted, "mediatedDevicesConfiguration": section}))
        async with followed(node) as (_, kubelet):
            await kubelet.until_listed(SMALL, 32, 15)
            told = await node.until_told(lambda told: bool(remarked(told, LARGE)))
    (note,) = remarked(told, LARGE)
    names(note["message"], FIRST)
    names(note["hint"], "mdevs.types")
