# SPDX-License-Identifier: Apache-2.0
"""What happens around the kubelet's sockets: unlinked while it lives, its tree made anew, mounted over."""

from __future__ import annotations

import shutil

import anyio
import pytest

from tests.blackbox.harness import PATIENCE, T4, Node, eventually, pod
from tests.mounts import mounted, needs_root

A, B = "example.com/a", "example.com/b"
AT_ONCE = 4.0  # seconds, on a machine that others load; the slow poll takes ten


@pytest.fixture
def two(node: Node) -> Node:
    """A node with two resources."""
    node.host.node("/dev/kvm")
    node.configure(
        "resources:\n"
        "  - {name: example.com/a, node: {path: /dev/kvm, count: 2}}\n"
        "  - {name: example.com/b, node: {path: /dev/kvm, count: 3}}\n"
    )
    return node


@pytest.mark.parametrize("sockets", ["kubelet.sock", "*.sock"])
async def test_sockets_that_are_unlinked_while_the_kubelet_lives_end_no_stream(
    two: Node, sockets: str
) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        for each in sorted(two.plugins.glob(sockets)):
            each.unlink()
        await daemon.logged("kubelet-gone")
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: kubelet.statistics.streams != {A: 1, B: 1}, 1.5)
        two.host.remove_node("/dev/kvm")
        await kubelet.until(lambda: kubelet.capacity(A) == (2, 0), PATIENCE)
        await kubelet.restart()
        await kubelet.until_listed(A, 2, PATIENCE)
        await kubelet.until_listed(B, 3, PATIENCE)
        assert len(kubelet.statistics.accepted(A)) == 2


@pytest.mark.parametrize("tree", ["var/lib/kubelet", "var/lib/kubelet/device-plugins"])
@pytest.mark.parametrize("way", ["removed", "renamed"])
async def test_a_tree_that_is_made_anew_is_found_at_once(two: Node, tree: str, way: str) -> None:
    async with two.running(listed={A: 2, B: 3}) as (_, kubelet):
        await kubelet.stop()
        await eventually(lambda: not two.sockets())
        if way == "renamed":
            (two.root / tree).rename(two.root / "aside")
        else:
            shutil.rmtree(two.root / tree)
        began = anyio.current_time()
        await kubelet.start()
        await kubelet.until_listed(A, 2, PATIENCE)
        await kubelet.until_listed(B, 3, PATIENCE)
        assert anyio.current_time() - began < AT_ONCE


@needs_root
@pytest.mark.parametrize("tree", ["var/lib/kubelet", "var/lib/kubelet/device-plugins"])
async def test_a_file_system_that_is_mounted_over_the_tree_is_found_at_once(two: Node, tree: str) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await kubelet.stop()
        kubelet.socket.unlink()
        await eventually(lambda: not two.sockets())  # it waits for a socket, and tries no more
        with mounted(two.root / tree):
            began = anyio.current_time()
            await kubelet.start()
            await kubelet.until_listed(A, 2, PATIENCE)
            await kubelet.until_listed(B, 3, PATIENCE)
            assert anyio.current_time() - began < AT_ONCE
            await kubelet.restart()  # what happens there is heard of, too
            await kubelet.until_listed(A, 2, AT_ONCE)
            await kubelet.stop()
            kubelet.socket.unlink()
            await eventually(lambda: not two.sockets())
        began = anyio.current_time()
        await kubelet.start()
        await kubelet.until_listed(B, 3, PATIENCE)
        assert anyio.current_time() - began < AT_ONCE
        assert daemon.alive


async def test_a_resource_that_was_being_registered_when_the_kubelet_went_is_not_tried_on(two: Node) -> None:
    async with two.kubelet() as kubelet:
        kubelet.faults.set("refuse-register", "no room")
        async with two.daemon() as daemon:
            await daemon.logged("register-failing", 2)
            assert len(two.sockets()) == 2
            await kubelet.stop()
            kubelet.socket.unlink()
            await eventually(lambda: not two.sockets())
            kubelet.faults.clear("refuse-register")
            await kubelet.start()
            await kubelet.until_listed(A, 2, AT_ONCE)
            await kubelet.until_listed(B, 3, AT_ONCE)


async def test_the_first_list_for_a_kubelet_that_came_later_waits_for_its_answer(node: Node) -> None:
    """The device that it names as held is not there any more, and nothing else tells of it."""
    gone, other = node.add_gpus(2)
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(T4, 2, PATIENCE)
            assert (await kubelet.admit(pod("one", {T4: 2}))).phase == "Running"
        held = kubelet.state.table.held
        await kubelet.stop()
        shutil.rmtree(node.root / "var/lib/kubelet")
        node.host.unplug(gone)
        async with node.daemon() as daemon:
            await daemon.logged("kubelet-gone")
            seen = len(kubelet.statistics.lists[T4])
            kubelet.faults.set("listen-delay", 0.1)
            kubelet.faults.set("pod-resources-delay", 0.1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.start)
                await eventually(node.plugins.exists)
                kubelet.state.table.held = held
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            first = kubelet.statistics.lists[T4][seen].health
            assert first == {gone: "Unhealthy", other: "Healthy"}
