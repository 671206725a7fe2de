# SPDX-License-Identifier: Apache-2.0
"""Rescans of unfinished devices: soon and then more rarely, and none where nothing is unfinished."""

from __future__ import annotations

import anyio

from nodeagent.agent.observe import UnfinishedRescans
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.scan_requests import ScanRequests
from tests import virtual
from tests.policy.samples import function, host, vgpu

VF = "0000:65:00.4"
UNFINISHED = host(vgpu(VF, vgpu=False, vgpu_type=None))
DONE = host(vgpu(VF), function())


class Looked:
    """Scans whatever is due, and finds the same host each time."""

    def __init__(self) -> None:
        self.scan_requests = ScanRequests()
        self.scan_requests.take()
        self.looks = UnfinishedRescans(self.scan_requests, Timeouts().rescan_delays)

    async def times(self, seconds: float) -> int:
        """How often the VF was due in that time."""
        count = 0
        with anyio.move_on_after(seconds):
            while True:
                await self.scan_requests.newer(self.scan_requests.version)
                assert self.scan_requests.take() == frozenset({VF})
                count += 1
                self.looks.follow(UNFINISHED)
        return count


@virtual.TIME
async def test_what_is_unfinished_is_looked_at_again_soon_and_not_for_ever() -> None:
    looked = Looked()
    looked.looks.follow(UNFINISHED)
    assert await looked.times(1.0) == 3
    assert await looked.times(sum(Timeouts().rescan_delays)) == len(Timeouts().rescan_delays) - 3
    assert await looked.times(600.0) == 0


@virtual.TIME
async def test_what_is_unfinished_anew_is_looked_at_soon_again() -> None:
    looked = Looked()
    looked.looks.follow(UNFINISHED)
    assert await looked.times(2 * sum(Timeouts().rescan_delays)) == len(Timeouts().rescan_delays)
    looked.looks.follow(DONE)
    assert await looked.times(60.0) == 0
    looked.looks.follow(UNFINISHED)
    assert await looked.times(1.0) == 3


@virtual.TIME
async def test_what_comes_while_another_is_looked_at_rarely_is_looked_at_soon() -> None:
    looked, other = Looked(), "0000:65:00.5"
    looked.looks.follow(UNFINISHED)
    await looked.times(sum(Timeouts().rescan_delays[:-1]) + 1.0)
    looked.looks.follow(host(*(vgpu(each, vgpu=False, vgpu_type=None) for each in (VF, other))))
    with anyio.fail_after(2 * Timeouts().rescan_delays[0]):
        await looked.scan_requests.newer(looked.scan_requests.version)
    assert looked.scan_requests.take() == frozenset({VF, other})


@virtual.TIME
async def test_a_host_on_which_all_is_done_is_left_alone() -> None:
    looked = Looked()
    looked.looks.follow(DONE)
    assert await looked.times(600.0) == 0
