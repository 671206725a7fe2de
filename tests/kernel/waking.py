# SPDX-License-Identifier: Apache-2.0
"""Wakes that also say what they are woken with, for tests that wait for it."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.kernel.wakes import Wakes


class HeardWakes(Wakes):
    """Wakes, and a callback that hears every key."""

    def __init__(self, heard: Callable[[str | None], None]) -> None:
        super().__init__()
        self._heard = heard

    def wake(self, key: str | None) -> None:
        """Wake, and say so."""
        super().wake(key)
        self._heard(key)
