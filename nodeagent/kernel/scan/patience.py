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

# Seconds; a read takes microseconds. Not in the record of time limits: the readers of the host's tables take
# the root alone, and nothing waits for it unless a device hangs.
_PATIENCE = 0.1


def at_once(name: str, read: Callable[[], T]) -> list[T]:
    """What it returns, alone in a list that is empty if there is no answer yet. ``name``: of what is read."""
    found: list[T] = []
    if all(each.name != name for each in threading.enumerate()):
        look = threading.Thread(target=lambda: found.append(read()), name=name, daemon=True)
        with suppress(RuntimeError):  # no thread can be had
            look.start()
            look.join(_PATIENCE)
    return found[:1]
