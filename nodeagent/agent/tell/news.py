# SPDX-License-Identifier: Apache-2.0
"""How the daemon is, for those who tell it on: whom to ask, and a bell for when the answer may differ.

A bell carries no truth, and some of the Status changes without one: whoever must not miss that looks from
time to time as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio

from nodeagent.base.errors import InvariantBroken
from nodeagent.base.latest import Latest
from nodeagent.model.status import Status


class Cell(Protocol):
    """What changes and can be waited for."""

    def newer(self, seen: int) -> Awaitable[tuple[int, object]]:
        """Wait until the version differs from ``seen``."""
        ...


class News:
    """The component that rings ``bell`` when one of the cells has changed; ``begin`` names them."""

    name = "news"

    def __init__(self) -> None:
        self.bell: Latest[None] = Latest(None)
        self._ask: Callable[[], Status] | None = None
        self._cells: Sequence[Cell] = ()

    def begin(self, ask: Callable[[], Status], cells: Sequence[Cell]) -> None:
        """From now on ``ask`` tells the Status; ``cells`` are what it may change with."""
        self._ask = ask
        self._cells = cells

    def asked(self) -> Status:
        """The Status of now. :raises InvariantBroken: before the daemon has begun."""
        if self._ask is None:
            raise InvariantBroken("the Status was asked for before the daemon has begun")
        return self._ask()

    async def run(self) -> None:
        """Ring, for ever."""
        async with anyio.create_task_group() as group:
            for cell in self._cells:
                group.start_soon(self._listen, cell, name="what the Status may change with")

    async def _listen(self, cell: Cell) -> None:
        seen = -1
        while True:
            seen, _ = await cell.newer(seen)
            self.bell.touch()
