# SPDX-License-Identifier: Apache-2.0
"""What was refused for being open is looked at again, as long as that is possible."""

from __future__ import annotations

from pathlib import Path

from nodeagent.agent.closing import Closing
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.sim import files, nodes
from tests.agent.parts import Eyes
from tests.agent.wired import ONE
from tests.limits import free_descriptors

HOST = Host(functions={PciAddress(ONE): PciFunction(PciAddress(ONE), driver="vfio-pci", vfio=True, enable=0)})
LEFT_OPEN = {ONE: "process 4711 (qemu-system-x86)"}


async def test_what_was_refused_for_being_open_stays_so_while_no_process_can_be_looked_at(
    tmp_path: Path,
) -> None:
    """Without a free descriptor nobody has looked at all; and whoever polls goes on."""
    host, snapshots = nodes.many(tmp_path, 2), Snapshots(Snapshot(HOST, left_open=LEFT_OPEN))
    files.directory(host.path("/proc/4711/fd"))
    eyes = Eyes(host, snapshots)
    offering = Offering(snapshots, Releases(eyes.settings, timeouts=Timeouts()))
    forgotten = ReservationBook(snapshots, timeouts=Timeouts()).forgotten
    closing = Closing(
        Root(host.directory), eyes.wakes, eyes.observer, offering, snapshots, forgotten, timeouts=Timeouts()
    )
    with free_descriptors(0):
        await closing.refresh(())
    assert snapshots.now.left_open == LEFT_OPEN
    await closing.refresh(())
    assert snapshots.now.left_open == {}
