# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a callback is told, with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

from nodeagent.base.latest import Latest

T = TypeVar("T")


class Heard(Generic[T]):
    """A callback that keeps what it is told, and lets a test wait for more."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._count = Latest(0)

    def __call__(self, item: T) -> None:
        self.all.append(item)
        self._count.touch()

    async def until(self, condition: Callable[[list[T]], bool], seconds: float = 10.0) -> list[T]:
        """Wait until the condition holds for all that was told."""
        with anyio.fail_after(seconds):
            while not condition(self.all):
                await self._count.newer(self._count.version)
        return self.all

    async def until_told(self, item: T) -> None:
        """Wait until this was told."""
        await self.until(lambda told: item in told)

    def clear(self) -> None:
        """Forget what was told."""
        self.all.clear()
