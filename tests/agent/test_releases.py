# SPDX-License-Identifier: Apache-2.0
"""Devices whose release is awaited are polled."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from nodeagent.agent.releases import Releases
from tests.agent.parts import settings


class Rescans:
    """Remembers what it was asked for; the third time all is released."""

    def __init__(self, releases: Releases) -> None:
        self.asked: list[set[str]] = []
        self._releases = releases

    async def refresh(self, ids: Collection[str]) -> None:
        """One look."""
        self.asked.append(set(ids))
        self._releases.wait_for(frozenset({"a"} if len(self.asked) < 3 else ()), by="offers")


async def test_what_waits_is_looked_for_after_each_pause_until_it_waits_no_more() -> None:
    releases = Releases(settings(holders=0.02))
    rescans = Rescans(releases)
    releases.add_reader(rescans)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(releases.run)
        await anyio.wait_all_tasks_blocked()
        assert rescans.asked == []
        began = anyio.current_time()
        releases.wait_for(frozenset({"a", "b"}), by="offers")
        with anyio.fail_after(5):
            while releases.awaited.get():
                await releases.awaited.newer(releases.awaited.version)
        assert anyio.current_time() - began >= 0.06
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert rescans.asked == [{"a", "b"}, {"a"}, {"a"}]


def test_each_who_waits_has_ids_of_its_own() -> None:
    releases = Releases(settings())
    releases.wait_for(frozenset({"a"}), by="offers")
    releases.wait_for(frozenset({"a", "b"}), by="changes")
    assert releases.awaited.get() == {"a", "b"}
    releases.wait_for(frozenset({"b"}), by="changes")
    releases.wait_for(frozenset(), by="offers")
    assert releases.awaited.get() == {"b"}
