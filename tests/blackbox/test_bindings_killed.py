# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed while it changes drivers: each kind of write, at each place in a group.

Each write of all 64 functions is in ``python -m tests.chaos.crashes``.
"""

from __future__ import annotations

import random

import pytest

from tests.blackbox.harness import Node
from tests.chaos.crashes import points, story

pytestmark = pytest.mark.slow


@pytest.mark.timeout(180)
async def test_after_a_kill_at_any_write_each_group_is_as_wished_or_as_before_and_the_status_says_which(
    node: Node,
) -> None:
    async with story.told(node) as told:
        for point, kept in points.shuffled(points.spread(told.groups), random.Random(14)):
            await told.killed_at(point, kept=kept)
