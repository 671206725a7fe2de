# SPDX-License-Identifier: Apache-2.0
"""When the kubelet is asked: hints, settling, awaited releases, and the file that it is to write anew."""

from __future__ import annotations

import itertools

import anyio

from nodeagent.agent.holders import Rewrites, Waits
from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Timing
from nodeagent.kubelet.checkpoint import Entry
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.ids import ResourceName
from tests.agent.asking import POD, Kubelet, Loop
from tests.agent.parts import until
from tests.conftest import Said

OLD, NEW = frozenset({(ResourceName("x"), "old")}), frozenset({(ResourceName("x"), "new")})


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
    rewrites = Rewrites(Timeouts().checkpoint_rewrite)
    times = []
    for now in range(400):
        before = rewrites.wanted.version
        rewrites.asked(now / 2, OLD)
        if rewrites.wanted.version != before:
            times.append(now / 2)
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    rewrites.asked(500.0, OLD | NEW)
    assert rewrites.due == 500.5, "it does not wait for the pauses of the other one"
    rewrites.asked(501.0, NEW)
    assert rewrites.due == 502.0
    rewrites.asked(502.0, frozenset())
    assert rewrites.due is None


def test_when_a_pod_has_gone_the_kubelet_is_to_write_its_file_at_once() -> None:
    rewrites = Rewrites(Timeouts().checkpoint_rewrite)
    both = frozenset({"ns/one", "ns/two"})
    for now in range(20):
        rewrites.asked(float(now), OLD, both)
    assert rewrites.due == 32.0
    rewrites.asked(20.0, OLD, both | {"ns/new"})
    assert rewrites.due == 32.0
    rewrites.asked(21.0, OLD, both)
    assert rewrites.due == 21.5
    rewrites.asked(21.5, OLD, both)
    assert rewrites.due == 22.5, "the pauses grow again"


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


async def test_questions_are_spaced_however_many_hints_there_are() -> None:
    kubelet = Kubelet()
    loop = Loop(kubelet)
    async with loop.running():
        for number in range(4):
            await kubelet.until_asked(number + 1)
            loop.holders.ask_soon()
    times = kubelet.asked.get()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap >= Timeouts().pod_resources_spacing - 0.005 for gap in gaps)


async def test_without_hints_the_slow_timer_asks() -> None:
    kubelet = Kubelet()
    async with Loop(kubelet, resync=0.3).running():
        first, second, third = await kubelet.until_asked(3)
    assert 0.2 <= second - first < 0.5
    assert 0.2 <= third - second < 0.5


async def test_a_silent_kubelet_is_asked_again_later_each_time() -> None:
    kubelet = Kubelet()
    kubelet.silent = True
    async with Loop(kubelet).running():
        first, second, third = await kubelet.until_asked(3)
    assert 0.4 <= second - first < 0.8
    assert 0.9 <= third - second < 1.4


async def test_a_kubelet_that_answered_and_refuses_once_is_asked_again_at_once(said: Said) -> None:
    """It takes 100 questions a second, and Allocates ask, too."""
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    kubelet.refuses = 1
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    assert said(log.HOLDERS_UNKNOWN) == []
    assert len(kubelet.asked.get()) == 3


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
    assert Waits(asked=100.0).due(timing, Timeouts()) == 160.0
    assert Waits(100.0, released=True).due(timing, Timeouts()) == 102.0
    assert Waits(100.0, settled=100.7, released=True).due(timing, Timeouts()) == 100.7
    assert [Waits(100.0, failures=count).due(timing, Timeouts()) for count in (1, 2, 9)] == [
        100.5,
        101.0,
        110.0,
    ]
    assert Waits(100.0, doubted=130.0).due(timing, Timeouts()) == 130.0
    assert Waits(100.0, doubted=100.2).due(timing, Timeouts()) == 101.0
    assert Waits(100.0, doubted=99.0).due(timing, Timeouts()) == 160.0


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


async def test_a_hint_is_owed_a_question() -> None:
    kubelet = Kubelet()
    loop = Loop(kubelet, resync=100)
    assert loop.holders.owed() == {}, "it does not run yet"
    async with loop.running():
        await kubelet.until_asked(1)
        await anyio.wait_all_tasks_blocked()
        assert loop.holders.owed() == {}
        loop.holders.ask_soon()
        assert list(loop.holders.owed()) == ["allocations"]
        await kubelet.until_asked(2)
        assert loop.holders.owed() == {}
