# SPDX-License-Identifier: Apache-2.0
"""Events that somebody asked for: one cheap check each, and what has changed all the same is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.glances import Glances
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.events import uevents
from nodeagent.kernel.events.uevents import Uevent
from nodeagent.model.ids import PciAddress
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests.agent.parts import Eyes

pytestmark = pytest.mark.usefixtures("loop_may_block")  # a host of that size is made in it
MANY = 200
ADDRESSES = [PciAddress(nodes.address(number)) for number in range(MANY)]


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return nodes.many(tmp_path, MANY)


@asynccontextmanager
async def glancing(host: SimulatedHost) -> AsyncIterator[Eyes]:
    eyes = Eyes(host)
    async with eyes.open(), anyio.create_task_group() as tasks:
        tasks.start_soon(Glances(eyes.wakes, eyes.observer, Timeouts().synthetic_event_pause).run)
        yield eyes
        tasks.cancel_scope.cancel()


def triggered(address: str) -> Uevent:
    """What ``udevadm trigger`` makes the kernel say of one device."""
    keys = {"SUBSYSTEM": "pci", "SYNTH_UUID": "0", "PCI_SLOT_NAME": address}
    return Uevent("change", f"/devices/pci0000:00/{address}", keys)


def reads() -> int:
    """How many files, or parts of files, this process has read so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["syscr"])


async def test_a_trigger_of_the_whole_machine_costs_one_check_of_each_device(host: SimulatedHost) -> None:
    async with glancing(host) as eyes:
        scans, first, before = eyes.scans, eyes.now, reads()
        for _ in range(5):
            for address in ADDRESSES:
                uevents.tell(triggered(address), eyes.wakes)
        eyes.host.hold(ADDRESSES[-1])
        await eyes.until(lambda found: found.functions[ADDRESSES[-1]].enable == 1)
        assert eyes.scans == scans + 1, "of the one that has changed"
        assert eyes.now.functions[ADDRESSES[0]] is first.functions[ADDRESSES[0]]
        assert reads() - before < 3 * MANY


async def test_a_real_change_waits_for_no_check(host: SimulatedHost) -> None:
    """Nobody makes them here."""
    eyes = Eyes(host)
    async with eyes.open():
        for address in ADDRESSES:
            uevents.tell(triggered(address), eyes.wakes)
        eyes.host.hold(ADDRESSES[-1])
        eyes.wakes.wake(ADDRESSES[-1])
        await eyes.until(lambda found: found.functions[ADDRESSES[-1]].enable == 1)
        assert set(ADDRESSES[:-1]) <= set(eyes.wakes.take_doubted(MANY))


async def test_an_event_that_names_nothing_is_a_scan_of_everything(host: SimulatedHost) -> None:
    async with glancing(host) as eyes:
        eyes.host.hold(ADDRESSES[3])
        keys = {"SUBSYSTEM": "module", "SYNTH_UUID": "0"}
        uevents.tell(Uevent("change", "/module/vfio", keys), eyes.wakes)
        await eyes.until(lambda found: found.functions[ADDRESSES[3]].enable == 1)
