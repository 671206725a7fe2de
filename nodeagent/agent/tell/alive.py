# SPDX-License-Identifier: Apache-2.0
"""Feeds systemd's watchdog for as long as the event loop turns."""

from __future__ import annotations

import anyio

from nodeagent.base.sdnotify import Notifier


class Watchdog:
    """The component that says "alive"; without a watchdog it has nothing to do."""

    name = "systemd"

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    async def run(self) -> None:
        """Say it again and again, in half the time that systemd allows."""
        interval = self._notifier.watchdog_interval
        while interval is not None:
            self._notifier.alive()
            await anyio.sleep(interval)
