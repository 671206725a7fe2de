# SPDX-License-Identifier: Apache-2.0
"""Who opens a device while an Allocate waits already, for something else, is waited for until it has ended.

No count told of it when processes were looked at first.
"""

from __future__ import annotations

import shutil

import anyio
import pytest
from anyio.abc import TaskGroup

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    GPU,
    named,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import Node, health, pod
from tests.blackbox.test_one_group_counts import ENDING, OLD, QEMU, process
from tests.blackbox.test_one_group_ending import another, hangs_as_it_ends
from tests.blackbox.test_one_group_looks import OTHER

pytestmark = pytest.mark.slow

STARTS = 0.7  # seconds after which the old container opens a device here
KILLED = 2.5  # seconds more after which it is killed
CLOSED = 0.5  # seconds more after which its counts have fallen
LONG = 3.0  # seconds more that the kernel takes to close all that it had


async def given(kubelet: FakeKubelet, wants: dict[str, int]) -> Pod:
    """A pod with these, from a daemon that has seen them closed."""
    await stays(kubelet, lambda: "Unhealthy" not in health(kubelet, GPU).values(), OLD)
    old = await kubelet.admit(pod("old", wants))
    running(old)
    return old


async def waited_for(kubelet: FakeKubelet, tasks: TaskGroup, old: Pod, new: Pod) -> None:
    """The old pod is forgotten, and the new one is asked to wait for its container."""
    kubelet.delete(old)
    tasks.start_soon(kubelet.admit, new)
    await stays(kubelet, lambda: new.phase == "Pending", STARTS)


async def closes(node: Node, kubelet: FakeKubelet, new: Pod, *devices: str) -> None:
    """The first process is killed; the counts fall before it has ended."""
    await stays(kubelet, lambda: new.phase == "Pending", KILLED)
    hangs_as_it_ends(node)
    await stays(kubelet, lambda: new.phase == "Pending", CLOSED)
    for each in devices:
        node.host.release(each)
    await stays(kubelet, lambda: new.phase == "Pending", LONG)
    process(node, flags=ENDING, state="Z")


async def test_a_device_that_is_opened_while_another_one_is_waited_for_is_waited_for_too(node: Node) -> None:
    """The old pod has two devices, and opens them one after the other."""
    new = pod("new", {GPU: 2})
    one, two = boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        old = await given(kubelet, {GPU: 2})
        await named(node, one.gpu, old)
        node.host.hold(one.gpu)
        await waited_for(kubelet, tasks, old, new)
        node.host.hold(two.gpu)
        node.host.release(one.gpu)
        await stays(kubelet, lambda: new.phase == "Pending", KILLED)
        node.host.release(two.gpu)
    running(new)


async def test_a_group_that_a_living_process_has_closed_beside_a_counted_one_is_given_though_that_hangs_later(
    node: Node,
) -> None:
    """Nobody has asked the kubelet in between, and so looked again."""
    process(node)
    new = pod("new", {GPU: 2})
    one, two = boards = usb_boards(node, 2)
    seldom = started(node, "--timing-holders", "10s", listed=usb_lists(boards))
    async with seldom as (_, kubelet), anyio.create_task_group() as tasks:
        old = await given(kubelet, {GPU: 2})
        await named(node, one.gpu, old)
        another(node, one.group)
        node.host.hold(one.gpu)
        node.host.tree.link(f"{QEMU}/fd/7", f"/dev/vfio/{two.group}")
        node.host.hold(two.gpu)
        await waited_for(kubelet, tasks, old, new)
        node.host.release(two.gpu)
        node.host.tree.remove(f"{QEMU}/fd/7")
        await stays(kubelet, lambda: new.phase == "Pending", CLOSED)
        hangs_as_it_ends(node)
        await stays(kubelet, lambda: new.phase == "Pending", CLOSED)
        shutil.rmtree(node.host.path(OTHER))
        node.host.release(one.gpu)
    running(new)
