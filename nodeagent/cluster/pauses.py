# SPDX-License-Identifier: Apache-2.0
"""How long to leave the API server alone after which failure. Pure: the randomness is an argument.

Thousands of nodes fail at the same moment, so every pause is spread. What only a person can mend, or costs
the server much at each try, waits for minutes; all else begins with half a second and ends at half a minute.
"""

from __future__ import annotations

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.timeouts import Backoff
from nodeagent.cluster import refusals
from nodeagent.cluster.refusals import TooLarge

STEADY = 5.0  # seconds for which a stream must last to count as a good one
_SOON = Backoff(first=0.5, limit=30.0)
_LATE = Backoff(first=30.0, limit=300.0)
_ABSENT = Backoff(first=5.0, limit=60.0)  # KubeVirt may be installed at any time


def after(error: ClusterUnavailable, attempt: int, jitter: float) -> float:
    """Seconds before the next try; ``attempt`` counts failures in a row from 0, ``jitter`` is from 0 to 1."""
    pause = _row(error).delay(attempt, jitter)
    return max(pause, error.after * (1.0 + jitter / 4))  # never sooner than it said, and not all at once


def _row(error: ClusterUnavailable) -> Backoff:
    if error.status == refusals.FORBIDDEN or isinstance(error, TooLarge):
        return _LATE
    return _ABSENT if error.status == refusals.NOT_FOUND else _SOON
