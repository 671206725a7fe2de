# SPDX-License-Identifier: Apache-2.0
"""What systemd is told while the daemon runs: that all of it is alive, how it is in one line, and reloads.

The watchdog is fed by the event loop itself, and only while the Pulse says that everything goes on: so a
loop that stands still and a component that does both end in a restart. The line is sent when it has changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import anyio

from nodeagent.agent.tell.alive import Pulse
from nodeagent.agent.tell.news import News
from nodeagent.base.systemd import Notifier
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.status import Status
from nodeagent.policy import diagnose

LONGEST = 200  # characters of what is wrong: systemctl status shows one line


class Watchdog:
    """Looks whether all goes on, and says "alive" if it does."""

    name = "systemd"

    def __init__(self, notifier: Notifier, pulse: Pulse, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._notifier = notifier
        self._pulse = pulse

    async def run(self) -> None:
        """Say it again and again, in half the time that systemd allows."""
        due = 0.0
        while True:
            if (now := anyio.current_time()) >= due:
                self._pulse.look()
                due = now + self._timeouts.progress_check
            if self._pulse.alive:
                self._notifier.alive()
            await anyio.sleep(self._notifier.watchdog_interval or self._timeouts.watchdog_notice)


class StatusLine:
    """Keeps the line right; without systemd it has nothing to do."""

    name = "status line"

    def __init__(self, notifier: Notifier, news: News, pulse: Pulse, timeouts: Timeouts) -> None:
        """``news`` rings when the line may be another one; ``pulse.stuck`` is among its cells."""
        self._notifier = notifier
        self._news = news
        self._pause = timeouts.status_line_pause
        self._pulse = pulse

    async def run(self) -> None:
        """Send the line now, and whenever it has become another one."""
        if not self._notifier.listening:
            return
        seen, told = -1, ""
        while True:
            seen, _ = await self._news.bell.newer(seen)
            text = line(self._news.asked(), self._pulse.standing_still())
            if text != told and self._notifier.status(text):
                told = text
            await anyio.sleep(self._pause)


async def reload(notifier: Notifier, read_again: Callable[[], Awaitable[None]], limit: float) -> None:
    """Read the settings again, between two words to systemd: after ``limit`` seconds the reload is over."""
    notifier.reloading()
    try:
        with anyio.move_on_after(limit):
            await read_again()
    finally:
        notifier.ready()


def line(status: Status, stuck: str | None = None) -> str:
    """How the daemon is, in one line: what is wrong first, then the numbers. Pure.

    A device that is Unhealthy is a number only: most often it is in use.
    """
    wrong = next(_wrong(status, stuck), None)
    return f"{_short(wrong)} | {_numbers(status)}" if wrong else _numbers(status)


def _wrong(status: Status, stuck: str | None) -> Iterator[str]:
    if stuck is not None:
        yield f"does not go on: {stuck}"
    if not status.kubelet.present:  # most of what else is wrong follows from it
        yield "the kubelet is away"
    unhealthy = {
        diagnose.unhealthy(resource.name, device)
        for resource in status.resources
        for device in resource.devices
        if not device.healthy
    }
    yield from (problem for problem in status.problems if problem not in unhealthy)


def _numbers(status: Status) -> str:
    resources = status.resources
    healthy = sum(resource.healthy for resource in resources)
    devices = sum(len(resource.devices) for resource in resources)
    return f"{len(resources)} resources, {healthy} of {devices} devices Healthy, {_kubelet(status)}"


def _kubelet(status: Status) -> str:
    if not status.kubelet.present:
        return f"waiting for {status.kubelet.socket}"
    registered = sum(resource.registered for resource in status.resources)
    if registered == len(status.resources):
        return "kubelet connected"
    return f"{registered} of {len(status.resources)} registered with the kubelet"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 2]} …"
