# SPDX-License-Identifier: Apache-2.0
"""An Allocate reads all that decides about its devices as they are now, also where that is something new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import AllocationRefused
from tests.agent.wired import GPUS, NEIGHBOUR, ONE, Agent, agent_in

ELSEWHERE = 77  # an IOMMU group


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """With a function in a group of its own, that the daemon has seen."""
    async with agent_in(tmp_path, GPUS) as found:
        plugged(found, NEIGHBOUR, "8086")
        with anyio.fail_after(5):
            await found.eyes.observer.rescan(frozenset({None}))
        found.offering.one_turn()
        yield found


def plugged(agent: Agent, address: str, vendor: str) -> None:
    agent.host.add_function(
        address,
        vendor=vendor,
        device="1000",
        pci_class="030200",
        driver="vfio-pci",
        group=ELSEWHERE,
    )


def replaced(agent: Agent, address: str) -> None:
    """Another device is in the slot, in the other group; nobody has heard of it."""
    agent.host.unplug(address)
    plugged(agent, address, "10de")


async def test_who_is_in_the_new_group_of_a_device_that_moved_unseen_is_read_as_well(agent: Agent) -> None:
    replaced(agent, ONE)
    agent.host.bind(NEIGHBOUR, "xhci_hcd")
    with anyio.fail_after(5), pytest.raises(AllocationRefused, match="xhci_hcd"):
        await agent.answers().allocate([ONE])


async def test_a_device_that_moved_unseen_to_a_group_that_is_open_waits_for_its_end(agent: Agent) -> None:
    replaced(agent, ONE)
    agent.host.hold(NEIGHBOUR)
    with pytest.raises(TimeoutError), anyio.fail_after(1):
        await agent.answers().allocate([ONE])
    agent.host.release(NEIGHBOUR)
    with anyio.fail_after(5):
        await agent.answers().allocate([ONE])
