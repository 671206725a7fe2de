# SPDX-License-Identifier: Apache-2.0
"""Devices that are to be released: closing one raises no event, so they are polled.

Whoever waits says for which ids. While there are any, ``agent.usage`` asks the kubelet more often, and this
component has the host scanned and the processes probed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import anyio

from nodeagent.base.latest import Latest
from nodeagent.config import Settings


class Rescans(Protocol):
    """Reads again what may have been let go."""

    async def refresh(self, ids: Collection[str]) -> None:
        """Read these ids again, as far as they are its business, and wait for it, but not long."""
        ...


class Releases:
    """Who waits for which ids; the component that looks for their release."""

    name = "releases"

    def __init__(self, settings: Latest[Settings]) -> None:
        self.awaited: Latest[frozenset[str]] = Latest(frozenset())
        self.began: Latest[None] = Latest(None)  # somebody waits who did not
        self._settings = settings
        self._by: dict[str, frozenset[str]] = {}
        self._rescans: tuple[Rescans, ...] = ()

    def wait_for(self, ids: frozenset[str], by: str) -> None:
        """Say what ``by`` waits for now; it replaces what the same one has said before."""
        before, self._by[by] = self._by.get(by), ids
        self.awaited.set(frozenset().union(*self._by.values()))
        if ids and not before:
            self.began.touch()

    def look_with(self, rescans: Rescans) -> None:
        """Have this one read again, too."""
        self._rescans = (*self._rescans, rescans)

    async def run(self) -> None:
        """Look for releases while any is awaited, for ever."""
        seen = -1
        while True:
            if self.awaited.get():
                await anyio.sleep(self._settings.get().timing.holders)
                for each in self._rescans:
                    await each.refresh(self.awaited.get())
            else:
                seen, _ = await self.awaited.newer(seen)
