# SPDX-License-Identifier: Apache-2.0
"""Answers that come late: of an older question, of a kubelet that is no more."""

from __future__ import annotations

import anyio

from nodeagent.agent.known import Known
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Holder, PodList
from tests.agent.asking import POD, Kubelet, Loop
from tests.agent.test_known import checkpoint, entry, hinted


async def test_an_answer_of_the_kubelet_before_names_nobody_in_the_life_of_the_new_one() -> None:
    """The new one is cut off from its API server, so it names nobody; its checkpoint still has the pod."""
    kubelet = Kubelet(a=POD)
    kubelet.file = (entry("a"),)
    loop = Loop(kubelet)
    await loop.inquiry.ask()
    kubelet.answers = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.inquiry.ask)
        await kubelet.until_asked(2)
        kubelet.started = Birth((2, 2), 0.0)
        loop.holders.kubelet_changed()
        kubelet.answers.set()  # it was on its way, or lay in the socket's buffer
    kubelet.held = {}
    await loop.inquiry.ask()
    assert "a" in loop.now.holders


class Late(Kubelet):
    """Answers the first question last, with what was true then."""

    def __init__(self, **held: Holder) -> None:
        super().__init__(**held)
        self.late = anyio.Event()

    async def pods(self) -> PodList:
        """One question."""
        first, answer = not self.asked.get(), await super().pods()
        if first:
            await self.late.wait()
        return answer


async def test_an_older_answer_that_comes_late_teaches_nothing() -> None:
    """A pod had it; another one has it in a plain init container, which the kubelet never names."""
    kubelet = Late(a=POD)
    kubelet.file = (entry("a", "u1"),)
    loop = Loop(kubelet)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.inquiry.ask)
        await kubelet.until_asked(1)
        await anyio.wait_all_tasks_blocked()
        kubelet.held, kubelet.file = {}, ()
        await loop.inquiry.ask()
        for more in ("other", "more"):
            kubelet.file = (*kubelet.file, entry("a", "u2"), entry(more, f"u {more}"))
            await loop.inquiry.ask()
        assert loop.now.holders["a"] == hinted("u2")
        kubelet.late.set()
    await loop.inquiry.ask()
    assert loop.now.holders.get("a") == hinted("u2")


async def test_who_is_answered_late_decides_on_what_the_newer_answer_says() -> None:
    """The newer one frees something, for which the host is looked at before it is told."""
    kubelet = Late(a=POD, b=POD)
    loop = Loop(kubelet)
    kubelet.late.set()
    await loop.inquiry.ask()
    kubelet.asked.set(())
    kubelet.late, kubelet.held = anyio.Event(), {"b": POD}
    loop.rescans.end = looked = anyio.Event()
    told = anyio.Event()

    async def asks() -> None:
        await loop.inquiry.who_asks(Timeouts().pod_resources_in_allocate)
        told.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks)
        await kubelet.until_asked(1)
        tasks.start_soon(loop.inquiry.ask)
        await anyio.wait_all_tasks_blocked()
        assert loop.rescans.asked
        kubelet.late.set()
        with anyio.move_on_after(0.3):
            await told.wait()
        assert not told.is_set()
        looked.set()
        await told.wait()
        assert loop.now.holders == {"b": POD}


def test_a_file_that_could_not_be_read_once_strikes_nothing() -> None:
    known = Known()
    before = {"x": POD}
    assert known.answered({}, before, checkpoint(entry("x")), doubtful=True) == before
    assert known.answered({}, before, Checkpoint(None, ()), doubtful=True) == before
    assert known.answered({}, before, checkpoint(entry("x"), written=3), doubtful=True) == before
