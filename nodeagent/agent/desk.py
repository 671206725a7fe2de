# SPDX-License-Identifier: Apache-2.0
"""Where requests by hand wait for the side that changes the host: its code may not even be loaded yet.

Decides nothing, and writes nothing. What comes through the socket is from root, and read strictly all the
same.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.model import plain
from nodeagent.model.request import Answer, Request

Handle = Callable[[Request, int], Awaitable[Answer]]


class Desk:
    """Takes requests; ``staffed`` is whoever answers them, None while there is nobody."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.staffed: Latest[Handle | None] = Latest(None)
        self.wanted = False
        self._snapshots = snapshots

    async def ask(self, request: Request, asker: int) -> Answer:
        """The answer, as soon as there is somebody to give it; ``asker``: the process that asks."""
        self.wanted = True
        self._snapshots.ring()  # for who loads that side
        while (handle := self.staffed.get()) is None:
            await self.staffed.newer(self.staffed.version)
        return await handle(request, asker)

    async def reply(self, question: bytes, asker: int) -> dict[str, Any]:
        """The plain data of the answer to the plain data of a request."""
        try:
            request = plain.load(Request, json.loads(question))
        except (TypeError, ValueError, RecursionError) as error:
            what = f"the daemon cannot read the request: {error}"
            return plain.dump(Answer(error=what, hint="is the daemon of another version? restart it"))
        return plain.dump(await self.ask(request, asker))
