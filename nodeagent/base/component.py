# SPDX-License-Identifier: Apache-2.0
"""Component: a long-lived piece of the daemon.

It has a ``name``, for the log and the status, and one ``run`` that lasts for as long as the daemon needs it.
It keeps its own state and shares cells with others, never its methods. It may fail: then the supervisor calls
``run`` again after a pause, so ``run`` begins anew with what is true by then, and gives back on its way out
what it took. Knows nothing of devices, nor of what the daemon consists of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol


class Component(Protocol):
    """What the supervisor keeps going."""

    @property
    def name(self) -> str:
        """What people call it; no two components of a daemon share a name."""

    def run(self) -> Awaitable[None]:
        """Live, until cancelled; to return means that there is nothing left to do, which is no failure."""


class Task(NamedTuple):
    """A component that is no more than its name and its run."""

    name: str
    run: Callable[[], Awaitable[None]]
