# SPDX-License-Identifier: Apache-2.0
"""One resource towards the kubelet: serve, register, hold, and again whenever it is needed.

One loop, level-triggered. A life ends when the kubelet has a new socket, our own socket is gone, the stream
has ended, or none was opened; the next life is a new server on a new path. There is never a second
registration while the first is served: kubelet 1.36 disconnects the *current* plugin when any stream of
that resource ends. Does not know what a device is, nor how one registers.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

import anyio

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.progress import Debt
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.deviceplugin.life import End, Life, Registration, Standing, Way, until
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.service import Answers, Plugin


class Pauses:
    """How long to wait after each life: not at all for a new kubelet, longer where short lives follow."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._quick_ends = 0

    def after(self, end: End, lived: float, jitter: float) -> float:
        """Seconds to wait after a life of ``lived`` seconds; ``jitter`` in [0, 1)."""
        if end is End.KUBELET_CHANGED:
            self._quick_ends = 0
            return 0.0
        timeouts = self._timeouts
        self._quick_ends = 0 if lived > timeouts.long_registration else self._quick_ends + 1
        if end is End.SOCKET_GONE and self._quick_ends <= 1:
            return timeouts.kubelet_restart
        retry = timeouts.endpoint_retry
        return max(retry.first, retry.delay(self._quick_ends - 1, jitter))


class Bells(NamedTuple):
    """What is heard of all endpoints: a life has ended and its connections are closed; how one stands."""

    ended: Latest[None]
    standing: Latest[None]


class Course:
    """Where an endpoint is in its lives, so that it can be seen to go on. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._number = 0
        self._life: Life | None = None
        self._rests_until = 0.0

    @property
    def listed(self) -> bool:
        """True while the kubelet reads the list."""
        return self._life is not None and self._life.streaming

    def lives(self, life: Life) -> None:
        """A life begins."""
        self._number += 1
        self._life = life

    def rests(self, until: float) -> None:
        """It is over, and the next begins by then."""
        self._life, self._rests_until = None, until

    def owed(self, way: Way, now: float) -> Debt | None:
        """A life where there is somebody to serve, and the end of one that is over."""
        if self._life is None:
            late = way.wanted and now > self._rests_until
            return Debt(self._number, "its server does not start") if late else None
        if not way.over(self._life):
            return None
        return Debt(self._number, "it is not registered anew, although the kubelet or its socket is another")


class Endpoint:
    """One resource's endpoint. ``run`` goes on until it is cancelled; ``listing`` may change at any time."""

    def __init__(
        self,
        resource: str,
        listing: Listing,
        answers: Answers,
        way: Way,
        bells: Bells,
        timeouts: Timeouts,
    ) -> None:
        """``bells`` are rung for whoever looks at all endpoints."""
        self.resource = resource
        self.listing = listing
        self._answers = answers
        self._way = way
        self._bells = bells
        self._course = Course()
        self._standing = Standing(resource, listing, bells.standing)
        self._news: Latest[None] = Latest(None)
        self._timeouts = timeouts
        self._pauses = Pauses(timeouts)
        self._grace = timeouts.allocate_answer

    @property
    def listed(self) -> bool:
        """True while the kubelet reads the list."""
        return self._course.listed

    @property
    def registration(self) -> Registration:
        """How the resource stands with the kubelet now."""
        return self._standing.registration

    def owed(self) -> Debt | None:
        """What it has to do now, if anything."""
        return self._course.owed(self._way, time.monotonic())

    def hurry(self, grace: float) -> None:
        """From now on the end of a life waits no longer than ``grace`` seconds for an Allocate in flight."""
        self._grace = grace

    async def run(self) -> None:
        """Live again and again, for ever."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._way.directory.bell.follow, self._hear)
                while True:
                    await self._turn()
        except ExceptionGroup as failed:  # whoever keeps this going tells people the one cause
            raise failed.exceptions[0] from None

    def _hear(self, _: None) -> None:
        """What happens in the directory is news, too."""
        self._news.touch()

    async def _turn(self) -> None:
        """One life, and the pause after it."""
        await until(self._news, lambda: self._way.wanted)
        directory = self._way.directory
        began, kubelet = time.monotonic(), directory.kubelet.get()
        plugin = Plugin(self.listing, self._answers, self._news.touch, self._timeouts)
        server = self._way.server(self.resource, plugin, self._standing)
        life = Life(self.resource, server, plugin, self._standing, directory, self._news)
        self._course.lives(life)
        try:
            end = await self._end_of(life)
        finally:
            self._standing.ended()
        if directory.kubelet.get() != kubelet:
            end = End.KUBELET_CHANGED  # whatever was seen first: a restart also removes our socket
        self._bells.ended.touch()
        await self._pause(life, end, time.monotonic() - began)

    async def _end_of(self, life: Life) -> End:
        """Serve from start to end; return why it ended."""
        try:
            await life.server.start()
            if await self._way.register(life):
                return await self._way.hold(life)
            return End.SOCKET_GONE
        except KubeletUnavailable as error:
            self._standing.refused(error.what)
            return End.NOT_SERVED
        finally:
            await life.server.stop(self._grace)

    async def _pause(self, life: Life, end: End, lived: float) -> None:
        """Wait before the next life; a new kubelet ends the wait."""
        wait = self._pauses.after(end, lived, random.random())
        self._course.rests(time.monotonic() + wait)
        if end is not End.KUBELET_CHANGED and not await life.until(lambda: not life.same_kubelet, wait):
            self._standing.lost(end.value)
