# SPDX-License-Identifier: Apache-2.0
"""What waits for a release is looked for again and again; the kubelet is asked once for all who want that."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from nodeagent.agent.releases import Releases
from nodeagent.base.timeouts import Timeouts
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
    releases = Releases(settings(holders=0.02), timeouts=Timeouts())
    rescans = Rescans(releases)
    releases.look_with(rescans)
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


def test_each_who_waits_has_ids_of_its_own_and_whoever_begins_is_announced() -> None:
    releases = Releases(settings(), timeouts=Timeouts())
    releases.wait_for(frozenset({"a"}), by="offers")
    releases.wait_for(frozenset({"a", "b"}), by="changes")
    assert releases.awaited.get() == {"a", "b"}
    releases.wait_for(frozenset({"b"}), by="changes")
    assert releases.began.version == 2
    releases.wait_for(frozenset(), by="offers")
    assert releases.awaited.get() == {"b"}
    releases.wait_for(frozenset({"c"}), by="offers")
    assert releases.began.version == 3


class Kubelet:
    """Answers when it may, and counts."""

    def __init__(self, *, possible: bool = True) -> None:
        self.possible = possible
        self.asked = 0
        self.gate = anyio.Event()

    async def ask(self, *, anew: bool = False) -> None:
        """One question."""
        self.asked += 1
        await self.gate.wait()


async def test_those_who_want_the_kubelet_asked_at_one_time_share_its_answer() -> None:
    releases, kubelet = Releases(settings(), timeouts=Timeouts()), Kubelet()
    releases.ask_with(kubelet)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(releases.asked)
        await anyio.wait_all_tasks_blocked()
        assert kubelet.asked == 1
        kubelet.gate.set()
    assert kubelet.asked == 1


async def test_an_answer_that_was_on_its_way_already_is_none_to_who_comes_later() -> None:
    releases, kubelet = Releases(settings(), timeouts=Timeouts()), Kubelet()
    releases.ask_with(kubelet)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(releases.asked)
        await anyio.wait_all_tasks_blocked()
        for _ in range(20):
            tasks.start_soon(releases.asked)
        await anyio.wait_all_tasks_blocked()
        kubelet.gate.set()
    assert kubelet.asked == 2


async def test_between_two_questions_is_a_pause() -> None:
    releases, kubelet = Releases(settings(), timeouts=Timeouts()), Kubelet()
    releases.ask_with(kubelet)
    kubelet.gate.set()
    began = anyio.current_time()
    for _ in range(3):
        await releases.asked()
    assert kubelet.asked == 3
    assert anyio.current_time() - began >= 2 * Timeouts().release_check_spacing


async def test_without_a_kubelet_nobody_is_asked() -> None:
    releases, kubelet = Releases(settings(), timeouts=Timeouts()), Kubelet(possible=False)
    await releases.asked()
    releases.ask_with(kubelet)
    await releases.asked()
    assert kubelet.asked == 0
