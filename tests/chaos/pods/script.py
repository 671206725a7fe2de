# SPDX-License-Identifier: Apache-2.0
"""The script of a run: a seed chooses the faults, and everything that happened is recorded.

The seed repeats the choices. What goes on at the same time is the machine's, and so is when it gets there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio


class Broken(Exception):
    """Raised when a promise is broken; the text says which, and what was seen."""


class Script:
    """``chance`` makes all choices; ``tasks`` is all that goes on at the same time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tasks = anyio.create_task_group()
        self.lines: list[str] = []
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        """It happens now."""
        self.lines.append(f"{time.monotonic() - self._began:7.2f} {text}")

    def meanwhile(self, act: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Start it beside all else."""
        self.tasks.start_soon(act, *arguments)

    async def pause(self, least: float, most: float) -> None:
        """A while."""
        await anyio.sleep(self.chance.uniform(least, most))

    async def one_pause(self, *seconds: float) -> None:
        """One of these."""
        await anyio.sleep(self.chance.choice(seconds))

    def perhaps(self, share: float) -> bool:
        """True in that share of all cases."""
        return self.chance.random() < share
