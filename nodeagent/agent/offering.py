# SPDX-License-Identifier: Apache-2.0
"""Computes the Decision (the offered resources) from each new Snapshot, by pure functions of ``policy``.

``one_turn`` may be called at any time on the event loop, and an Allocate calls it. It is synchronous, so two
calls never overlap, and without changes it costs almost nothing.
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
    """Holds the Decision, and publishes the offered Resources."""

    name = "offering"

    def __init__(self, snapshots: Snapshots, releases: Releases, timeouts: Timeouts) -> None:
        self.heartbeat = Heartbeat("the loop that decides what is offered", timeouts.loop_turn)
        self.resources: Latest[Mapping[ResourceName, Resource]] = Latest({})
        self._snapshots = snapshots
        self._releases = releases
        self._decision = turn.decide_first(Snapshot(Host(), snapshots.now.spec))
        self._groups: tuple[Decision, tuple[GroupStatus, ...]] | None = None

    @property
    def decision(self) -> Decision:
        """The newest Decision."""
        return self._decision

    @property
    def groups(self) -> tuple[GroupStatus, ...]:
        """The IOMMU groups of the newest Decision; computed again only for another Decision."""
        if self._groups is None or self._groups[0] is not self._decision:
            from nodeagent.policy.explain import groups  # here: only for status requests

            self._groups = self._decision, groups.overview(self._decision)
        return self._groups[1]

    @property
    def newest(self) -> Snapshot:
        """The newest Snapshot, which the next Decision will use."""
        return self._snapshots.now

    async def run(self) -> None:
        """Decide whenever the Snapshot has changed, for ever."""
        seen_resources = -1
        while True:
            seen = self._snapshots.version
            self.one_turn()
            if seen_resources != self.resources.version:  # not in one_turn, so that no Allocate waits for it
                seen_resources = self.resources.version
                self._releases.wait_for(turn.find_awaited(self._decision), by=self.name)
            self.heartbeat.turned()
            await self.heartbeat.wait(self._snapshots.newer(seen))

    def one_turn(self) -> Decision:
        """Decide again for changed devices; a new Spec is used only after the device nodes of its rules were
        scanned.
        """
        snapshot = self._snapshots.now
        if not snapshot.rule_nodes_scanned:
            snapshot = replace(snapshot, spec=self._decision.snapshot.spec)
        if not _is_same(snapshot, self._decision.snapshot):
            self._decision = turn.decide_next(self._decision, snapshot)
            self.resources.set(self._decision.resources)
        return self._decision


def _is_same(one: Snapshot, other: Snapshot) -> bool:
    """True if no part that the offer depends on has changed: unchanged parts are the same objects."""
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
