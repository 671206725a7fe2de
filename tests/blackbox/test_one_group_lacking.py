# SPDX-License-Identifier: Apache-2.0
"""Boards of which one lacks something: who wants all of a board gets it from a whole one, wherever that is.

The pod's resources are asked for in a random order, and the kubelet does not say what comes next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import FOR_EVER, GPU, RULES, USB, all_listed, groups, running
from tests.blackbox.harness import Node, health, pod

AUDIO = "example.com/audio"
AUDIOS = '  - {name: example.com/audio, pci: [{devices: ["10f8"]}]}\n'
KINDS = {GPU: ("1eb8", "030200"), USB: ("1ad8", "0c0330"), AUDIO: ("10f8", "040300")}
TRIES = 10


class Place(NamedTuple):
    """Where a board sits."""

    group: int
    numa: int = -1
    port: str = "0000:00:10.0"


def add_board(node: Node, place: Place, **functions: int) -> dict[str, list[str]]:
    """A board with so many functions of each resource, by the last part of its name: resource → addresses."""
    made: dict[str, list[str]] = {}
    for resource, (device, pci_class) in KINDS.items():
        for _ in range(functions.get(resource.rpartition("/")[2], 0)):
            address = f"0000:{place.group}:00.{sum(map(len, made.values()))}"
            made.setdefault(resource, []).append(address)
            node.host.add_function(
                address,
                vendor="10de",
                device=device,
                pci_class=pci_class,
                driver="vfio-pci",
                group=place.group,
                numa=place.numa,
                port=place.port,
            )
    return made


async def get_whole_boards(
    node: Node,
    boards: list[dict[str, list[str]]],
    lost: list[str],
    each: int,
    *others: Pod,
    most: int = 1,
) -> None:
    """One machine after the other wants that many of both, beside others; none has parts of more boards."""
    for address in lost:
        node.host.bind(address, None)
    offered = [(resource, ids) for board in boards for resource, ids in board.items()]
    counts = {resource: sum(len(ids) for name, ids in offered if name == resource) for resource, _ in offered}

    def known(kubelet: FakeKubelet) -> bool:
        told = {name: text for resource in counts for name, text in health(kubelet, resource).items()}
        return all((text == "Healthy") is (name not in lost) for name, text in told.items())

    def in_order(told: dict[str, Any]) -> bool:
        """The kubelet may have the lists of before, in which all is Healthy: so the daemon is asked."""
        unhealthy = sum(len(each["devices"]) - each["healthy"] for each in told["resources"])
        return bool(unhealthy == len(lost))

    async with node.kubelet() as kubelet, node.daemon(*FOR_EVER):
        await all_listed(kubelet, counts)
        await kubelet.until(lambda: known(kubelet))
        for other in others:
            running(await kubelet.admit(other))
        for number in range(TRIES):
            await kubelet.until(lambda: known(kubelet))
            vm = await kubelet.admit(pod("vm", {GPU: each, USB: each}))
            running(vm)
            assert len(groups(vm)) == most, f"the {number}. machine"
            kubelet.delete(vm)
            await node.until_told(lambda told: "ns/vm" not in str(told["holders"]) and in_order(told))


@pytest.mark.parametrize("by", ["NUMA node", "root port"])
@pytest.mark.parametrize("lost", [1, 2])
async def test_who_wants_two_and_two_gets_them_of_a_whole_board_far_from_the_one_that_lacks_some(
    node: Node, by: str, lost: int
) -> None:
    near, far = {
        "NUMA node": (Place(20, 0), Place(30, 1)),
        "root port": (Place(20), Place(30, port="0000:00:11.0")),
    }[by]
    places = (near, far, far._replace(group=40))
    boards = [add_board(node, place, gpu=2, usb=2) for place in places]
    node.configure(RULES)
    await get_whole_boards(node, boards, boards[0][USB][:lost], 2)


async def test_a_board_that_never_had_a_usb_function_is_not_given_to_who_wants_one(node: Node) -> None:
    """Or it has left the bus before the daemon came."""
    boards = [add_board(node, Place(20), gpu=1)]
    boards += [add_board(node, Place(group), gpu=1, usb=1) for group in (30, 40)]
    node.configure(RULES)
    await get_whole_boards(node, boards, [], 1)


async def test_what_all_boards_lack_hides_not_what_one_of_them_lacks_besides(node: Node) -> None:
    boards = [add_board(node, Place(group), gpu=1, usb=1, audio=1) for group in (20, 30, 40)]
    node.configure(RULES + AUDIOS)
    lost = [address for board in boards for address in board[AUDIO]]
    await get_whole_boards(node, boards, [*lost, *boards[0][USB]], 1)


@pytest.mark.slow
async def test_of_two_that_lack_something_the_one_that_lacks_less_is_given_first(node: Node) -> None:
    boards = [add_board(node, Place(group), gpu=1, usb=1, audio=1) for group in (20, 30, 40)]
    node.configure(RULES + AUDIOS)
    lost = [*boards[0][USB], *boards[0][AUDIO], *boards[1][AUDIO]]
    await get_whole_boards(node, boards, lost, 1, pod("other", {GPU: 1, USB: 1, AUDIO: 1}))


async def test_who_wants_two_boards_gets_two_whole_ones_and_no_parts_of_three(node: Node) -> None:
    boards = [add_board(node, Place(group), gpu=2, usb=2) for group in (20, 30, 40)]
    node.configure(RULES)
    await get_whole_boards(node, boards, boards[0][USB][:1], 4, most=2)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["", "another lacks one"])
async def test_a_machine_that_is_started_anew_gets_its_large_board_again_though_small_ones_are_free(
    node: Node, lost: bool
) -> None:
    boards = [add_board(node, Place(20), gpu=1, usb=1)]
    boards += [add_board(node, Place(30), gpu=2, usb=2) if lost else add_board(node, Place(30), gpu=1, usb=1)]
    boards += [add_board(node, Place(40), gpu=2, usb=2)]
    node.configure(RULES)
    await get_whole_boards(node, boards, boards[1][USB][:1] if lost else [], 2)


@pytest.mark.slow
async def test_a_large_board_that_lacks_one_is_taken_before_a_small_one_is_torn(node: Node) -> None:
    boards = [add_board(node, Place(20), gpu=1, usb=1), add_board(node, Place(30), gpu=3, usb=3)]
    node.configure(RULES)
    await get_whole_boards(node, boards, boards[1][USB][:1], 2)


@pytest.mark.parametrize("lost", [GPU, USB])
async def test_a_board_of_which_one_function_has_left_the_bus_is_no_whole_one(node: Node, lost: str) -> None:
    """Nothing of it is listed any more, and the rest of it is in order."""
    fewer = {lost.rpartition("/")[2]: 1}
    boards = [add_board(node, Place(20), **{"gpu": 2, "usb": 2, **fewer})]
    boards += [add_board(node, Place(30), gpu=2, usb=2)]
    node.configure(RULES)
    await get_whole_boards(node, boards, [], 2)


async def test_a_large_board_is_torn_before_a_small_one_and_it(node: Node) -> None:
    boards = [add_board(node, Place(20), gpu=1, usb=1), add_board(node, Place(30), gpu=3, usb=3)]
    node.configure(RULES)
    await get_whole_boards(node, boards, [], 2)
