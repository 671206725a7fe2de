# SPDX-License-Identifier: Apache-2.0
"""Time that passes only where all wait: for tests that would wait for seconds.

The loop's clock jumps to the next timer when nothing can be read and nothing is to be done. So it fits what
happens in this process and on its loop alone: threads and other processes get no time. ``anyio.current_time``
tells it, and no other clock. Mark a test with ``@virtual.TIME``.
"""

from __future__ import annotations

import asyncio

import looptime
import pytest

END = 3600.0  # seconds after which a test that waits for ever is ended


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop whose time begins at 1000: zero would hide a clock that is not the loop's."""
    return looptime.new_event_loop(start=1000.0, end=1000.0 + END)


def is_it(loop: asyncio.AbstractEventLoop) -> bool:
    """True for a loop of that kind."""
    return isinstance(loop, looptime.LoopTimeEventLoop)


TIME = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("asyncio", {"loop_factory": new_event_loop}), id="virtual")],
)
