# SPDX-License-Identifier: Apache-2.0
"""What is said when the daemon has started: that it is ready; what is done from time to time from then on."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import anyio

from nodeagent.base import log, log_handlers
from nodeagent.base.systemd import Notifier
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource


async def tell_what_was_left_out(pause: float) -> None:
    """Report lines that were left out, every ``pause`` seconds: the next line may come much later."""
    while True:
        await anyio.sleep(pause)
        log_handlers.tell_left_out()


def tell_that_it_is_ready(resources: Mapping[ResourceName, Resource], notifier: Notifier) -> None:
    """The start is over: say so to people and to systemd, and collect garbage from now on."""
    devices = sum(len(resource.devices) for resource in resources.values())
    gc.freeze()  # objects of the start stay: no collection visits them again
    gc.enable()
    log.event(log.READY, resources=len(resources), devices=devices)
    notifier.ready()
