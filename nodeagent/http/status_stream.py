# SPDX-License-Identifier: Apache-2.0
"""The Status as server-sent events (HTML standard): the whole document, whenever it has changed.

While at least one page is open, the Status is taken every second, once for all pages: its parts have no
common notification.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable

import anyio

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.model import plain
from nodeagent.model.status import ProcessStatus, Status

PAGES = 16  # at a time
_KEEPALIVE = b": nothing new\n\n"


class StatusStream:
    """All open pages, and the newest event."""

    def __init__(self, status: Callable[[], Status], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._status = status
        self._lock = anyio.Lock()
        self._taken_at = float("-inf")
        self._last: Status | None = None
        self._event = b""
        self._open = 0

    @property
    def is_full(self) -> bool:
        """True if no further page may be opened."""
        return self._open >= PAGES

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of one page, without end."""
        self._open += 1
        try:
            sent, sent_at = b"", anyio.current_time()
            while True:
                event, now = await self._newest(), anyio.current_time()
                if event is not sent:
                    sent, sent_at = event, now
                    yield event
                elif now - sent_at > self._timeouts.page_keepalive:
                    sent_at = now
                    yield _KEEPALIVE
                await anyio.sleep(self._timeouts.page_update)
        finally:
            self._open -= 1

    async def _newest(self) -> bytes:
        """The newest event: the same object as before if nothing has changed."""
        async with self._lock:
            if anyio.current_time() - self._taken_at >= self._timeouts.page_update / 2:
                self._taken_at = anyio.current_time()
                status = self._status()
                if (steady := _without_counters(status)) != self._last:
                    self._event = await threads.call(_event, status)
                    self._last = steady
            return self._event


def _without_counters(status: Status) -> Status:
    """The Status without the parts that change all the time."""
    return status._replace(uptime_seconds=0.0, process=ProcessStatus())


def _event(status: Status) -> bytes:
    return f"data: {json.dumps(plain.dump(status))}\n\n".encode()
