# SPDX-License-Identifier: Apache-2.0
"""Readiness: can this host give devices to virtual machines? One line for each thing that was looked at.

``nodeagent/check`` makes them. Frozen values, no I/O.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """What a look has shown. ``note``: it may be as it was meant; ``unseen``: it could not be looked at."""

    OK = "ok"
    WRONG = "wrong"
    NOTE = "note"
    UNSEEN = "unseen"


class ReadinessLine(NamedTuple):
    """One thing that was looked at: what was seen of it, and where; ``to_do`` is "" for nothing."""

    section: str
    check: str
    verdict: Verdict
    seen: str
    to_do: str = ""
