# SPDX-License-Identifier: Apache-2.0
"""The loop in the middle: from each Snapshot the Decision that follows, by pure policy.

``one_turn`` may be called at any time on the event loop (an Allocate does): it is synchronous, so turns never
overlap, and with nothing new it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Heartbeat
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import GroupStatus
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision


class Offering:
    """Owns the Decision, and the cell of the Resources that are to be offered."""

    name = "offering"

    def __init__(self, snapshots: Snapshots, releases: Releases, timeouts: Timeouts) -> None:
        self.heartbeat = Heartbeat("the loop that decides what is offered", timeouts.loop_turn)
        self.resources: Latest[Mapping[ResourceName, Resource]] = Latest({})
        self._snapshots = snapshots
        self._releases = releases
        self._decision = turn.first(Snapshot(Host(), snapshots.now.spec))
        self._groups: tuple[Decision, tuple[GroupStatus, ...]] | None = None

    @property
    def decision(self) -> Decision:
        """The result of the last turn."""
        return self._decision

    @property
    def groups(self) -> tuple[GroupStatus, ...]:
        """The groups, as they were decided last; computed again only after another Decision."""
        if self._groups is None or self._groups[0] is not self._decision:
            from nodeagent.policy.explain import groups  # here: nobody may ever ask

            self._groups = self._decision, groups.overview(self._decision)
        return self._groups[1]

    @property
    def newest(self) -> Snapshot:
        """The newest Snapshot; the next turn is made from it."""
        return self._snapshots.now

    async def run(self) -> None:
        """Turn whenever a part of the Snapshot has changed, for ever."""
        told = -1
        while True:
            seen = self._snapshots.version
            self.one_turn()
            if told != self.resources.version:  # here and not in a turn: no Allocate waits for it
                told = self.resources.version
                self._releases.wait_for(turn.awaited_releases(self._decision), by=self.name)
            self.heartbeat.turned()
            await self.heartbeat.wait(self._snapshots.newer(seen))

    def one_turn(self) -> Decision:
        """Decide anew what has changed; other wishes count once the nodes that they name were looked for."""
        snapshot = self._snapshots.now
        if not snapshot.rule_nodes_scanned:
            snapshot = replace(snapshot, spec=self._decision.snapshot.spec)
        if not _same(snapshot, self._decision.snapshot):
            self._decision = turn.following(self._decision, snapshot)
            self.resources.set(self._decision.resources)
        return self._decision


def _same(one: Snapshot, other: Snapshot) -> bool:
    """True if nothing was replaced on which offers depend: equal parts are the same objects."""
    return one is other or (
        one.host is other.host
        and one.spec is other.spec
        and one.names is other.names
        and one.allocations is other.allocations
        and one.reservations.admitting == other.reservations.admitting
        and one.reservations.pending == other.reservations.pending
        and one.reservations.withdrawn == other.reservations.withdrawn
        and one.loans is other.loans
        and one.unwanted is other.unwanted
    )
