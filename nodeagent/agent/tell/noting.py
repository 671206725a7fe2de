# SPDX-License-Identifier: Apache-2.0
"""The problems and notes of the newest Decision: in the status, and logged once, when they begin.

What somebody has to do something about is a warning, a note is none. Decides nothing: ``policy.offer`` does.
"""

from __future__ import annotations

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.policy.explain import problems


class Remarks:
    """The component that looks at each Decision for what would pass in silence."""

    name = "remarks"

    def __init__(self, snapshots: Snapshots, offering: Offering, pause: float) -> None:
        """``pause``: seconds from a change to the look at it: devices bound at boot appear one by one."""
        self._pause = pause
        self._snapshots = snapshots
        self._offering = offering
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._made_of: tuple[object, ...] = ()
        self._problems: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those of the newest Decision; found again only where what they depend on has changed."""
        decision = self._offering.decision
        snapshot = decision.snapshot
        parts = (snapshot.host, snapshot.spec, snapshot.names)
        if not snapshot.host.generation:
            return ()  # the first scan has failed: an empty Host says nothing
        if len(self._made_of) != len(parts) or any(
            old is not new for old, new in zip(self._made_of, parts, strict=True)
        ):
            self._made_of, self._problems = parts, problems.find_problems(decision)
        return self._problems

    async def run(self) -> None:
        """Look now, and some time after each change, for ever."""
        while True:
            seen = self._snapshots.version
            self._look()
            await self._snapshots.newer(seen)
            await anyio.sleep(self._pause)

    def _look(self) -> None:
        """Say what was not remarked before."""
        found = self.problems
        for remark in found:
            if remark.key not in self._told:
                _say(remark)
        self._told = frozenset(remark.key for remark in found)


def _say(remark: Problem) -> None:
    hint = remark.hint or None
    if remark.code == ProblemCode.NO_IOMMU:
        log.event(log.NO_IOMMU, text=remark.message, hint=hint)
    elif remark.code == ProblemCode.NO_VFIO:
        log.event(log.NO_VFIO, text=remark.message, hint=hint)
    else:
        log.event(log.NOTE, text=remark.message, hint=hint)
