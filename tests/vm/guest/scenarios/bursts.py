# SPDX-License-Identifier: Apache-2.0
"""Floods of uevents, while the daemon has no time to read them."""

from __future__ import annotations

from typing import Any

import anyio

from tests.vm.guest import pci
from tests.vm.guest.node import UNHEALTHY, Node

_BURST = 2000
_SECONDS = 5.0  # for what was read later than what had changed


async def two_thousand_events_fit_into_the_socket_and_no_bind_is_missed(node: Node) -> None:
    """With CAP_NET_ADMIN the buffer is large enough."""
    before, after = await _flood(node)
    assert after["lost"] == before["lost"]
    assert after["events"] - before["events"] >= _BURST


async def events_that_overflow_the_socket_lose_no_bind(node: Node) -> None:
    """Without it the kernel's limit holds, events are lost, and everything is read again."""
    before, after = await _flood(node)
    assert after["lost"] > before["lost"]
    assert after["events"] - before["events"] < _BURST


async def _flood(node: Node) -> tuple[Any, Any]:
    """The statistics before and after; the change comes last, when a small buffer is full.

    The group keeps its node, so that only uevents tell of the change.
    """
    before = await node.events()
    node.pause_daemon(True)
    try:
        await node.change(pci.synthetic, node.below_port, _BURST)
        await node.change(pci.unbind, node.second)
    finally:
        node.pause_daemon(False)
    lists = len(node.kubelet.statistics.lists["example.com/pair"])
    await node.until(node.second, UNHEALTHY)
    after = await node.events()
    with anyio.move_on_after(_SECONDS):  # real changes go first: the others may not be counted yet
        while after["lost"] == before["lost"] and after["events"] - before["events"] < _BURST:
            after = await node.events()
    assert len(node.kubelet.statistics.lists["example.com/pair"]) == lists + 1
    return before, after
