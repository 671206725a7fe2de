# SPDX-License-Identifier: Apache-2.0
"""A container that is started asks in its pod's worker, beside the admission of another pod.

So an Allocate may come from neither the pod that is being admitted nor one that has come since, and whoever
was named at it may not be through its admission.
"""

from __future__ import annotations

import anyio
import pytest

from nodeagent.sim.kubelet.state import SidecarsFirst
from tests.blackbox import foreign
from tests.blackbox.boards import (
    GPU,
    LONE,
    RULES,
    USB,
    all_listed,
    running,
    started,
    stays_taken,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, pod

pytestmark = pytest.mark.slow

RDMA = "vendor.example/rdma"


@pytest.mark.parametrize("asked", [False, True], ids=["", "asked meanwhile"])
async def test_what_an_init_container_got_stays_held_though_a_container_was_started_during_the_admission(
    node: Node, asked: bool
) -> None:
    """The pod had been named at that Allocate, so its own was taken for another one's that shows nothing."""
    (board,) = boards = usb_boards(node, 1)
    node.configure(RULES.replace(LONE, "example.com/later"))
    async with (
        started(node, listed={GPU: 1, USB: 1}) as (_, kubelet),
        foreign.serving(kubelet, "n0", takes=2.0),
        foreign.serving(kubelet, "r0", resource=RDMA, socket="rdma.sock"),
    ):
        old = await kubelet.admit(pod("old", {RDMA: 1, LONE: 1}))
        node.configure(RULES)
        await all_listed(kubelet, usb_lists(boards))
        quiet = await kubelet.admit(pod("quiet", {}))
        vm = SidecarsFirst("ns", "vm", [{}], sidecars=[{foreign.NIC: 1}], init_containers=[{GPU: 1}])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, vm)
            await kubelet.until(lambda: "n0" in kubelet.state.allocating, PATIENCE)
            await kubelet.admit(old, again=True)
            assert old.message == ""
            assert "n0" in kubelet.state.allocating
            if asked:
                kubelet.state.table.save()  # has the kubelet asked
        running(vm)
        await stays_taken(kubelet, board, quiet)
