# SPDX-License-Identifier: Apache-2.0
"""Waiting for the mounts of this process's namespace to change: a path may lead elsewhere then.

inotify tells nothing of a file system that is mounted over a directory which is watched. The kernel marks
/proc/self/mountinfo as exceptional then (proc_pid_mountinfo(5)), and always as readable: hence an epoll
instance that asks for the mark alone, and is itself what the event loop waits for. Where there is no such
file, nobody is told, and slow polls are the net. Knows nothing of what is mounted.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator

import anyio

MOUNTS = "/proc/self/mountinfo"
PAUSE = 0.2  # seconds between two looks: each pod that starts makes dozens of mounts


async def follow(changed: Callable[[], None], path: str = MOUNTS) -> None:
    """Call ``changed`` soon after each change, and once for many that come together; for ever."""
    try:
        with _marks(path) as marks:
            while True:
                await anyio.wait_readable(marks.fileno())
                marks.poll(0)  # takes the mark away
                changed()
                await anyio.sleep(PAUSE)
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
