# SPDX-License-Identifier: Apache-2.0
"""Waiting for a state of another process, always with a deadline: the one place of this tier that polls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL = 0.05  # seconds between two looks


def pause(seconds: float) -> None:
    """Let time pass, where time is what is tried out."""
    time.sleep(seconds)


def until(look: Callable[[], T | None], what: str, seconds: float = 20.0) -> T:
    """The first answer of ``look`` that is not None or False; raises AssertionError after the deadline.

    An ``OSError`` counts as "not yet": the other side may just be starting.
    """
    deadline = time.monotonic() + seconds
    trouble: object = None
    while True:
        try:
            if found := look():
                return found
            trouble = None
        except OSError as error:
            trouble = error
        if time.monotonic() > deadline:
            raise AssertionError(
                f"after {seconds:.0f} s still not: {what}" + (f" ({trouble})" if trouble else "")
            )
        time.sleep(INTERVAL)
