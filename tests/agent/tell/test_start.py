# SPDX-License-Identifier: Apache-2.0
"""What is done from time to time once the daemon has started."""

from __future__ import annotations

import gc
import weakref

import anyio

from nodeagent.agent.tell import start
from nodeagent.base import memory
from tests import virtual


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@virtual.TIME
async def test_what_is_left_over_in_circles_is_collected_in_time() -> None:
    with memory.uncollected():
        gc.collect()
        gone = anyio.Event()
        circle = weakref.ref(Circle(), lambda _: gone.set())
        many = [Circle() for _ in range(gc.get_threshold()[0])]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start.collect_garbage, 10.0)
            with anyio.fail_after(11):
                await gone.wait()
            tasks.cancel_scope.cancel()
        assert circle() is None
        del many
