# SPDX-License-Identifier: Apache-2.0
"""Who holds what, over time: hints, doubt, silence, settling and awaited releases."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from nodeagent.agent import doubt, holders
from nodeagent.agent.holders import Holders, Rewrites, Waits
from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.config import Settings, Timing
from nodeagent.kubelet.checkpoint import Books, Entry
from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Allocations, Holder, Knowledge, PodList, Possession, unnamed
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
        self.started: Birth | None = Birth((1, 1), OLD)
        self.file: tuple[Entry, ...] = ()
        self.asked = Latest[tuple[float, ...]](())
        self.answers = anyio.Event()
        self.answers.set()

    async def pods(self) -> PodList:
        """One question."""
        self.asked.set((*self.asked.get(), anyio.current_time()))
        await self.answers.wait()
        if self.silent:
            raise KubeletUnavailable("no answer in time")
        shown: dict[str, frozenset[Possession]] = {}
        for device_id, holder in self.held.items():
            shown[str(holder)] = shown.get(str(holder), frozenset()) | {(holder.resource, device_id)}
        return PodList(dict(self.held), shown)

    def books(self) -> Books:
        """What its file says."""
        return Books((1, len(self.file), 0) if self.file else None, self.file)

    def birth(self) -> Birth | None:
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
        self.inquiry = Inquiry(kubelet, self.snapshots, self.reservations, self.rescans)
        self.holders = Holders(self.inquiry, self.snapshots, self.reservations, self.settings, self.releases)

    @property
    def now(self) -> Allocations:
        return self.snapshots.now.allocations

    @property
    def settling(self) -> frozenset[str]:
        return self.snapshots.now.reservations.settling

    def give(self, **given: Holder) -> None:
        """An Allocate gives these away."""
        now = anyio.current_time()
        due = now + self.settings.get().timing.settle
        self.reservations.admit(self.reservations.admissions.asker(None), due)
        self.reservations.give(given, now, due)

    def grow_old(self) -> None:
        """As if the kubelet had run for a while."""
        self.inquiry.doubt.until = 0.0

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
    await loop.inquiry.ask()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    assert loop.snapshots.version == 1


async def test_without_an_answer_what_was_held_stays_held(said: Said) -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    kubelet.silent = True
    for _ in range(3):
        await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.UNKNOWN)
    errors = [loop.inquiry.error]
    kubelet.silent, kubelet.held = False, {}
    await loop.inquiry.ask()
    assert loop.now == Allocations({}, Knowledge.COMPLETE)
    assert [*errors, loop.inquiry.error] == ["no answer in time", None]
    assert said(log.HOLDERS_UNKNOWN) == [{"error": "no answer in time"}]
    assert said(log.HOLDERS_KNOWN) == [{}]


async def test_a_young_kubelet_proves_only_presence() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    loop.holders.kubelet_changed()
    kubelet.held = {"b": POD}
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD, "b": POD}, Knowledge.COMPLETE)
    loop.grow_old()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"b": POD}, Knowledge.COMPLETE)


async def test_what_only_a_young_kubelet_has_told_is_partial() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.started = Birth((1, 1), 1.0)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.PARTIAL)
    left = loop.inquiry.doubt.until - anyio.current_time()
    assert doubt.FRESH_KUBELET - 2 < left < doubt.FRESH_KUBELET, "it is asked when it is old enough"
    loop.grow_old()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    loop.holders.kubelet_changed()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)


async def test_ids_settle_until_the_kubelet_was_asked_after_their_time() -> None:
    loop = Loop(Kubelet(), settle=0.05)
    loop.give(a=POD, b=POD)
    assert loop.settling == {"a", "b"}
    await loop.inquiry.ask()
    assert loop.settling == {"a", "b"}
    await anyio.sleep_until(anyio.current_time() + 0.06)
    await loop.inquiry.ask()
    assert loop.settling == frozenset()


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
    loop.give(a=somebody)
    loop.holders.kubelet_changed()
    await loop.inquiry.ask()
    assert loop.now.holders == {"a": somebody}
    kubelet.silent, kubelet.held = False, {"a": POD}
    await loop.inquiry.ask()
    assert loop.now.holders == {"a": POD}
    loop.grow_old()
    kubelet.held = {}
    await loop.inquiry.ask()
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


async def test_what_only_the_file_says_is_held_and_the_kubelet_is_to_write_it_anew() -> None:
    """It writes the file at each list, and not when a pod ends."""
    kubelet = Kubelet()
    kubelet.file = (Entry("u", POD.resource, "a", None),)
    loop = Loop(kubelet)
    async with loop.running():
        rewrites = loop.holders.rewrites.wanted
        await until(loop.snapshots, lambda snapshot: bool(snapshot.allocations.holders))
        with anyio.fail_after(5):
            while rewrites.version < 2:
                await rewrites.newer(rewrites.version)
        kubelet.file = ()
        loop.holders.ask_soon()
        await until(loop.snapshots, lambda snapshot: not snapshot.allocations.holders)
        await anyio.wait_all_tasks_blocked()
        assert loop.holders.rewrites.due is None


def test_the_kubelet_is_to_write_its_file_again_after_growing_pauses() -> None:
    rewrites = Rewrites()
    times = []
    for now in range(400):
        before = rewrites.wanted.version
        rewrites.asked(now / 2, hinted=True)
        if rewrites.wanted.version != before:
            times.append(now / 2)
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    rewrites.asked(500.0, hinted=False)
    assert rewrites.due is None


async def test_the_first_answer_is_waited_for_where_there_is_a_kubelet() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.silent = True
    loop = Loop(kubelet)
    began = anyio.current_time()
    await loop.holders.first()
    assert 0.9 < anyio.current_time() - began < 1.5
    kubelet.started = None
    began = anyio.current_time()
    await loop.holders.first()
    assert anyio.current_time() - began < 0.1


async def test_the_first_list_after_a_new_kubelet_waits_for_its_answer_but_not_for_ever() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.holders.first()
    await loop.holders.ready()
    kubelet.answers = anyio.Event()
    loop.holders.kubelet_changed()
    async with loop.running(), anyio.create_task_group() as tasks:
        began = anyio.current_time()
        tasks.start_soon(loop.holders.ready)
        await kubelet.until_asked(2)
        await anyio.wait_all_tasks_blocked()
        kubelet.answers.set()
    assert anyio.current_time() - began < 0.9
    kubelet.silent = True
    loop.holders.kubelet_changed()
    await loop.holders.ready()
    assert 0.9 < anyio.current_time() - began < 2.0


async def test_an_allocate_that_asks_gets_no_answer_of_a_silent_kubelet_in_time() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    first = await loop.inquiry.who_asks()
    assert first.pods == {"ns/p": frozenset({(POD.resource, "a")})}
    kubelet.silent = True
    assert (await loop.inquiry.who_asks()).pods is None


async def test_an_older_question_that_is_answered_late_is_dropped() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    kubelet.answers = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.inquiry.ask)
        await kubelet.until_asked(1)
        kubelet.answers, waiting = anyio.Event(), kubelet.answers
        kubelet.answers.set()
        await loop.inquiry.who_asks()
        kubelet.held = {}
        waiting.set()
    assert loop.now.holders == {"a": POD}


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
    left = loop.inquiry.doubt.until - anyio.current_time()
    assert doubt.FRESH_KUBELET - 1 < left <= doubt.FRESH_KUBELET


async def test_a_release_is_looked_at_before_it_is_told() -> None:
    kubelet = Kubelet(a=POD, b=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    assert loop.rescans.asked == []
    del kubelet.held["a"]
    await loop.inquiry.ask()
    assert loop.rescans.asked == [({"a"}, {"a", "b"})]
    assert set(loop.now.holders) == {"b"}


async def test_an_answer_that_says_the_same_keeps_the_same_objects() -> None:
    """So whoever decides finds out by identity that nothing has changed."""
    kubelet = Kubelet(a=POD, b=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    before = loop.now
    await loop.inquiry.ask()
    assert loop.now is before
    kubelet.held = {"a": Holder("ns", "p", ResourceName("example.com/a")), "c": POD}
    await loop.inquiry.ask()
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
