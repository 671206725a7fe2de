# SPDX-License-Identifier: Apache-2.0
"""Looks at what the host uses that take longer than a scan may wait: none of them is in vain."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.uses import HostUses
from nodeagent.sim.host import SimulatedHost
from tests.hearing import Heard
from tests.kernel.waking import HeardWakes

DISK = PciAddress("0000:3b:00.0")


async def test_what_a_late_look_has_found_counts_for_the_scan_that_it_asks_for(tmp_path: Path) -> None:
    host, told = SimulatedHost(tmp_path), Heard[str | None]()
    host.add_function(DISK, vendor="144d", device="a808", pci_class="010802", driver="nvme", group=1)
    mounts = Path(host.path("/proc/1/mountinfo"))
    mounts.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(mounts)  # whoever reads it waits, as each look will
    runner = Scanner(Root(tmp_path), HeardWakes(told), deadline=0.2, timeouts=Timeouts())
    first = await runner.scan(None, Host(), (), {})
    assert first.functions[DISK].uses is None
    await threads.call(mounts.write_text, "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    await told.until_told(None)
    second = await runner.scan(None, first, (), {})
    assert second.functions[DISK].uses == HostUses()
    assert second.changes_since(first).functions == {DISK}
