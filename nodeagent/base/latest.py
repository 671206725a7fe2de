# SPDX-License-Identifier: Apache-2.0
"""``Latest[T]``: a cell that passes the newest value from one writer to any number of readers.

Each value has a version. If ``set`` is called with an equal value, no reader is woken. Each reader keeps the
last version that it has read, so a slow reader skips values but always gets the newest one, without a lock or
queue. ``set`` is called on the event loop only; a thread must first pass its value to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Latest(Generic[T]):
    """The newest value of type ``T`` and its version (0 for the initial value)."""

    def __init__(self, value: T) -> None:
        self.version = 0  # the version of the current value; only this class changes it
        self._value = value
        self._changed: anyio.Event | None = None  # None: no reader waits

    def get(self) -> T:
        """Return the current value without waiting."""
        return self._value

    def set(self, value: T) -> bool:
        """Replace the value; return False and wake no reader if it equals the current one."""
        if value is self._value or value == self._value:
            return False
        self._value = value
        self.touch()
        return True

    def touch(self) -> None:
        """Wake all readers even if the value is unchanged."""
        self.version += 1
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def newer(self, seen: int) -> tuple[int, T]:
        """Wait until the version differs from ``seen``; return the current version and value."""
        while self.version == seen:
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()
        return self.version, self._value

    async def follow(self, then: Callable[[T], None], seen: int = -1) -> None:
        """Call ``then`` with each newer value, for ever; begin with the current value unless its version is
        ``seen``.
        """
        while True:
            seen, value = await self.newer(seen)
            then(value)
