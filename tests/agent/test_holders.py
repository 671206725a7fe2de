# SPDX-License-Identifier: Apache-2.0
"""Who holds what, over time: hints, doubt, silence, settling and awaited releases."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest

from nodeagent.agent import holders
from nodeagent.agent.holders import HoldersLoop
from nodeagent.agent.reservations import Reservations
from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.config import Timing
from nodeagent.model.allocation import Allocations, Holder, Knowledge, unnamed
from nodeagent.model.ids import ResourceName
from tests.conftest import Said

OLD = 3600.0
POD = Holder("ns", "p", ResourceName("example.com/a"))


class Kubelet:
    """Answers with ``holders``, or not at all; remembers when it was asked."""

    def __init__(self, **holders: Holder) -> None:
        self.holders: dict[str, Holder] = holders
        self.silent = False
        self.born: float | None = time.time() - OLD
        self.asked = Latest[tuple[float, ...]](())

    async def ask(self) -> Mapping[str, Holder]:
        """One question."""
        self.asked.set((*self.asked.get(), anyio.current_time()))
        if self.silent:
            raise KubeletUnavailable("no answer in time")
        return dict(self.holders)

    async def until_asked(self, times: int, seconds: float = 5.0) -> tuple[float, ...]:
        """Wait for that many questions; their times."""
        with anyio.fail_after(seconds):
            while len(self.asked.get()) < times:
                await self.asked.newer(self.asked.version)
        return self.asked.get()


def made(
    kubelet: Kubelet,
    settle: float = 1.0,
    resync: float = 60.0,
    waiting: float = 60.0,
    reservations: Reservations | None = None,
) -> HoldersLoop:
    return HoldersLoop(
        kubelet.ask,
        lambda: kubelet.born,
        reservations or Reservations(),
        timing=lambda: Timing(settle, resync, waiting),
    )


@asynccontextmanager
async def running(loop: HoldersLoop) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        yield
        tasks.cancel_scope.cancel()


async def test_an_answer_is_taken_and_an_equal_one_wakes_nobody() -> None:
    kubelet = Kubelet(a=POD)
    loop = made(kubelet)
    assert loop.cell.get() == Allocations({}, Knowledge.UNKNOWN)
    await loop.one_turn()
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD}, Knowledge.COMPLETE)
    assert loop.cell.version == 1


async def test_without_an_answer_what_was_held_stays_held(said: Said) -> None:
    kubelet = Kubelet(a=POD)
    loop = made(kubelet)
    await loop.one_turn()
    kubelet.silent = True
    for _ in range(3):
        await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD}, Knowledge.UNKNOWN)
    errors = [loop.error]
    kubelet.silent, kubelet.holders = False, {}
    await loop.one_turn()
    assert loop.cell.get() == Allocations({}, Knowledge.COMPLETE)
    assert [*errors, loop.error] == ["no answer in time", None]
    assert said(log.HOLDERS_UNKNOWN) == [{"error": "no answer in time"}]
    assert said(log.HOLDERS_KNOWN) == [{}]


async def test_a_young_kubelet_proves_only_presence() -> None:
    kubelet = Kubelet(a=POD)
    loop = made(kubelet)
    await loop.one_turn()
    loop.kubelet_changed()
    kubelet.holders = {"b": POD}
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD, "b": POD}, Knowledge.COMPLETE)
    loop._doubt_until = 0.0  # as if it had run for a while
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"b": POD}, Knowledge.COMPLETE)


async def test_what_only_a_young_kubelet_has_told_is_partial() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.born = time.time() - 1.0
    loop = made(kubelet)
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD}, Knowledge.PARTIAL)
    now = time.monotonic()
    assert 28 < loop._due(now) - now < 30, "it is asked when it is old enough"
    loop._doubt_until = 0.0  # as if it had run for a while
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD}, Knowledge.COMPLETE)
    loop.kubelet_changed()
    await loop.one_turn()
    assert loop.cell.get() == Allocations({"a": POD}, Knowledge.COMPLETE)


async def test_a_kubelet_from_the_future_is_doubted_no_longer_than_a_young_one() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.born = time.time() + 7200  # the clock was set back since
    loop = made(kubelet)
    await loop.one_turn()
    assert loop.cell.get().knowledge is Knowledge.PARTIAL
    loop._doubt_until = 0.0  # as if the time were over
    kubelet.holders = {}
    await loop.one_turn()
    assert loop.cell.get() == Allocations({}, Knowledge.COMPLETE)


async def test_ids_settle_until_the_kubelet_was_asked_after_their_time() -> None:
    reservations = Reservations()
    loop = made(Kubelet(), settle=0.05, reservations=reservations)
    loop.give({"a": POD, "b": POD})
    assert reservations.settling.get() == {"a", "b"}
    await loop.one_turn()
    assert reservations.settling.get() == {"a", "b"}
    await anyio.sleep_until(anyio.current_time() + 0.06)
    loop.give({"c": POD})
    await loop.one_turn()
    assert reservations.settling.get() == {"c"}


async def test_an_allocate_is_asked_about_once_when_it_has_settled() -> None:
    kubelet = Kubelet()
    reservations = Reservations()
    loop = made(kubelet, settle=0.5, reservations=reservations)
    async with running(loop):
        await kubelet.until_asked(1)
        began = anyio.current_time()
        loop.give({"a": POD})
        await kubelet.until_asked(2)
        seen, ids = -1, frozenset({"a"})
        with anyio.fail_after(5):
            while ids:
                seen, ids = await reservations.settling.newer(seen)
        times = [when - began for when in kubelet.asked.get()[1:]]
    assert len(times) == 1, "the kubelet has no news before the settle time is over"
    assert 0.5 <= times[0] < 0.8


@pytest.mark.parametrize("silent", [True, False])
async def test_what_has_settled_is_held_by_somebody_until_the_kubelet_says_by_whom(silent: bool) -> None:
    """No answer, or one of a young kubelet, does not say that nobody has it."""
    kubelet, somebody = Kubelet(), unnamed(POD.resource, 1)
    kubelet.silent = silent
    loop = made(kubelet, settle=0.0)
    loop.kubelet_changed()
    loop.give({"a": somebody})
    await loop.one_turn()
    assert loop.cell.get().holders == {"a": somebody}
    kubelet.silent, kubelet.holders = False, {"a": POD}
    await loop.one_turn()
    assert loop.cell.get().holders == {"a": POD}
    loop._doubt_until = 0.0  # as if it had run for a while
    kubelet.holders = {}
    await loop.one_turn()
    assert loop.cell.get().holders == {}


async def test_an_answer_that_takes_long_does_not_leave_open_who_holds_what_has_settled() -> None:
    answer = anyio.Event()

    async def ask() -> Mapping[str, Holder]:
        await answer.wait()
        return {}

    loop = HoldersLoop(ask, lambda: None, Reservations(), timing=lambda: Timing(0.01, 60, 60))
    async with running(loop):
        await anyio.wait_all_tasks_blocked()
        loop.give({"a": POD})
        with anyio.fail_after(5):
            await loop.cell.newer(0)
        assert loop.cell.get() == Allocations({"a": POD}, Knowledge.UNKNOWN)
        answer.set()
        with anyio.fail_after(5):
            await loop.cell.newer(1)
        assert loop.cell.get() == Allocations({"a": POD}, Knowledge.COMPLETE), "this was asked before"


async def test_questions_are_spaced_however_many_hints_there_are() -> None:
    kubelet = Kubelet()
    loop = made(kubelet)
    async with running(loop):
        for number in range(4):
            await kubelet.until_asked(number + 1)
            loop.wake()
    times = kubelet.asked.get()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap >= holders.SPACING - 0.005 for gap in gaps)


async def test_without_hints_the_slow_timer_asks() -> None:
    kubelet = Kubelet()
    async with running(made(kubelet, resync=0.3)):
        first, second, third = await kubelet.until_asked(3)
    assert 0.29 <= second - first < 0.5
    assert 0.29 <= third - second < 0.5


async def test_a_silent_kubelet_is_asked_again_later_each_time() -> None:
    kubelet = Kubelet()
    kubelet.silent = True
    async with running(made(kubelet)):
        first, second, third = await kubelet.until_asked(3)
    assert 0.49 <= second - first < 0.8
    assert 0.99 <= third - second < 1.4


async def test_while_a_release_is_awaited_the_kubelet_is_asked_more_often() -> None:
    kubelet = Kubelet()
    loop = made(kubelet, waiting=0.2)
    async with running(loop):
        await kubelet.until_asked(1)
        loop.await_releases(False)
        await anyio.wait_all_tasks_blocked()
        loop.await_releases(True)
        _, second, third = await kubelet.until_asked(3)
        assert 0.19 <= third - second < 0.5
        loop.await_releases(False)
    assert loop._due(100.0) == 160.0


async def test_the_end_of_the_doubt_is_waited_for() -> None:
    loop = made(Kubelet())
    loop.kubelet_changed()
    now = time.monotonic()
    assert holders.FRESH_KUBELET - 1 < loop._due(now) - now <= holders.FRESH_KUBELET


async def test_a_release_is_looked_at_before_it_is_told() -> None:
    kubelet, looked = Kubelet(a=POD, b=POD), list[tuple[set[str], set[str]]]()

    async def look(ids: Collection[str]) -> None:
        looked.append((set(ids), set(loop.cell.get().holders)))

    loop = HoldersLoop(
        kubelet.ask, lambda: None, Reservations(), timing=lambda: Timing(1, 60, 5), before_release=look
    )
    await loop.one_turn()
    assert looked == []
    del kubelet.holders["a"]
    await loop.one_turn()
    assert looked == [({"a"}, {"a", "b"})]
    assert set(loop.cell.get().holders) == {"b"}


async def test_changes_are_told() -> None:
    told: list[int] = []
    loop = HoldersLoop(
        Kubelet(a=POD).ask,
        lambda: None,
        Reservations(),
        timing=lambda: Timing(1, 60, 5),
        on_change=lambda: told.append(1),
    )
    await loop.one_turn()
    await loop.one_turn()
    assert told == [1]


async def test_a_new_kubelet_is_asked_at_once() -> None:
    kubelet = Kubelet(a=POD)
    loop = made(kubelet)
    async with running(loop):
        await kubelet.until_asked(1)
        loop.kubelet_changed()
        await kubelet.until_asked(2)


async def test_who_begins_to_wait_for_a_release_has_the_kubelet_asked() -> None:
    kubelet = Kubelet(a=POD)
    loop = made(kubelet)
    async with running(loop):
        await kubelet.until_asked(1)
        loop.await_releases(True, by="effects")
        await kubelet.until_asked(2)
