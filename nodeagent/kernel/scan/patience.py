# SPDX-License-Identifier: Apache-2.0
"""Reads that nobody waits for if they do not answer at once: the thread is left behind.

What was left behind is waited for before the same is asked again: the name of its thread tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_PATIENCE = 0.1  # seconds; a read takes microseconds


def at_once(name: str, read: Callable[[], T]) -> list[T]:
    """What it returns, alone in a list that is empty if there is no answer yet. ``name``: of what is read."""
    found: list[T] = []
    if all(each.name != name for each in threading.enumerate()):
        look = threading.Thread(target=lambda: found.append(read()), name=name, daemon=True)
        with suppress(RuntimeError):  # no thread can be had
            look.start()
            look.join(_PATIENCE)
    return found[:1]
