# SPDX-License-Identifier: Apache-2.0
"""What is withdrawn before a write is given back once the host shows its effect, whatever fails meanwhile."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.policy.change import ownership
from nodeagent.sim import files
from tests.agent.changing.changing import FIRST, MACHINE, node, t4

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop

POD = unnamed(ResourceName("nvidia.com/GRID_T4"), None)


async def test_what_a_write_has_taken_that_a_failure_has_left_is_given_back_when_it_returns(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
            await changing.until_at_rest()
        first = ownership.uuid_of(MACHINE, FIRST, "nvidia-228", 0)
        path = changing.root.path(f"/sys/bus/mdev/devices/{first}/remove")
        files.remove(path)
        os.mkfifo(path)
        changing.forget(deadline=60.0)
        async with changing.run():
            changing.want()
            await changing.until(lambda: len(changing.status.under_way) == 1)
        assert changing.status.late == ()
        async with changing.run():  # its supervisor begins it again after a failure
            with pytest.raises(Refused):
                changing.reservations.give({first: POD}, until=math.inf)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            await changing.until(lambda: not changing.now.reservations.withdrawn)
            assert changing.status.under_way == ()
            os.close(reader)


async def test_what_was_withdrawn_for_steps_that_a_failure_has_ended_is_given_back(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
            await changing.until_at_rest()
            changing.want()
            await changing.until(lambda: len(changing.cards.instances) == 1)
        async with changing.run():
            await changing.until_counts()
            await changing.until(lambda: not changing.now.reservations.withdrawn)
