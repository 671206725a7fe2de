# SPDX-License-Identifier: Apache-2.0
"""Sends the daemon's messages to systemd: for the watchdog, the status line and reloads.

The watchdog's message is sent from the event loop itself, and only while three loops run: the one that scans
the host, the one that decides which devices are offered, and the one that changes the host. An unreachable
kubelet or API server, or a hanging device or disk, stops none of the three loops, so systemd restarts the
daemon only if a restart helps. The status line is sent when it has changed. Called by ``app``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Heartbeat
from nodeagent.base.systemd import Notifier
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.status import Status
from nodeagent.policy import diagnose

LONGEST = 200  # characters of a problem: systemctl status shows one line


class Watchdog:
    """Checks the heartbeats, and sends the watchdog's message while all of them are in order."""

    name = "watchdog"

    def __init__(
        self, notifier: Notifier, heartbeats: Callable[[], Mapping[str, Heartbeat]], timeouts: Timeouts
    ) -> None:
        """``heartbeats`` returns the present heartbeat of each component."""
        self.problems: Latest[Mapping[str, str]] = Latest({})  # component → the problem with its loop
        self._notifier = notifier
        self._heartbeats = heartbeats
        self._interval = notifier.watchdog_interval or timeouts.watchdog_notice

    def problem(self) -> str | None:
        """The problems that a restart of the daemon would solve, as one text; None if there are none."""
        return "; ".join(f"{name}: {text}" for name, text in self.problems.get().items()) or None

    async def run(self) -> None:
        """Check the heartbeats and send the message, twice in the time that systemd allows, for ever."""
        was_stopped = False
        while True:
            if not was_stopped:
                self.check()
            if not self.problems.get():
                self._notifier.notify("WATCHDOG=1")
            began = anyio.current_time()
            await anyio.sleep(self._interval)
            was_stopped = anyio.current_time() > began + 2 * self._interval  # and so did the loops

    def check(self) -> None:
        """Check the heartbeats, and log loops that are stuck or run again."""
        before = self.problems.get()
        now = {name: text for name, each in self._heartbeats().items() if (text := each.problem())}
        for name in now.keys() - before.keys():
            log.event(log.SUBSYSTEM_STUCK, subsystem=name, cause=now[name])
        for name in before.keys() - now.keys():
            log.event(log.SUBSYSTEM_RECOVERED, subsystem=name)
        self.problems.set(now)


class StatusLine:
    """Keeps systemd's status line current; without systemd it does nothing."""

    name = "status line"

    def __init__(
        self,
        notifier: Notifier,
        snapshots: Snapshots,
        status: Callable[[], Status],
        watchdog: Watchdog,
        timeouts: Timeouts,
    ) -> None:
        """``status`` collects the Status, which may have changed whenever ``snapshots`` wakes its readers."""
        self._notifier = notifier
        self._snapshots = snapshots
        self._status = status
        self._pause = timeouts.status_line_pause
        self._watchdog = watchdog

    async def run(self) -> None:
        """Send the status line to systemd now, and whenever it has changed."""
        if not self._notifier.listening:
            await anyio.sleep_forever()
        seen, told = -1, ""
        while True:
            seen, _ = await self._snapshots.newer(seen)
            text = line(self._status(), self._watchdog.problem())
            if text != told and self._notifier.notify(f"STATUS={text}"):
                told = text
            await anyio.sleep(self._pause)


async def reload(notifier: Notifier, read_again: Callable[[], Awaitable[None]], limit: float) -> None:
    """Read the settings again, and report begin and end to systemd; this takes at most ``limit`` seconds."""
    notifier.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")  # for systemd 253
    try:
        with anyio.move_on_after(limit):
            await read_again()
    finally:
        notifier.notify("READY=1")


def line(status: Status, stopped: str | None = None) -> str:
    """The state of the daemon in one line: the first problem, then the numbers. Pure.

    Unhealthy devices are only counted, because most of them are in use.
    """
    wrong = next(_wrong(status, stopped), None)
    return f"{_short(wrong)} | {_numbers(status)}" if wrong else _numbers(status)


def _wrong(status: Status, stopped: str | None) -> Iterator[str]:
    if stopped is not None:
        yield f"stuck: {stopped}"
    if not status.kubelet.present:  # most other problems follow from it
        yield "the kubelet is unreachable"
    devices = {
        diagnose.subject(resource, device) for resource in status.resources for device in resource.devices
    }
    yield from (problem.message for problem in status.found if problem.subject not in devices)


def _numbers(status: Status) -> str:
    resources = status.resources
    healthy = sum(resource.healthy for resource in resources)
    devices = sum(len(resource.devices) for resource in resources)
    return f"{len(resources)} resources, {healthy} of {devices} devices Healthy, {_kubelet(status)}"


def _kubelet(status: Status) -> str:
    if not status.kubelet.present:
        return f"waiting for {status.kubelet.socket}"
    registered = sum(resource.registered for resource in status.of_plugins)
    if registered == len(status.of_plugins):
        return "kubelet connected"
    return f"{registered} of {len(status.of_plugins)} registered with the kubelet"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 2]} …"
