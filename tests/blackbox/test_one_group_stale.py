# SPDX-License-Identifier: Apache-2.0
"""The kubelet's file may be older than the time at which it was written.

``writeCheckpoint`` in pkg/kubelet/cm/devicemanager/manager.go takes what is to be written under one lock, and
writes it under another (``CreateCheckpoint`` in pkg/kubelet/checkpointmanager/checkpoint_manager.go). So of
two that write at the same time, one for a list and one for what a container got, the list's may be the last
one, with nothing of that container in it: until the next list or the next container.
"""

from __future__ import annotations

import anyio
import pytest

from tests.blackbox.boards import FOR_EVER, GPU, HARDLY, USB, running, started, usb_boards, usb_lists
from tests.blackbox.harness import Node, pod

FILE = "kubelet_internal_checkpoint"


def written_late(node: Node, content: bytes) -> None:
    """A list's write, begun before the container got its device, ends now."""
    aside = node.plugins / ".late"
    aside.write_bytes(content)
    aside.rename(node.plugins / FILE)


@pytest.mark.parametrize("wait", [0.0, 0.5, 2.5])
@pytest.mark.parametrize("flags", [(), FOR_EVER, HARDLY], ids=["default", "60 s", "50 ms"])
async def test_what_a_late_write_of_the_kubelet_does_not_have_is_held_all_the_same(
    node: Node, flags: tuple[str, ...], wait: float
) -> None:
    boards = usb_boards(node, 1)
    one = pod("one", {GPU: 1})
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        before = (node.plugins / FILE).read_bytes()
        running(await kubelet.admit(one))
        written_late(node, before)
        await anyio.sleep(wait)
        assert (await kubelet.admit(pod("late", {USB: 1}))).phase == "Failed"
        assert (await kubelet.admit(pod("later", {USB: 1}))).phase == "Failed"
