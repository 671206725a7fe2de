# SPDX-License-Identifier: Apache-2.0
"""Blocking calls in threads that may be left behind.

A read or a write of sysfs can sleep in the kernel for as long as a virtual machine runs, and no signal
ends it. So such a call gets a *daemon* thread of its own: the loop awaits the result, may stop waiting at
any time, and the process can exit while the thread still sleeps. (``anyio.to_thread`` cannot be left:
its workers are not daemon threads.) Knows nothing of what is called, and keeps no deadline: that is the
caller's ``move_on_after``.

A killed process lives on, with its sockets, until its last thread has ended. So a write that may block for
as long as a virtual machine runs is a process of its own (``kernel.apply.write``); a thread waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import anyio

T = TypeVar("T")
P = ParamSpec("P")


NAME = "nodeagent: "  # how the names of threads begin that are at a call, and of no others
PARKED = "nodeagent, parked"


class _Worker:
    """A daemon thread that runs one call after the other; between two it is parked, ready for the next.

    A thread that sleeps in the kernel is simply never parked again: the next call starts another.
    """

    _parked: ClassVar[deque[_Worker]] = deque(maxlen=4)  # more than that end when they have nothing to do

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, name: str) -> _Worker:
        """A parked worker, or a new one; its thread gets the name of the call, for whoever looks."""
        try:
            worker = cls._parked.pop()
        except IndexError:
            worker = cls()
        worker._thread.name = name
        return worker

    def put(self, call: Callable[[], None]) -> None:
        """Run the call."""
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            if len(self._parked) == self._parked.maxlen:
                return
            self._thread.name = PARKED
            self._parked.append(self)


class Call(Generic[T]):
    """One call under way in its own daemon thread. Made by ``start`` on the event loop."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._on_end: list[Callable[[], None]] = []
        _Worker.take(name).put(lambda: self._run(function))  # kept nowhere: it may well know this Call

    @property
    def ended(self) -> bool:
        """True as soon as the loop has seen the end of the thread."""
        return self._ended.is_set()

    async def wait(self) -> None:
        """Wait for the end, whatever the outcome. Stopping to wait leaves the thread alone."""
        await self._ended.wait()

    async def result(self) -> T:
        """Wait for the end; return what the function returned or raise what it raised."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the loop when the thread has ended; at once if it has already."""
        if self.ended:
            callback()
        else:
            self._on_end.append(callback)

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._value.append(function())
        except BaseException as error:  # noqa: BLE001 - belongs to whoever awaits the result
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody listens
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._ended.set()
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()


def start(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
    """Start ``function`` in a daemon thread that is named after it."""
    name = getattr(function, "__qualname__", "call")
    return Call(lambda: function(*args, **kwargs), NAME + name)


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread and return its result; when cancelled, drop a late one."""
    return await start(function, *args, **kwargs).result()


class OneByOne:
    """Calls that may never end, one after the other: one that was left behind is waited for by the next."""

    def __init__(self) -> None:
        self._under_way: set[Call[Any]] = set()

    async def call(
        self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Run ``function`` in a daemon thread; None if there is no result within so many seconds.

        Who is waited for takes nothing of that time, and not more than as much.
        """
        with anyio.move_on_after(seconds):
            while self._under_way:
                await next(iter(self._under_way)).wait()
        if self._under_way:
            return None
        with anyio.move_on_after(seconds):
            call = start(function, *args, **kwargs)
            self._under_way.add(call)
            call.when_ended(partial(self._under_way.discard, call))
            return await call.result()
        return None
