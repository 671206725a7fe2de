# SPDX-License-Identifier: Apache-2.0
"""The Status as events: at once, when it changes, to all pages alike, and only as long as there is one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.http.routes import PAGES, StatusStream
from nodeagent.model import plain
from nodeagent.model.status import ProcessStatus, Status
from tests.render.statuses import WELL


class Source:
    """A Status that a test changes, and how often it was asked for."""

    def __init__(self) -> None:
        self.now = WELL
        self.asked = 0

    def __call__(self) -> Status:
        self.asked += 1
        return self.now


async def following(events: AsyncGenerator[bytes, None]) -> bytes:
    """The next event."""
    with anyio.fail_after(10):
        return await anext(events)


async def test_the_first_event_is_the_document_that_the_status_socket_gives() -> None:
    async with aclosing(StatusStream(Source(), Timeouts()).events()) as events:
        event = await following(events)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == plain.dump(WELL)


async def test_a_change_is_told_once_and_time_that_passes_is_none() -> None:
    source = Source()
    async with aclosing(StatusStream(source, Timeouts()).events()) as events:
        await following(events)
        source.now = WELL._replace(uptime_seconds=99.0, process=ProcessStatus(1.0, 2.0))
        with anyio.move_on_after(2.5 * Timeouts().page_update) as waiting:
            await following(events)
        assert waiting.cancelled_caught


async def test_all_pages_get_the_change_and_the_status_is_taken_once_for_all() -> None:
    source = Source()
    told = StatusStream(source, Timeouts())
    async with anyio.create_task_group() as pages:

        async def page() -> None:
            async with aclosing(told.events()) as events:
                await following(events)
                assert b"trouble" in await following(events)

        for _ in range(PAGES):
            pages.start_soon(page)
        await anyio.wait_all_tasks_blocked()
        assert told.is_full
        source.now = WELL._replace(problems=("trouble",))
    assert source.asked <= 4
    assert not told.is_full


async def test_where_no_page_is_open_nobody_asks() -> None:
    source = Source()
    async with aclosing(StatusStream(source, Timeouts()).events()) as events:
        await following(events)
    with anyio.move_on_after(2 * Timeouts().page_update):
        await anyio.sleep_forever()
    assert source.asked == 1


async def test_a_status_that_fails_ends_the_events_with_its_error() -> None:
    def broken() -> Status:
        raise RuntimeError("no status today")

    async with aclosing(StatusStream(broken, Timeouts()).events()) as events:
        with pytest.raises(RuntimeError, match="no status today"):
            await following(events)
