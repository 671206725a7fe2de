# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of a node: written once, corrected after foreign changes, and without missing fields."""

from __future__ import annotations

from tests.blackbox.claims import cluster_of, daemon_of
from tests.blackbox.harness import Node

FIRST, SECOND = "pci-0000-10-00-0", "pci-0000-11-00-0"


async def test_a_claim_is_prepared_and_released(node: Node) -> None:
    node.add_gpus(2)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST, SECOND)
        cluster.allocate("a", {"gpu": FIRST})
        pod = await cluster.start("p", "a")
        assert pod.phase == "Running", pod.message
        assert cluster.edits(pod)["nodes"] == ["/dev/vfio/10", "/dev/vfio/vfio"]
        await cluster.kubelet.terminate(pod)
