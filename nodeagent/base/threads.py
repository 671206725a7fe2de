# SPDX-License-Identifier: Apache-2.0
"""Runs blocking calls in daemon threads, one thread per call, so that the event loop can stop waiting.

A read or write of sysfs can sleep in the kernel for as long as a VM runs, and no signal ends it. Python
exits without waiting for *daemon* threads, unlike the threads of ``anyio.to_thread``. The caller sets the
deadline with ``move_on_after``.

A killed process keeps its sockets until its last thread has ended. Therefore a separate process makes each
write that may block as long as a VM runs (``kernel.apply.write``), and a thread waits for that process.
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

NAME = "nodeagent: "  # prefix of the names of these threads


def start(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Start ``function`` in a daemon thread that is named after it, and return the future of its result.

    Await it with ``result``, which does not cancel the future if the caller is cancelled.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # asyncio reports an error that was never retrieved
    future.add_done_callback(asyncio.Future.exception)

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, function(*args, **kwargs))
        # a future accepts no StopIteration, and its caller would wait for ever
        except StopIteration as error:
            settle = partial(future.set_exception, InternalError(f"StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001 - belongs to the caller
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle)

    name = NAME + getattr(function, "__qualname__", "call")
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread and return its result; after cancellation, a late result is
    dropped.
    """
    return await result(start(function, *args, **kwargs))


async def result(future: asyncio.Future[T]) -> T:
    """Wait for a call that was started, and return its result; cancellation does not affect the call.

    Unlike this function, ``asyncio.shield`` in Python 3.14 logs an error that occurs after the
    cancellation.
    """
    await asyncio.wait([future])
    return future.result()


class OneByOne:
    """Runs calls that may hang one after the other: a call waits for the end of an earlier abandoned call."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    async def call(
        self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Run ``function`` in a daemon thread; return None if there is no result within ``seconds``.

        The wait for an earlier call may take up to ``seconds`` in addition.
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
