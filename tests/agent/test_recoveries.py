# SPDX-License-Identifier: Apache-2.0
"""Verdicts after PCI errors: what outlives a restart, what ends with time, what ends by a proof."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import recoveries
from nodeagent.agent.recoveries import Recoveries, load
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.agent.parts import Eyes
from tests.sim import hosts

ONE = PciAddress(hosts.address(0))


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    host = hosts.many(tmp_path, 2)
    Path(host.path(f"/sys/bus/pci/devices/{ONE}/config")).write_bytes(bytes(64))
    return host


@asynccontextmanager
async def kept(host: SimulatedHost, patience: float = 3600.0) -> AsyncIterator[Eyes]:
    """A daemon's eyes, after what it knows from the one before."""
    eyes, root = Eyes(host), Root(host.directory)
    await recoveries.restore(root, eyes.scan_requests)
    async with eyes.open(), anyio.create_task_group() as tasks:
        tasks.start_soon(Recoveries(root, eyes.scan_requests, patience).run)
        yield eyes
        tasks.cancel_scope.cancel()


async def until_verdict(eyes: Eyes, verdict: Recovery | None) -> None:
    await eyes.until(lambda found: found.functions[ONE].recovery is verdict)


async def until_on_record(host: SimulatedHost, *verdicts: Recovery) -> None:
    with anyio.fail_after(10):
        while tuple(load(Root(host.directory)).values()) != verdicts:  # noqa: ASYNC110 - files tell nobody
            await anyio.sleep(0.01)


async def test_a_failed_recovery_outlives_a_restart_and_its_record_the_verdict(host: SimulatedHost) -> None:
    async with kept(host) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FAILED)
        await until_on_record(host, Recovery.FAILED)
    async with kept(host) as eyes:
        assert eyes.now.functions[ONE].recovery is Recovery.FAILED
        eyes.scan_requests.recovery(ONE, None)
        await until_on_record(host)
    async with kept(host) as eyes:
        assert eyes.now.functions[ONE].recovery is None


async def test_a_recovery_whose_end_is_not_heard_has_failed(host: SimulatedHost) -> None:
    async with kept(host, patience=0.05) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.RUNNING)
        await until_verdict(eyes, Recovery.UNHEARD)
        await until_on_record(host, Recovery.UNHEARD)


async def test_a_recovery_that_ends_in_time_has_not_failed(host: SimulatedHost) -> None:
    async with kept(host, patience=0.3) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.RUNNING)
        await until_verdict(eyes, Recovery.RUNNING)
        eyes.scan_requests.recovery(ONE, None)
        await anyio.sleep(0.4)
        await until_verdict(eyes, None)


async def test_a_device_that_is_opened_after_its_verdict_and_answers_proves_well(host: SimulatedHost) -> None:
    host.write(ONE, "power_state", "D0")
    async with kept(host) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FAILED)
        await until_verdict(eyes, Recovery.FAILED)
        host.hold(ONE)
        eyes.scan_requests.add(ONE)
        await until_verdict(eyes, None)
        await until_on_record(host)


async def test_a_device_that_stayed_open_proves_nothing(host: SimulatedHost) -> None:
    host.write(ONE, "power_state", "D0")
    host.hold(ONE)
    async with kept(host) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FAILED)
        await until_verdict(eyes, Recovery.FAILED)
        for _ in range(3):
            await eyes.observer.rescan(frozenset({ONE}))
        assert eyes.now.functions[ONE].answers
        assert eyes.now.functions[ONE].recovery is Recovery.FAILED


async def test_one_that_had_fallen_and_answers_has_come_back(host: SimulatedHost) -> None:
    host.write(ONE, "power_state", "D0")
    host.hold(ONE)
    async with kept(host) as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FALLEN)
        with anyio.fail_after(5):
            while eyes.scan_requests.recoveries:
                await eyes.scan_requests.verdicts.newer(eyes.scan_requests.verdicts.version)


async def test_a_verdict_that_cannot_be_put_on_disk_counts_all_the_same(host: SimulatedHost) -> None:
    host.write_file("/run/nodeagent", "no directory")
    scan_requests = ScanRequests()
    scan_requests.recovery(ONE, Recovery.FAILED)
    with pytest.raises(KernelRefused, match="/run/nodeagent/"):
        await Recoveries(Root(host.directory), scan_requests, 120.0).run()
    assert scan_requests.recoveries == {ONE: Recovery.FAILED}
