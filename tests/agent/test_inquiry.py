# SPDX-License-Identifier: Apache-2.0
"""What an answer of the kubelet is worth: doubt, silence, and questions that overlap."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Entry
from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Allocations, Holder, Knowledge, unnamed
from nodeagent.model.ids import ResourceName
from tests.agent.asking import POD, Kubelet, Loop
from tests.conftest import Said


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
    assert loop.now == Allocations({"a": POD}, Knowledge.SILENT)
    errors = [loop.inquiry.error]
    kubelet.silent, kubelet.held = False, {}
    await loop.inquiry.ask()
    assert loop.now == Allocations({}, Knowledge.COMPLETE)
    assert [*errors, loop.inquiry.error] == ["no answer in time", None]
    assert said(log.HOLDERS_UNKNOWN) == [{"error": "no answer in time"}]
    assert said(log.HOLDERS_KNOWN) == [{}]


async def test_a_kubelet_that_is_away_is_none_that_is_silent() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    kubelet.away = True
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.UNKNOWN)


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
    assert Timeouts().young_kubelet - 2 < left < Timeouts().young_kubelet, "it is asked when it is old enough"
    loop.grow_old()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)
    loop.holders.kubelet_changed()
    await loop.inquiry.ask()
    assert loop.now == Allocations({"a": POD}, Knowledge.COMPLETE)


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


async def test_an_allocate_that_asks_gets_no_answer_of_a_silent_kubelet_in_time() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    first = await loop.inquiry.who_asks(Timeouts().pod_resources_in_allocate)
    assert first.pods == {"ns/p": frozenset({(POD.resource, "a")})}
    kubelet.silent = True
    assert (await loop.inquiry.who_asks(Timeouts().pod_resources_in_allocate)).pods is None


async def test_an_older_question_that_is_answered_late_is_dropped() -> None:
    kubelet = Kubelet(a=POD)
    loop = Loop(kubelet)
    kubelet.answers = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.inquiry.ask)
        await kubelet.until_asked(1)
        kubelet.answers, waiting = anyio.Event(), kubelet.answers
        kubelet.answers.set()
        await loop.inquiry.who_asks(Timeouts().pod_resources_in_allocate)
        kubelet.held = {}
        waiting.set()
    assert loop.now.holders == {"a": POD}


async def test_the_end_of_the_doubt_is_waited_for() -> None:
    loop = Loop(Kubelet())
    loop.holders.kubelet_changed()
    left = loop.inquiry.doubt.until - anyio.current_time()
    assert Timeouts().young_kubelet - 1 < left <= Timeouts().young_kubelet


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


async def test_what_a_refused_pod_got_from_us_is_free_though_a_young_kubelet_has_entered_it_since() -> None:
    """It was named with it before the file had it, and refused then; a list had the file written."""
    kubelet = Kubelet()
    kubelet.started = Birth((1, 1), 1.0)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    loop.give(a=unnamed(POD.resource, None, "admission 1"))
    kubelet.held = {"a": POD}
    await loop.inquiry.ask()
    kubelet.held, kubelet.file = {}, (Entry("u1", POD.resource, "a", None),)
    await loop.inquiry.ask()
    assert loop.now.holders == {}
    loop.holders.kubelet_changed()
    await loop.inquiry.ask()
    assert set(loop.now.holders) == {"a"}, "the next kubelet may have it from an Allocate of its own"


async def test_who_takes_something_away_has_the_file_written_after_the_answer() -> None:
    """It has what was given by then, and nothing of pods that have ended."""
    kubelet = Kubelet(a=POD)
    kubelet.file = (Entry("u1", POD.resource, "b", None),)
    kubelet.entered = (Entry("u2", POD.resource, "a", None), Entry("u3", POD.resource, "c", None))
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    assert list(loop.now.written or ()) == [(POD.resource, "b")]
    await loop.inquiry.ask(anew=True)
    assert set(loop.now.written or ()) == {(POD.resource, "a"), (POD.resource, "c")}


async def test_a_file_that_is_not_written_although_it_was_to_be_says_nothing_until_it_is() -> None:
    """The disk may be full: what it has of an id may be a pod's that has ended."""
    kubelet = Kubelet(a=POD)
    kubelet.file = (Entry("u1", POD.resource, "a", None),)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    assert list(loop.now.unwritten()) == []
    for anew in (True, False):
        await loop.inquiry.ask(anew=anew)
        assert list(loop.now.unwritten()) == [(POD.resource, "a")]
    kubelet.file = (*kubelet.file, Entry("u2", POD.resource, "b", None))
    await loop.inquiry.ask()
    assert list(loop.now.unwritten()) == []


async def test_where_no_list_is_ours_nobody_waits_for_the_file() -> None:
    kubelet = Kubelet(a=POD)
    kubelet.file, kubelet.lists = (Entry("u1", POD.resource, "a", None),), False
    loop = Loop(kubelet)
    with anyio.fail_after(Timeouts().checkpoint_write / 2):
        await loop.inquiry.ask(anew=True)
    assert list(loop.now.unwritten()) == []
