# SPDX-License-Identifier: Apache-2.0
"""What was kept of the cluster on a disk that hangs, comes back, or has what others wrote."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer
from tests.blackbox.harness import LASTING, PATIENCE, T4, Node
from tests.blackbox.test_cluster import ENTRY, FLAGS, GPU, OTHER, followed, of, put, server_of

ASLEEP = 15.0  # seconds after which nobody may wait for a disk any more


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu("0000:20:00.0", 20)
    async with server_of(node) as server:
        put(server, ENTRY)
        yield server


async def test_what_is_on_disk_again_after_a_failure_is_said_no_more(
    node: Node, server: FakeApiServer
) -> None:
    async with followed(node) as (_, kubelet):
        await node.until_told(lambda told: of(told, "lastSaved"))
        unwritable = node.root / "var/lib/nodeagent/last.new"
        unwritable.mkdir()
        put(server, ENTRY | {"resourceName": OTHER})
        await node.until_told(lambda told: of(told, "warnings"))
        put(server, ENTRY)  # as it is on disk
        await kubelet.until_listed(GPU, 1, PATIENCE)
        await node.until_told(lambda told: not of(told, "warnings"))


async def test_offered_names_that_cannot_be_read_hold_up_nothing(node: Node, server: FakeApiServer) -> None:
    """A pipe without a writer: whoever reads it, waits."""
    kept = node.root / "var/lib/nodeagent"
    kept.mkdir(parents=True)
    os.mkfifo(kept / "last.json")
    async with node.kubelet() as kubelet, node.daemon(*FLAGS):
        await kubelet.until_listed(GPU, 1, ASLEEP)


@pytest.mark.parametrize("labels", [["a"], "a", {"a": 1}, {"a": None}])
async def test_a_record_of_another_shape_is_set_aside(
    node: Node, server: FakeApiServer, labels: object
) -> None:
    kept = node.root / LASTING
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"cluster": {"kubevirt": None, "labels": labels, "at": 1.0}}))
    await server.stop()
    async with node.kubelet() as kubelet, node.daemon(*FLAGS) as daemon:
        await kubelet.until_listed(T4, 1, PATIENCE)
        await daemon.logged("state-damaged")
        assert daemon.lines("state-damaged")
