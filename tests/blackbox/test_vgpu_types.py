# SPDX-License-Identifier: Apache-2.0
"""Types of mdevs and vGPUs: the configured type is created or none, and not thousands without a count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.mdev import Card, MdevKernel, Sizes, Type, add_card, simulated_cards
from tests.blackbox.harness import PATIENCE, T4, Node, health
from tests.facts import each_names, names

CARD = "0000:3b:00.0"
CARDS = {
    "mdevs": Card(CARD, (Type("nvidia-699", 7, "NVIDIA A100-1-5C"),)),
    "VFs": Card(CARD, (Type("699", 7, "NVIDIA A100-1-5C"),), vfs=("0000:3b:00.4",), vgpu=True),
}


@pytest.fixture
def node(tmp_path: Path, loop_may_block: None) -> Node:
    node = Node(tmp_path)
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    return node


def ask_for(node: Node, types: str) -> None:
    """The file asks for these types, such as ``T4-1Q: 16``, on each card."""
    text = f"version: v1\nvgpu-configs:\n  wanted:\n    - {{devices: all, vgpu-devices: {{{types}}}}}\n"
    node.host.write_file("/etc/nvidia-vgpu/config.yaml", text)
    keys = "vgpuConfigFile: /etc/nvidia-vgpu/config.yaml, vgpuConfig: wanted"
    node.configure(f"mdevs: {{manage: true, {keys}}}\n")


async def planned(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((await node.command("plan", "-o", "json")).stdout)
    return document


@pytest.mark.parametrize("way", CARDS)
async def test_a_mig_type_with_media_engines_is_not_the_one_without(node: Node, way: str) -> None:
    ask_for(node, "A100-1-5CME: 1")
    card = CARDS[way]
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])) as cards, node.kubelet(), node.daemon() as run:
        await run.logged("plan-problem")
        document = await planned(node)
        assert document["steps"] == []
        names(document["problems"][0]["message"], "A100-1-5CME")
        assert cards.writes == 0


@pytest.mark.parametrize("asked", ["A100-1-5C", "A100-1-5CGFX"])
async def test_a_step_names_the_type_as_the_file_has_it(node: Node, asked: str) -> None:
    ask_for(node, f"{asked}: 1")
    card = CARDS["mdevs"]
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])):
        (step,) = (await planned(node))["steps"]
    names(step["message"], "nvidia-699", asked)


A10 = (Type("nvidia-592", 6, "NVIDIA A10-4Q"), Type("nvidia-593", 4, "NVIDIA A10-6Q"))
NAMES = ("nvidia.com/NVIDIA_A10-4Q", "nvidia.com/NVIDIA_A10-6Q")


def counted(kubelet: FakeKubelet) -> tuple[int, ...]:
    """How many Healthy devices of each type the kubelet has."""
    return tuple(list(health(kubelet, name).values()).count("Healthy") for name in NAMES)


async def test_several_types_are_created_on_a_card_that_takes_them(node: Node) -> None:
    """NVIDIA's driver in mixed-size mode: the kernel still has room for the second type beside the first."""
    ask_for(node, "A10-4Q: 3, A10-6Q: 2")
    card = Card(CARD, A10, sizes=Sizes.MIXED)
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])) as cards, node.kubelet() as kubelet:
        assert len((await planned(node))["steps"]) == 5
        async with node.daemon():
            await kubelet.until(lambda: counted(kubelet) == (3, 2), PATIENCE)
            assert cards.types_on(CARD) == ["nvidia-592"] * 3 + ["nvidia-593"] * 2
            ask_for(node, "A10-4Q: 1, A10-6Q: 3")
            await kubelet.until(lambda: counted(kubelet) == (1, 3), PATIENCE)
            await node.until_nothing_is_to_do()
            assert (await planned(node))["problems"] == []


async def test_a_type_that_does_not_fit_beside_the_first_is_refused_by_name_and_costs_no_other_card(
    node: Node,
) -> None:
    ask_for(node, "A10-4Q: 3, A10-6Q: 2")
    card = Card(CARD, A10)
    add_card(node.host, card, 10)
    node.add_gpu("0000:5e:00.0", 20)
    async with (
        simulated_cards(node.host, MdevKernel([card])) as cards,
        node.running(listed={T4: 1}) as (_, seen),
    ):
        await seen.until(lambda: counted(seen) == (3, 0), PATIENCE)
        await node.until_nothing_is_to_do()
        (problem,) = (await planned(node))["problems"]
        names(problem["message"], CARD, "A10-6Q", 2, 0, "nvidia-592")
        names((await node.command("status")).stdout, CARD, "A10-6Q")
        assert cards.types_on(CARD) == ["nvidia-592"] * 3


@pytest.mark.parametrize("counted", [False, True])
async def test_thousands_of_a_type_are_not_created_unless_a_count_says_so(node: Node, counted: bool) -> None:
    node.configure(
        f"mdevs: {{manage: true, types: [{'{type: mtty-1, count: 200}' if counted else 'mtty-1'}]}}\n"
    )
    card = Card(CARD, (Type("mtty-1", 3000),))
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])):
        document = await planned(node)
    assert len(document["steps"]) == (200 if counted else 128)
    (planned_card,) = document["cards"]
    each_names(planned_card["notes"], *[] if counted else [("mtty-1", 128, 3000)])
