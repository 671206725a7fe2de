# SPDX-License-Identifier: Apache-2.0
"""What happens around the kubelet's sockets: unlinked while it lives, its tree made anew, mounted over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from tests.blackbox.harness import PATIENCE, T4, Node, eventually, pod, watched
from tests.mounts import mounted, needs_root

A, B = "example.com/a", "example.com/b"
AT_ONCE = 4.0  # seconds, on a machine that others load
MOUNTED = 10.0  # a mount raises no event


def is_removed(directory: Path) -> bool:
    """Remove it; False if the daemon has just made a file in it."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


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
        await daemon.logged("kubelet-unreachable")
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
            await eventually(lambda: is_removed(two.root / tree))
        began = anyio.current_time()
        await kubelet.start()
        await kubelet.until_listed(A, 2, PATIENCE)
        await kubelet.until_listed(B, 3, PATIENCE)
        assert anyio.current_time() - began < AT_ONCE


async def test_a_tree_made_anew_while_another_process_has_the_old_one_open_is_found_at_once(
    two: Node,
) -> None:
    """The pod of another plugin has device-plugins mounted: rmdir(2) raises no event in what is held."""
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        held = os.open(two.plugins, os.O_RDONLY)
        old = os.fstat(held).st_ino
        assert old in watched(daemon)
        for _ in range(3):  # each later one, too
            await kubelet.stop()
            await eventually(lambda: not two.sockets())
            await eventually(lambda: is_removed(two.plugins))
            await eventually(lambda: old not in watched(daemon))
            await eventually(lambda: is_removed(two.plugins.parent))
            await anyio.sleep(0.2)  # for the daemon to hear of the second removal
            began = anyio.current_time()
            await kubelet.start()
            await kubelet.until_listed(A, 2, PATIENCE)
            await kubelet.until_listed(B, 3, PATIENCE)
            took = anyio.current_time() - began
            print(f"found after {took:.2f} s")
            assert took < AT_ONCE
        os.close(held)


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("tree", ["var/lib/kubelet", "var/lib/kubelet/device-plugins"])
async def test_a_file_system_that_is_mounted_over_the_tree_is_found_in_ten_seconds(
    two: Node, tree: str
) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await kubelet.stop()
        kubelet.socket.unlink()
        await eventually(lambda: not two.sockets())  # it waits for a socket, and tries no more
        with mounted(two.root / tree):
            began = anyio.current_time()
            await kubelet.start()
            await kubelet.until_listed(A, 2, PATIENCE)
            await kubelet.until_listed(B, 3, PATIENCE)
            assert anyio.current_time() - began < MOUNTED
            await kubelet.restart()  # what happens there is heard of, too
            await kubelet.until_listed(A, 2, AT_ONCE)
            await kubelet.stop()
            kubelet.socket.unlink()
            await eventually(lambda: not two.sockets())
        began = anyio.current_time()
        await kubelet.start()
        await kubelet.until_listed(B, 3, PATIENCE)
        assert anyio.current_time() - began < MOUNTED
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
            await daemon.logged("kubelet-unreachable")
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
