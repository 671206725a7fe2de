# SPDX-License-Identifier: Apache-2.0
"""Shows the problems and notes of the newest Decision in the status, and logs each one once, when it begins.

A problem that needs action is logged as a warning, any other problem as a note. ``policy.offer`` decides.
"""

from __future__ import annotations

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.policy.explain import problems


class ProblemLog:
    """The component that logs the problems and notes of each Decision."""

    name = "problem log"

    def __init__(self, snapshots: Snapshots, offering: Offering, pause: float) -> None:
        """``pause``: seconds from a change to the check, because devices are bound one by one at boot."""
        self._pause = pause
        self._snapshots = snapshots
        self._offering = offering
        self._logged: frozenset[tuple[str, str]] = frozenset()
        self._inputs: tuple[object, ...] = ()
        self._problems: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the newest Decision; computed again only when their inputs have changed."""
        decision = self._offering.decision
        snapshot = decision.snapshot
        parts = (snapshot.host, snapshot.spec, snapshot.names)
        if not snapshot.host.generation:
            return ()  # the first scan has failed: an empty Host has no problems
        if len(self._inputs) != len(parts) or any(
            old is not new for old, new in zip(self._inputs, parts, strict=True)
        ):
            self._inputs, self._problems = parts, problems.find_problems(decision)
        return self._problems

    async def run(self) -> None:
        """Log new problems now, and a while after each change, for ever."""
        while True:
            seen = self._snapshots.version
            self._log_new()
            await self._snapshots.newer(seen)
            await anyio.sleep(self._pause)

    def _log_new(self) -> None:
        """Log the problems that were not logged before."""
        found = self.problems
        for problem in found:
            if problem.key not in self._logged:
                _log(problem)
        self._logged = frozenset(problem.key for problem in found)


def _log(problem: Problem) -> None:
    hint = problem.hint or None
    if problem.code == ProblemCode.NO_IOMMU:
        log.event(log.NO_IOMMU, text=problem.message, hint=hint)
    elif problem.code == ProblemCode.NO_VFIO:
        log.event(log.NO_VFIO, text=problem.message, hint=hint)
    else:
        log.event(log.NOTE, text=problem.message, hint=hint)
