# SPDX-License-Identifier: Apache-2.0
"""Blocking calls in daemon threads, one for each call. The event loop may stop waiting at any time.

A read or a write of sysfs can sleep in the kernel for as long as a virtual machine runs, and no signal
ends it. The process can exit while such a thread sleeps, since it is a *daemon* thread. (``anyio.to_thread``
has other threads, for which Python waits at exit.) The deadline is the caller's ``move_on_after``.

A killed process keeps its sockets until its last thread has ended. So a write that may block for as long as a
virtual machine runs is a process of its own (``kernel.apply.write``), and a thread waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio

from nodeagent.base.errors import InternalError

T = TypeVar("T")
P = ParamSpec("P")

NAME = "nodeagent: "  # how the names of these threads begin


def start(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Start ``function`` in a daemon thread that is named after it.

    The future belongs to the thread: ``result`` waits for it, and does not cancel it with the caller.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda ended: ended.exception())  # asyncio reports one that was never retrieved

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, function(*args, **kwargs))
        except StopIteration as error:  # no future takes one, and its caller would wait for ever
            settle = partial(future.set_exception, InternalError(f"StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001 - belongs to the caller
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle)

    name = NAME + getattr(function, "__qualname__", "call")
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread and return its result; when cancelled, drop a late one."""
    return await result(start(function, *args, **kwargs))


async def result(future: asyncio.Future[T]) -> T:
    """Wait for a call that was started, and return its result; when cancelled, leave it alone.

    Unlike ``asyncio.shield``, which in Python 3.14 logs an error that comes after that.
    """
    await asyncio.wait([future])
    return future.result()


class OneByOne:
    """Calls that may never end, one after the other: the next one waits for one that was left behind."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    async def call(
        self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Run ``function`` in a daemon thread; None if there is no result within so many seconds.

        The wait for the call before takes as long at most, and nothing of that time.
        """
        with anyio.move_on_after(seconds):
            while self._last is not None and not self._last.done():
                await asyncio.wait([self._last])
        if self._last is not None and not self._last.done():
            return None
        with anyio.move_on_after(seconds):
            call = self._last = start(function, *args, **kwargs)
            return await result(call)
        return None
