# SPDX-License-Identifier: Apache-2.0
"""What the side that changes the host needs of the rest of the daemon beside the Snapshots, and offers it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class Scans(Protocol):
    """Who reads the host."""

    async def rescan(self, keys: frozenset[str]) -> None:
        """Scan what the keys name and wait for it, but not long; the Snapshot has it then."""

    def wake(self, keys: Iterable[str]) -> None:
        """Scan soon what the keys name."""


class Reservations(Protocol):
    """Who knows which ids may be given or removed."""

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given a moment ago."""

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""


class Awaited(Protocol):
    """Who checks for releases while anything is awaited: a release has no event."""

    def wait_for(self, ids: frozenset[str], by: str) -> None:
        """These ids, and no others, are what ``by`` waits for somebody to let go."""
