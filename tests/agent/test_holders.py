# SPDX-License-Identifier: Apache-2.0
"""Who holds what, over time: hints, doubt, silence, settling and awaited releases."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from nodeagent.agent import doubt, holders
from nodeagent.agent.holders import Holders, Waits
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.config import Settings, Timing
from nodeagent.model.allocation import Allocations, Holder, Knowledge, unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from tests.agent.parts import settings, until
from tests.conftest import Said

OLD = 3600.0
POD = Holder("ns", "p", ResourceName("example.com/a"))


class Kubelet:
    """Answers with what is held, or not at all; remembers when it was asked."""

    def __init__(self, **held: Holder) -> None:
        self.held: dict[str, Holder] = held
        self.silent = False
        self.started: float | None = time.time() - OLD
        self.asked = Latest[tuple[float, ...]](())
        self.answers = anyio.Event()
        self.answers.set()

    async def holders(self) -> Mapping[str, Holder]:
        """One question."""
        self.asked.set((*self.asked.get(), anyio.current_time()))
        await self.answers.wait()
        if self.silent:
            raise KubeletUnavailable("no answer in time")
        return dict(self.held)

    def born(self) -> float | None:
        """When it was started."""
        return self.started

    async def until_asked(self, times: int, seconds: float = 5.0) -> tuple[float, ...]:
        """Wait for that many questions; their times."""
        with anyio.fail_after(seconds):
            while len(self.asked.get()) < times:
                await self.asked.newer(self.asked.version)
        return self.asked.get()


@dataclass
class Rescans:
    """Remembers which releases were looked at, and who was told to hold something then."""

    snapshots: Snapshots
    asked: list[tuple[set[str], set[str]]] = field(default_factory=list)

    async def refresh(self, ids: Collection[str]) -> None:
        """One look."""
        self.asked.append((set(ids), set(self.snapshots.now.allocations.holders)))


class Loop:
    """The component, wired; times in seconds."""

    def __init__(
        self, kubelet: Kubelet, settle: float = 1.0, resync: float = 60.0, waiting: float = 60.0
    ) -> None:
        self.snapshots = Snapshots(Snapshot())
        self.reservations = ReservationBook(self.snapshots)
        self.settings: Latest[Settings] = settings(settle, resync, waiting)
        self.releases = Releases(self.settings)
        self.rescans = Rescans(self.snapshots)
        self.holders = Holders(
            kubelet, self.snapshots, self.reservations, self.settings, self.releases, self.rescans
        )

    @property
    def now(self) -> Allocations:
        return self.snapshots.now.allocations

    @property
    def settling(self) -> frozenset[str]:
        return self.snapshots.now.reservations.settling

    def give(self, **given: Holder) -> None:
        """An Allocate gives these away."""
        self.reservations.give(given, anyio.current_time() + self.settings.get().timing.settle)

    def grow_old(self) -> None:
        """As if the kubelet had run for a while."""
        self.holders.doubt.until = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.holders.run)
            yield
            tasks.cancel_scope.cancel()


async def test_an_answer_is_taken_and_an_equal_one_wakes_nobody() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    assert loop.now == Allocations({}, Knowledge.UNKNOWN)
    await loop.holders.one_turn()
    await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    assert loop.snapshots.version == 1


async def test_without_an_answer_what_was_held_stays_held(said: Said) -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    kubelet.silent = True
    for _ in range(3):
        await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD}, Knowledge.UNKNOWN)
    errors = [loop.holders.error]
    kubelet.silent, kubelet.held = False, {}
    await loop.holders.one_turn()
    assert loop.now == Allocations({}, Knowledge.COMPLETE)
    assert [*errors, loop.holders.error] == ["no answer in time", None]
    assert said(log.HOLDERS_UNKNOWN) == [{"error": "no answer in time"}]
    assert said(log.HOLDERS_KNOWN) == [{}]


async def test_a_young_kubelet_proves_only_presence() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    loop.holders.kubelet_changed()
    kubelet.held = {"b": POD}
    await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD, "b": POD}, Knowledge.COMPLETE)
    loop.grow_old()
    await loop.holders.one_turn()
    assert loop.now == Allocations({"b": POD}, Knowledge.COMPLETE)


async def test_what_only_a_young_kubelet_has_told_is_partial() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.started = time.time() - 1.0
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD}, Knowledge.PARTIAL)
    left = loop.holders.doubt.until - anyio.current_time()
    assert doubt.FRESH_KUBELET - 2 < left < doubt.FRESH_KUBELET, "it is asked when it is old enough"
    loop.grow_old()
    await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    loop.holders.kubelet_changed()
    await loop.holders.one_turn()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)


async def test_a_kubelet_from_the_future_is_doubted_no_longer_than_a_young_one() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.started = time.time() + 7200  # the clock was set back since
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    assert loop.now.knowledge is Knowledge.PARTIAL
    loop.grow_old()
    kubelet.held = {}
    await loop.holders.one_turn()
    assert loop.now == Allocations({}, Knowledge.COMPLETE)


async def test_ids_settle_until_the_kubelet_was_asked_after_their_time() -> None:
    loop = Loop(Kubelet(), settle=0.05)
    loop.give(a=POD, b=POD)
    assert loop.settling == {"a", "b"}
    await loop.holders.one_turn()
    assert loop.settling == {"a", "b"}
    await anyio.sleep_until(anyio.current_time() + 0.06)
    loop.give(c=POD)
    await loop.holders.one_turn()
    assert loop.settling == {"c"}


async def test_an_allocate_is_asked_about_once_when_it_has_settled() -> None:
    kubelet = Kubelet()
    loop = Loop(kubelet, settle=0.5)
    async with loop.running():
        await kubelet.until_asked(1)
        began = anyio.current_time()
        loop.give(a=POD)
        await kubelet.until_asked(2)
        await until(loop.snapshots, lambda snapshot: not snapshot.reservations.settling)
        times = [when - began for when in kubelet.asked.get()[1:]]
    assert len(times) == 1, "the kubelet has no news before the settle time is over"
    assert 0.5 <= times[0] < 0.8


@pytest.mark.parametrize("silent", [True, False])
async def test_what_has_settled_is_held_by_somebody_until_the_kubelet_says_by_whom(silent: bool) -> None:
    """No answer, or one of a young kubelet, does not say that nobody has it."""
    kubelet, somebody = Kubelet(), unnamed(POD.resource, 1)
    kubelet.silent = silent
    loop = Loop(kubelet, settle=0.0)
    loop.holders.kubelet_changed()
    loop.give(a=somebody)
    await loop.holders.one_turn()
    assert loop.now.holders == {"a": somebody}
    kubelet.silent, kubelet.held = False, {"a": POD}
    await loop.holders.one_turn()
    assert loop.now.holders == {"a": POD}
    loop.grow_old()
    kubelet.held = {}
    await loop.holders.one_turn()
    assert loop.now.holders == {}


async def test_an_answer_that_takes_long_does_not_leave_open_who_holds_what_has_settled() -> None:
    kubelet = Kubelet()
    kubelet.answers = anyio.Event()
    loop = Loop(kubelet, settle=0.01)
    async with loop.running():
        await anyio.wait_all_tasks_blocked()
        loop.give(a=POD)
        await until(loop.snapshots, lambda snapshot: bool(snapshot.allocations.holders))
        assert loop.now == Allocations({"a": POD}, Knowledge.UNKNOWN)
        kubelet.answers.set()
        await until(loop.snapshots, lambda snapshot: snapshot.allocations.complete)
        assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE), "this was asked before"


async def test_questions_are_spaced_however_many_hints_there_are() -> None:
    kubelet = Kubelet()
    loop = Loop(kubelet)
    async with loop.running():
        for number in range(4):
            await kubelet.until_asked(number + 1)
            loop.holders.ask_soon()
    times = kubelet.asked.get()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap >= holders.SPACING - 0.005 for gap in gaps)


async def test_without_hints_the_slow_timer_asks() -> None:
    kubelet = Kubelet()
    async with Loop(kubelet, resync=0.3).running():
        first, second, third = await kubelet.until_asked(3)
    assert 0.29 <= second - first < 0.5
    assert 0.29 <= third - second < 0.5


async def test_a_silent_kubelet_is_asked_again_later_each_time() -> None:
    kubelet = Kubelet()
    kubelet.silent = True
    async with Loop(kubelet).running():
        first, second, third = await kubelet.until_asked(3)
    assert 0.49 <= second - first < 0.8
    assert 0.99 <= third - second < 1.4


async def test_while_a_release_is_awaited_the_kubelet_is_asked_more_often() -> None:
    kubelet = Kubelet()
    loop = Loop(kubelet, waiting=0.2)
    async with loop.running():
        await kubelet.until_asked(1)
        await anyio.wait_all_tasks_blocked()
        loop.releases.wait_for(frozenset({"a"}), by="offers")
        _, second, third = await kubelet.until_asked(3)
        assert 0.19 <= third - second < 0.5


def test_the_time_of_the_next_question_is_the_first_of_all_that_want_one() -> None:
    timing = Timing(settle=1.0, resync=60.0, holders=2.0)
    assert Waits(asked=100.0).due(timing) == 160.0
    assert Waits(100.0, released=True).due(timing) == 102.0
    assert Waits(100.0, settled=100.7, released=True).due(timing) == 100.7
    assert [Waits(100.0, failures=count).due(timing) for count in (1, 2, 9)] == [100.5, 101.0, 110.0]
    assert Waits(100.0, doubted=130.0).due(timing) == 130.0
    assert Waits(100.0, doubted=100.2).due(timing) == 101.0
    assert Waits(100.0, doubted=99.0).due(timing) == 160.0


async def test_the_end_of_the_doubt_is_waited_for() -> None:
    loop = Loop(Kubelet())
    loop.holders.kubelet_changed()
    left = loop.holders.doubt.until - anyio.current_time()
    assert doubt.FRESH_KUBELET - 1 < left <= doubt.FRESH_KUBELET


async def test_a_release_is_looked_at_before_it_is_told() -> None:
    kubelet = Kubelet(a=POD, b=POD)
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    assert loop.rescans.asked == []
    del kubelet.held["a"]
    await loop.holders.one_turn()
    assert loop.rescans.asked == [({"a"}, {"a", "b"})]
    assert set(loop.now.holders) == {"b"}


async def test_an_answer_that_says_the_same_keeps_the_same_objects() -> None:
    """So whoever decides finds out by identity that nothing has changed."""
    kubelet = Kubelet(a=POD, b=POD)
    loop = Loop(kubelet)
    await loop.holders.one_turn()
    before = loop.now
    await loop.holders.one_turn()
    assert loop.now is before
    kubelet.held = {"a": Holder("ns", "p", ResourceName("example.com/a")), "c": POD}
    await loop.holders.one_turn()
    assert loop.now.holders["a"] is before.holders["a"]


async def test_a_new_kubelet_is_asked_at_once() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    async with loop.running():
        await kubelet.until_asked(1)
        loop.holders.kubelet_changed()
        await kubelet.until_asked(2)


async def test_whoever_begins_to_wait_for_a_release_has_the_kubelet_asked() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    async with loop.running():
        await kubelet.until_asked(1)
        await anyio.wait_all_tasks_blocked()
        loop.releases.wait_for(frozenset({"a"}), by="changes")
        await kubelet.until_asked(2)
