# SPDX-License-Identifier: Apache-2.0
"""Shows the problems and notes of the newest Decision in the status, and logs each one once, when it begins.

A problem that needs action is logged as a warning, any other as a note. ``policy.offer`` decides.
"""

from __future__ import annotations

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.policy.explain import problems


class Remarks:
    """The component that logs the problems and notes of each Decision."""

    name = "remarks"

    def __init__(self, snapshots: Snapshots, offering: Offering, pause: float) -> None:
        """``pause``: seconds from a change to the check for problems: at boot, devices are bound one by
        one.
        """
        self._pause = pause
        self._snapshots = snapshots
        self._offering = offering
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._made_of: tuple[object, ...] = ()
        self._problems: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the newest Decision; computed again only when their inputs have changed."""
        decision = self._offering.decision
        snapshot = decision.snapshot
        parts = (snapshot.host, snapshot.spec, snapshot.names)
        if not snapshot.host.generation:
            return ()  # the first scan has failed: an empty Host has no problems
        if len(self._made_of) != len(parts) or any(
            old is not new for old, new in zip(self._made_of, parts, strict=True)
        ):
            self._made_of, self._problems = parts, problems.find_problems(decision)
        return self._problems

    async def run(self) -> None:
        """Log new problems now, and some time after each change, for ever."""
        while True:
            seen = self._snapshots.version
            self._look()
            await self._snapshots.newer(seen)
            await anyio.sleep(self._pause)

    def _look(self) -> None:
        """Log the problems that were not logged before."""
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
