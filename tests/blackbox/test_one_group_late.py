# SPDX-License-Identifier: Apache-2.0
"""A kubelet that is slow to read a list: what is free again it has as Unhealthy when the next pod asks."""

from __future__ import annotations

import pytest

from tests.blackbox.boards import FOR_EVER, GPU, LONE, USB, groups, running, started, usb_boards, usb_lists
from tests.blackbox.harness import Node, health, pod


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
