# SPDX-License-Identifier: Apache-2.0
"""A node on which the kernel gives no more watches: what is seen late is told, and the rest goes on."""

from __future__ import annotations

import pytest

from tests.blackbox.harness import T4, Node
from tests.namespaces import ALONE, namespaces

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
