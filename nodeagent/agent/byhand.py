# SPDX-License-Identifier: Apache-2.0
"""Carries out one request by hand in a process of its own, where no daemon runs, under the daemon's lock.

The same parts do the same work: the host is scanned, the kubelet is asked who holds what, then the plan of
the groups that are named is carried out. No resource is served, and no other wish is looked after.
"""

from __future__ import annotations

import anyio

from nodeagent.agent import core as cores
from nodeagent.agent import kubelet_side
from nodeagent.agent.changing import feature
from nodeagent.agent.core import Core
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.model.request import Answer, Request


async def carried_out(root: Root, settings: Settings, timeouts: Timeouts, request: Request) -> Answer:
    """What becomes of it; a request that is to change nothing takes no lock.

    :raises AlreadyRunning: if a daemon serves this node.
    :raises KernelRefused: if the host cannot be read, or the record not be written.
    """
    core = cores.build(root, Latest(settings), timeouts)
    side = kubelet_side.build(core)
    if request.dry_run:
        return await _answer(core, request)
    side.open()
    try:
        return await _answer(core, request)
    finally:
        side.close()
        core.watcher.close()


async def _answer(core: Core, request: Request) -> Answer:
    async with anyio.create_task_group() as group:
        await cores.first_specs(core)
        await core.observer.scan()
        group.start_soon(core.observer.run)
        await core.usage.first()
        answer = await feature.alone(core, request)
        group.cancel_scope.cancel()
    return answer
