# SPDX-License-Identifier: Apache-2.0
"""A KubeVirt CR with thousands of entries that cannot be used."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer
from tests.blackbox.harness import PATIENCE, Node
from tests.blackbox.test_cluster import ENTRY, GPU, followed, of, put, server_of

MANY = 3000


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu("0000:20:00.0", 20)
    async with server_of(node) as server:
        yield server


async def test_thousands_of_refused_entries_are_told_in_the_status_and_not_each_in_the_log(
    node: Node, server: FakeApiServer
) -> None:
    async with followed(node) as (daemon, kubelet):
        wrong = [ENTRY | {"pciVendorSelector": f"all {number}"} for number in range(MANY)]
        put(server, ENTRY, *wrong)
        await kubelet.until_listed(GPU, 1, PATIENCE)
        told = await node.until_told(lambda told: of(told, "refused"))
        assert len(of(told, "refused")) == MANY
        await daemon.logged("config-warning")
        lines = daemon.lines("config-warning")
        assert 1 < len(lines) < 40
        assert "more" in lines[-1]["message"]
