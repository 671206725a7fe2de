# SPDX-License-Identifier: Apache-2.0
"""A node on which the kernel gives no more watches: what is seen late is told, and the rest goes on."""

from __future__ import annotations

import pytest

from tests.blackbox.harness import T4, Node, until_health
from tests.namespaces import ALONE, namespaces

NONE = (*ALONE, "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"', "sh")
FEW = (*ALONE, "sh", "-c", 'echo 4 >/proc/sys/user/max_inotify_watches && exec "$@"', "sh")


@pytest.mark.skipif(not namespaces(), reason="no user namespace: the machine's own limit is left alone")
async def test_watches_that_the_kernel_refuses_are_named_with_what_to_do(node: Node) -> None:
    node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon(under=FEW):
        await kubelet.until_listed(T4, 2)
        told = await node.status()
        assert told["host"]["events"]["unwatched"] > 2
        (problem,) = told["problems"]
        assert str(node.plugins) in problem
        assert "fs.inotify.max_user_watches" in problem


@pytest.mark.slow
@pytest.mark.skipif(not namespaces(), reason="no user namespace: the machine's own limit is left alone")
async def test_without_an_instance_of_inotify_it_starts_says_so_and_finds_changes_by_asking(
    node: Node,
) -> None:
    _, two = node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon(under=NONE) as daemon:
        await kubelet.until_listed(T4, 2)
        assert daemon.usage().inotify == 0
        line = await daemon.logged("events-unavailable", source="inotify")
        assert "fs.inotify.max_user_instances" in line["message"]
        (problem,) = (await node.status())["problems"]
        assert "fs.inotify.max_user_instances" in problem
        node.host.unplug(two)
        await until_health(kubelet, T4, two, None)
        await daemon.logged("events-unavailable", source="inotify")
        assert len(daemon.lines("events-unavailable", source="inotify")) == 1
