# SPDX-License-Identifier: Apache-2.0
"""Reports that the daemon is ready. Called by ``app``."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from nodeagent.base import log
from nodeagent.base.systemd import Notifier
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource


def tell_that_it_is_ready(resources: Mapping[ResourceName, Resource], notifier: Notifier) -> None:
    """The start is over: say so to people and to systemd, and collect garbage from now on."""
    devices = sum(len(resource.devices) for resource in resources.values())
    gc.freeze()  # objects of the start stay: no collection visits them again
    gc.enable()
    log.event(log.READY, resources=len(resources), devices=devices)
    notifier.ready()
