# SPDX-License-Identifier: Apache-2.0
"""What is said when the daemon has started: that it is ready; what is done from time to time from then on."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from nodeagent.base import log, lograte, logsinks, memory
from nodeagent.base.sdnotify import Notifier
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource

PAUSE = 5.0  # seconds between two looks whether there is enough garbage


async def collect_garbage() -> None:
    """On this thread, for ever; what has no circle is freed at once anyway."""
    while True:
        await anyio.sleep(PAUSE)
        memory.collect()


async def tell_what_was_left_out() -> None:
    """Say so when the time of a flood is over, for ever: what comes next may come much later."""
    while True:
        await anyio.sleep(lograte.SECONDS)
        logsinks.tell_left_out()


def tell_that_it_is_ready(resources: Mapping[ResourceName, Resource], notifier: Notifier) -> None:
    """The start is over: say so to people and to systemd; what was made so far is no garbage."""
    devices = sum(len(resource.devices) for resource in resources.values())
    memory.end_start()
    log.event(log.READY, resources=len(resources), devices=devices)
    notifier.ready()
