# SPDX-License-Identifier: Apache-2.0
"""What the judges of readiness share: their input, and how a line begins. Pure."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.readiness import ReadinessLine, Verdict
from nodeagent.model.surroundings import Surroundings


class Evidence(NamedTuple):
    """All that readiness is judged by."""

    host: Host
    desired: Desired
    around: Surroundings


class Section(NamedTuple):
    """Where lines stand."""

    name: str

    def ok(self, check: str, seen: str) -> ReadinessLine:
        """It is as it should be."""
        return ReadinessLine(self.name, check, Verdict.OK, seen)

    def wrong(self, check: str, seen: str, to_do: str) -> ReadinessLine:
        """It needs a person."""
        return ReadinessLine(self.name, check, Verdict.WRONG, seen, to_do)

    def note(self, check: str, seen: str, to_do: str = "") -> ReadinessLine:
        """It may be as it was meant."""
        return ReadinessLine(self.name, check, Verdict.NOTE, seen, to_do)

    def unseen(self, check: str, why: str, to_do: str = "") -> ReadinessLine:
        """Nobody knows."""
        return ReadinessLine(self.name, check, Verdict.UNSEEN, why, to_do)
