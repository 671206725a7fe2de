# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next try: growing delays with a limit. Knows no clock and no randomness."""

from __future__ import annotations

from typing import NamedTuple


class Backoff(NamedTuple):
    """Delays in seconds: ``first``, then times ``factor`` up to ``limit``."""

    first: float
    limit: float
    factor: float = 2.0

    def delay(self, attempt: int, jitter: float = 0.0) -> float:
        """Seconds before try number ``attempt`` (0 = the first repeat).

        ``jitter`` from 0 to 1 shortens the delay by up to a half, so that many waiters spread out.
        """
        exponent = min(max(attempt, 0), 63)
        plain = min(self.limit, self.first * self.factor**exponent)
        return plain * (1.0 - jitter / 2)
