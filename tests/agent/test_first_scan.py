# SPDX-License-Identifier: Apache-2.0
"""What a daemon knows from the one before when it decides for the first time."""

from __future__ import annotations

from pathlib import Path

from nodeagent.agent import core, usb
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import Loan
from nodeagent.model.ids import DeviceId
from tests.agent.parts import settings
from tests.sim import hosts

LOANS = {DeviceId("46f4:0001-0"): (Loan("46f4:0001-0", "/dev/bus/usb/001/007", "1:7", name="1-2"),)}


async def test_what_pods_were_lent_is_known_to_the_first_list_and_not_a_moment_later(tmp_path: Path) -> None:
    """The ids of two twins tell no more which of them a pod has."""
    host = hosts.many(tmp_path, 1)
    usb.SECTION.save(host.directory, LOANS)
    shared = core.build(Root(host.directory), settings(), Timeouts())
    await core.first_scan(shared)
    assert shared.snapshots.now.host.generation
    assert shared.snapshots.now.loans == LOANS
    shared.watcher.close()


async def test_without_a_record_of_what_was_lent_nothing_is_made_of_it(tmp_path: Path) -> None:
    shared = core.build(Root(hosts.many(tmp_path, 1).directory), settings(), Timeouts())
    await core.first_scan(shared)
    assert not shared.snapshots.now.loans
    shared.watcher.close()
