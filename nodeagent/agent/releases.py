# SPDX-License-Identifier: Apache-2.0
"""What somebody is to let go: closing a device raises no event, so it is looked for from time to time.

Whoever waits says for which ids. While there are any, two places ask: ``agent.holders`` asks the kubelet more
often, and this one has the host scanned and the processes probed. Whoever is about to take something away has
the kubelet asked right before: no event tells what other plugins give until the kubelet writes its file.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

import anyio

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings


class Rescans(Protocol):
    """Reads again what may have been let go."""

    async def refresh(self, ids: Collection[str]) -> None:
        """Read these ids again, as far as they are its business, and wait for it, but not long."""
        ...


class Asks(Protocol):
    """Asks the kubelet who holds what, for the Snapshot."""

    @property
    def possible(self) -> bool:
        """True if there is a kubelet that could answer."""
        ...

    async def ask(self, *, anew: bool = False) -> None:
        """Ask once, and take what the answer is worth; ``anew``: with nothing of pods that have ended."""
        ...


class Releases:
    """Who waits for which ids; the component that looks for their release."""

    name = "releases"

    def __init__(self, settings: Latest[Settings], timeouts: Timeouts) -> None:
        self.awaited: Latest[frozenset[str]] = Latest(frozenset())
        self.began: Latest[None] = Latest(None)  # somebody waits who did not
        self._settings = settings
        self._spacing = timeouts.release_check_spacing
        self._by: dict[str, frozenset[str]] = {}
        self._rescans: tuple[Rescans, ...] = ()
        self._kubelet: Asks | None = None
        self._asking = anyio.Lock()
        self._asked = -math.inf  # when, in seconds of the event loop

    def wait_for(self, ids: frozenset[str], by: str) -> None:
        """Say what ``by`` waits for now; it replaces what the same one has said before."""
        before, self._by[by] = self._by.get(by), ids
        self.awaited.set(frozenset().union(*self._by.values()))
        if ids and not before:
            self.began.touch()

    def look_with(self, rescans: Rescans) -> None:
        """Have this one read again, too."""
        self._rescans = (*self._rescans, rescans)

    def ask_with(self, kubelet: Asks) -> None:
        """This one is asked who holds what."""
        self._kubelet = kubelet

    async def asked(self) -> None:
        """Have the kubelet asked, after this call began; many who wait for that share an answer.

        The Snapshot tells what it has said, or that it is silent.
        """
        wanted = anyio.current_time()
        async with self._asking:
            if self._kubelet is None or not self._kubelet.possible or self._asked > wanted:
                return
            await anyio.sleep(max(self._asked + self._spacing - anyio.current_time(), 0.0))
            self._asked = anyio.current_time()
            await self._kubelet.ask(anew=True)

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
