# SPDX-License-Identifier: Apache-2.0
"""The Status as server-sent events: to each page the whole document, when it differs from what the page has.

While at least one page is open, the Status is taken every second, once for all of them: what it is joined of
has no bell in common. The format is that of the HTML standard (server-sent events).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable

import anyio

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.model import plain
from nodeagent.model.status import ProcessStatus, Status

MOST = 16  # pages at a time
_SILENCE = b": nothing new\n\n"


class Live:
    """All pages that are open, and the newest document."""

    def __init__(self, status: Callable[[], Status], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._status = status
        self._lock = anyio.Lock()
        self._looked = float("-inf")
        self._known: Status | None = None
        self._event = b""
        self._open = 0

    @property
    def full(self) -> bool:
        """True if no further page may be opened."""
        return self._open >= MOST

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of one page, for ever."""
        self._open += 1
        try:
            sent, at = b"", anyio.current_time()
            while True:
                event, now = await self._newest(), anyio.current_time()
                if event is not sent:
                    sent, at = event, now
                    yield event
                elif now - at > self._timeouts.page_keepalive:
                    at = now
                    yield _SILENCE
                await anyio.sleep(self._timeouts.page_update)
        finally:
            self._open -= 1

    async def _newest(self) -> bytes:
        """The event of now: the same object as before if nothing has changed."""
        async with self._lock:
            if anyio.current_time() - self._looked >= self._timeouts.page_update / 2:
                self._looked = anyio.current_time()
                status = self._status()
                if (told := _lasting(status)) != self._known:
                    self._event = await threads.call(_event, status)
                    self._known = told
            return self._event


def _lasting(status: Status) -> Status:
    """Without what changes all the time."""
    return status._replace(uptime_seconds=0.0, process=ProcessStatus())


def _event(status: Status) -> bytes:
    return f"data: {json.dumps(plain.dump(status))}\n\n".encode()
