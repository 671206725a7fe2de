# SPDX-License-Identifier: Apache-2.0
"""Looks from time to time at what waits for a release: closing a device raises no event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from nodeagent.base.latest import Latest


async def while_any(
    cell: Latest[frozenset[str]],
    pause: Callable[[], float],
    look: Callable[[frozenset[str]], Awaitable[None]],
) -> None:
    """While there is anything in the cell, look at it after each pause (seconds), for ever."""
    seen = -1
    while True:
        if cell.get():
            await anyio.sleep(pause())
            await look(cell.get())
        else:
            seen, _ = await cell.newer(seen)
