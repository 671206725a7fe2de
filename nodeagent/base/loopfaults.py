# SPDX-License-Identifier: Apache-2.0
"""What an event loop reports that no task can: a connection that could not be accepted is one line.

asyncio tries 128 times in a row to accept where no descriptor is left, again after a second, and reports each
time with a traceback (CPython, ``BaseSelectorEventLoop._accept_connection``). All else stays as it is.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from nodeagent.base import advice, log
from nodeagent.base.advice import Doing

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # those that asyncio waits out
_HINT = "something may have too many connections to nodeagent open"


def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler for ``set_exception_handler``."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _SHORTAGES and "socket" in context:
        log.event(log.NO_DESCRIPTORS, error=advice.words(error), hint=advice.on(error, Doing.LISTEN, _HINT))
    else:
        loop.default_exception_handler(context)
