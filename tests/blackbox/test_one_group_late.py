# SPDX-License-Identifier: Apache-2.0
"""A kubelet that is slow to read a list: what is free again it has as Unhealthy when the next pod asks."""

from __future__ import annotations

import pytest

from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    LONE,
    USB,
    groups,
    named,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import T4, Node, health, pod


@pytest.mark.parametrize("seed", range(3))
async def test_a_pod_gets_both_from_a_free_board_and_not_half_of_one_that_another_has_just_left(
    node: Node, seed: int
) -> None:
    board, _ = boards = usb_boards(node, 2)
    async with started(node, *FOR_EVER, listed=usb_lists(boards), seed=seed) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        assert groups(old) == {board.group}
        kubelet.faults.set(f"stalled-reader:{USB}", True)  # it reads the list with the sibling, and no more
        running(await kubelet.admit(pod("other", {LONE: 1})))
        await kubelet.until(lambda: health(kubelet, USB)[board.usb] == "Unhealthy")
        await node.until_told(lambda told: len(told["holders"]) == 2)
        kubelet.delete(old)
        vm = await kubelet.admit(pod("vm", {GPU: 1}, {USB: 1}))
        kubelet.faults.clear(f"stalled-reader:{USB}")
        running(vm)
        assert len(groups(vm)) == 1


async def test_a_board_that_was_left_a_moment_ago_is_not_torn_where_what_is_free_is_too_little(
    node: Node,
) -> None:
    lone, pair = "0000:10:00.0", ("0000:20:00.0", "0000:20:00.1")
    node.add_gpu(lone, 10, numa=0)
    for each in pair:
        node.add_gpu(each, 20, numa=1)
    async with started(node, listed={T4: 3}) as (_, kubelet):
        old = await kubelet.admit(pod("old", {T4: 2}))
        assert groups(old) == {"20"}
        await named(node, pair[0], old)
        kubelet.delete(old)
        await node.until_told(lambda told: not told["holders"])
        both = await kubelet.admit(pod("both", {T4: 2}))
        running(both)
        assert groups(both) == {"20"}
        running(await kubelet.admit(pod("one", {T4: 1})))
