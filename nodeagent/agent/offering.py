# SPDX-License-Identifier: Apache-2.0
"""The loop in the middle: Host × Desired × Allocations → Resources, by pure policy, at each change.

``one_turn`` may be called at any time on the event loop (Allocate does): it is synchronous, so turns never
overlap, and with nothing new it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Allocations, Reservations
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import releases, turn
from nodeagent.policy.offer.turn import Decision


class Offering:
    """Owns the cells of Resources and of what they await. Reads the cells that it is given."""

    def __init__(
        self,
        wake: Latest[None],
        host: Latest[Host],
        desired: Latest[Desired],
        names: Latest[Mapping[str, str]],
        allocations: Latest[Allocations],
        settling: Latest[frozenset[str]],
    ) -> None:
        self.resources: Latest[Mapping[ResourceName, Resource]] = Latest({})
        self.awaited: Latest[frozenset[str]] = Latest(frozenset())  # parts that somebody is to let go
        self._wake = wake
        self._host = host
        self._desired = desired
        self._names = names
        self._allocations = allocations
        self._settling = settling
        self._decision = turn.first(Snapshot(Host(), desired.get()))

    @property
    def decision(self) -> Decision:
        """The result of the last turn."""
        return self._decision

    async def run(self) -> None:
        """Turn whenever one of the inputs has changed, for ever."""
        told = -1
        while True:
            seen = self._wake.version
            self.one_turn()
            if told != self.resources.version:  # here and not in a turn: no Allocate waits for it
                told = self.resources.version
                self.awaited.set(releases.awaited(self._decision))
            await self._wake.newer(seen)

    def one_turn(self) -> Decision:
        """Decide anew what has changed."""
        snapshot = Snapshot(
            host=self._host.get(),
            desired=self._desired.get(),
            names=self._names.get(),
            allocations=self._allocations.get(),
            reservations=Reservations(self._settling.get()),
        )
        if not _same(snapshot, self._decision.snapshot):
            self._decision = turn.following(self._decision, snapshot)
            self.resources.set(self._decision.resources)
        return self._decision


def _same(one: Snapshot, other: Snapshot) -> bool:
    """True if nothing was replaced: parts of Facts are immutable, so identity is enough."""
    return (
        one.host is other.host
        and one.desired is other.desired
        and one.names is other.names
        and one.allocations is other.allocations
        and one.reservations == other.reservations
    )
