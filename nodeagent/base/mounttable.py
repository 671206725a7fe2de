# SPDX-License-Identifier: Apache-2.0
"""Waiting for the mounts of this process's namespace to change: a path may lead elsewhere then.

inotify tells nothing of a file system that is mounted over a directory which is watched. The kernel marks
/proc/self/mountinfo as exceptional then (proc_pid_mountinfo(5)), and always as readable: hence an epoll
instance that asks for the mark alone, and is itself what the event loop waits for. Where there is no such
file, nobody is told, and slow polls are the net. Knows nothing of what is mounted.

Each look at the file takes the mark away (``mounts_poll`` in fs/proc_namespace.c), and so does the look at
the epoll instance when the event loop begins to wait for it: then the mark is gone, and nobody has heard of
it. So the loop waits for it all the time, and not anew after each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable, Iterator

import anyio

from nodeagent.base.latest import Latest

MOUNTS = "/proc/self/mountinfo"


async def follow(changed: Callable[[], None], pause: float, path: str = MOUNTS) -> None:
    """Call ``changed`` now, and soon after each change, at most once in ``pause`` seconds; for ever.

    What changed before this was called may be told by nothing else.
    """
    marked: Latest[None] = Latest(None)
    try:
        with _marks(path) as marks, _called(marks, marked.touch):
            seen = -1
            while True:
                seen, _ = await marked.newer(seen)
                changed()
                await anyio.sleep(pause)
    except FileNotFoundError:
        await anyio.sleep_forever()


@contextlib.contextmanager
def _marks(path: str) -> Iterator[select.epoll]:
    """What is readable when the file was marked. :raises OSError: for a file that cannot be."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with select.epoll() as marks:
            marks.register(file, select.EPOLLPRI)
            yield marks
    finally:
        os.close(file)


@contextlib.contextmanager
def _called(marks: select.epoll, marked: Callable[[], None]) -> Iterator[None]:
    """Each mark is taken away and told, also while nobody waits for it."""

    def take() -> None:
        marks.poll(0)
        marked()

    loop = asyncio.get_running_loop()
    loop.add_reader(marks.fileno(), take)
    try:
        yield
    finally:
        loop.remove_reader(marks.fileno())
