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
from nodeagent.policy.offer import handover, turn
from nodeagent.policy.offer.turn import Decision

_DECISIVE = (
    "host",
    "spec",
    "names",
    "allocations",
    "reservations",
    "loans",
    "unwanted",
    "claims",
    "in_slices",
)
"""The parts of a Snapshot on which offers depend; an unchanged part is the same object."""


class Offering:
    """Holds the Decision, and publishes the offered Resources."""

    name = "offering"

    def __init__(self, snapshots: Snapshots, releases: Releases, timeouts: Timeouts) -> None:
        self.heartbeat = Heartbeat("the loop that decides what is offered", timeouts.loop_turn)
        self.resources: Latest[Mapping[ResourceName, Resource]] = Latest({})
        self.of_plugins: Latest[Mapping[ResourceName, Resource]] = Latest({})  # as device plugins list them
        self.snapshots = snapshots  # the next Decision uses the newest one
        self.decision = turn.decide_first(Snapshot(Host(), snapshots.now.spec))  # the newest Decision
        self._releases = releases
        self._groups: tuple[Decision, tuple[GroupStatus, ...]] | None = None

    @property
    def groups(self) -> tuple[GroupStatus, ...]:
        """The IOMMU groups of the newest Decision; computed again only for another Decision."""
        if self._groups is None or self._groups[0] is not self.decision:
            from nodeagent.policy.explain import groups  # here: only for status requests

            self._groups = self.decision, groups.overview(self.decision)
        return self._groups[1]

    def of_plugin(self, name: ResourceName) -> Resource:
        """The resource as its device plugin lists it; one without devices if there is none."""
        return self.of_plugins.get().get(name) or Resource(name, self.decision.resource(name).kind)

    async def run(self) -> None:
        """Decide whenever the Snapshot has changed, for ever."""
        seen_resources = -1
        while True:
            seen = self.snapshots.version
            self.one_turn()
            if seen_resources != self.resources.version:  # not in one_turn, so that no Allocate waits for it
                seen_resources = self.resources.version
                self._releases.wait_for(turn.find_awaited(self.decision), by=self.name)
            self.heartbeat.turned()
            await self.heartbeat.wait(self.snapshots.newer(seen))

    def one_turn(self) -> Decision:
        """Decide again for changed devices; a new Spec is used once the nodes of its rules were scanned."""
        before, now = self.decision.snapshot, self.snapshots.now
        if now.spec is not before.spec and not now.rule_nodes_scanned:
            now = replace(now, spec=before.spec)
        if any(getattr(now, part) is not getattr(before, part) for part in _DECISIVE):
            self.decision = turn.decide_next(self.decision, now)
            self.of_plugins.set(handover.list_for_plugins(self.decision, self.of_plugins.get()))
            self.resources.set(self.decision.resources)
        return self.decision
