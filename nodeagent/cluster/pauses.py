# SPDX-License-Identifier: Apache-2.0
"""How long to leave the API server alone after which failure. Pure: the randomness is an argument.

Thousands of nodes fail at the same moment, so every pause is spread. What only a person can mend, or costs
the server much at each try, waits for minutes; all else begins with half a second and ends at half a minute.
"""

from __future__ import annotations

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.cluster import refusals
from nodeagent.cluster.refusals import TooLarge


def after(error: ClusterUnavailable, attempt: int, jitter: float, timeouts: Timeouts) -> float:
    """Seconds before the next try; ``attempt`` counts failures in a row from 0, ``jitter`` is from 0 to 1."""
    pause = _row(error, timeouts).delay(attempt, jitter)
    asked = min(error.after, timeouts.api_retry_after)
    return max(pause, asked * (1.0 + jitter / 4))  # never sooner than it said, and not all at once


def _row(error: ClusterUnavailable, timeouts: Timeouts) -> Backoff:
    if error.status == refusals.FORBIDDEN or isinstance(error, TooLarge):
        return timeouts.api_retry_refused
    return timeouts.api_retry_absent if error.status == refusals.NOT_FOUND else timeouts.api_retry
