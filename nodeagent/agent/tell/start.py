# SPDX-License-Identifier: Apache-2.0
"""What is said when the daemon has started: of the host, and that it is ready."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from nodeagent.base import log, lograte, logsinks, memory
from nodeagent.base.sdnotify import Notifier
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource


def tell_of_the_host(host: Host) -> None:
    """Say what keeps the whole node from giving devices away."""
    if host.functions and not host.iommu:
        log.event(log.NO_IOMMU, hint="switch it on in the firmware and with intel_iommu=on")
    elif host.functions and not host.vfio_loaded:
        log.event(log.NO_VFIO, hint="load it with: modprobe vfio-pci")


async def tell_what_was_left_out() -> None:
    """Say so when the time of a flood is over, for ever: what comes next may come much later."""
    while True:
        await anyio.sleep(lograte.SECONDS)
        logsinks.tell_left_out()


def tell_that_it_is_ready(resources: Mapping[ResourceName, Resource], notifier: Notifier) -> None:
    """The start is over: say so to people and to systemd, and collect garbage again."""
    devices = sum(len(resource.devices) for resource in resources.values())
    memory.end_start()
    log.event(log.READY, resources=len(resources), devices=devices)
    notifier.ready()
