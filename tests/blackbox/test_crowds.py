# SPDX-License-Identifier: Apache-2.0
"""Sixty thousand devices: a kubelet that comes back has all lists within a second."""

from __future__ import annotations

import pytest

from tests.bench import crowding

pytestmark = pytest.mark.bench

GOAL = 1000  # milliseconds


async def test_a_kubelet_that_is_back_has_sixty_lists_of_a_thousand_within_a_second() -> None:
    """The best of a few, for whatever else runs here takes its share of the processor."""
    times, _, _ = await crowding.restarted(4)
    assert min(times) <= GOAL, times
