# SPDX-License-Identifier: Apache-2.0
"""``explain`` of a card that is split: types, room, instances and who made them; a healthy one is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.boards import named
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_explain import answer, error
from tests.facts import names
from tests.machines.capture import materialise

CAPTURED = Path(__file__).parent.parent / "machines/hosts/6.12-mdev.json"
SMALL, LARGE = "nvidia.com/GRID_T4-1B", "nvidia.com/GRID_T4-8A"
TYPES = (Type("nvidia-222", 16, "GRID T4-1B"), Type("nvidia-228", 2, "GRID T4-8A"))
FIRST, SECOND = "0000:3b:00.0", "0000:5e:00.0"
THEIRS = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


@pytest.fixture
def split(node: Node) -> list[Card]:
    """Two Tesla T4 on the driver of their host."""
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    made = [Card(FIRST, TYPES), Card(SECOND, TYPES)]
    for number, card in enumerate(made):
        add_card(node.host, card, 10 + number)
    return made


@pytest.mark.slow
async def test_a_card_tells_its_types_their_room_and_who_made_what_is_on_it(
    node: Node, split: list[Card]
) -> None:
    node.configure("mdevs: {manage: true, types: [nvidia-222]}\n")
    async with simulated_cards(node.host, MdevKernel(split)) as made:
        made.create(SECOND, "nvidia-228", THEIRS)
        async with node.running(listed={SMALL: 16, LARGE: 1}) as (_, kubelet):
            vm = pod("vm", {SMALL: 1})
            await kubelet.admit(vm)
            (held,) = vm.result.ids[SMALL]
            await named(node, held, vm)
            explained = await answer(node, "DeviceExplanation", FIRST)
            first = explained["split"]
            second = (await answer(node, "DeviceExplanation", SECOND))["split"]
            text = (await node.command("explain", FIRST)).stdout
    assert first["types"] == [
        {"id": "nvidia-222", "name": "GRID T4-1B", "instances": 16, "room": 0},
        {"id": "nvidia-228", "name": "GRID T4-8A", "instances": 0, "room": 0},
    ]
    assert {each["madeBy"] for each in first["instances"]} == {"nodeagent"}
    assert [each["id"] for each in first["instances"] if each["holder"] == "ns/vm"] == [held]
    assert [(each["id"], each["madeBy"]) for each in second["instances"]] == [(THEIRS, "others")]
    assert [each["room"] for each in second["types"]] == [0, 1]
    assert "NOT viable" not in text
    assert "BLOCKS" not in text
    assert [each["role"] for each in explained["members"]] == ["splits"]


async def test_a_card_that_is_split_still_blocks_what_vfio_is_to_have_of_its_group(
    node: Node, split: list[Card]
) -> None:
    node.add_sound("0000:3b:00.1", 10)
    async with simulated_cards(node.host, MdevKernel(split)):
        for address in (FIRST, "3b:00.1"):
            text = (await node.command("explain", address)).stdout
            assert "NOT viable" in text
            assert "BLOCKS the group" in text


async def test_a_resource_that_a_card_could_make_says_what_is_missing(node: Node, split: list[Card]) -> None:
    async with simulated_cards(node.host, MdevKernel(split)), node.kubelet(), node.daemon():
        code, what, hint = await error(node, SMALL)
    assert code == 1
    names(what, SMALL, FIRST, "nvidia-222", "1 more")
    names(hint, "16", "mdevs.manage")


async def test_a_rule_without_devices_says_which_card_could_make_one(node: Node, split: list[Card]) -> None:
    node.configure("resources:\n- {name: example.com/vgpu, mdev: [{types: [nvidia-228]}]}\n")
    async with simulated_cards(node.host, MdevKernel(split)), node.kubelet(), node.daemon():
        told = await answer(node, "ResourceExplanation", "example.com/vgpu")
    assert told["capacity"] == 0
    possible = told["possibilities"][0]
    names(possible["message"], FIRST, "nvidia-228")
    names(possible["missing"], "2", "mdevs.manage")


async def test_a_parent_that_is_no_pci_function_goes_by_its_name(
    tmp_path: Path, loop_may_block: None
) -> None:
    materialise(CAPTURED, tmp_path)
    node = Node(tmp_path)
    async with node.kubelet(), node.daemon():
        told = await answer(node, "CardExplanation", "mtty")
        text = (await node.command("explain", "mtty")).stdout
    assert [(each["id"], each["instances"], each["room"]) for each in told["types"]] == [
        ("mtty-1", 2, 20),
        ("mtty-2", 1, 10),
    ]
    assert text.startswith("mtty  2 types, 3 instances\n")
