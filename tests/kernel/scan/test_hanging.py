# SPDX-License-Identifier: Apache-2.0
"""Scans of hosts that do not answer: FIFOs stand for attributes whose reading sleeps in the kernel."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.readers import NOT_READABLE
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.hearing import Heard
from tests.kernel.requesting import HeardScanRequests
from tests.sim import fifos, hosts

DEADLINE = 0.4
HANGING = hosts.address(3)
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path, 40, 2)


@pytest.fixture
def recovered() -> Heard[str | None]:
    return Heard()


@pytest.fixture
def runner(host: SimulatedHost, tmp_path: Path, recovered: Heard[str | None]) -> Scanner:
    return Scanner(Root(tmp_path), HeardScanRequests(recovered), deadline=DEADLINE, timeouts=Timeouts())


async def test_a_scan_sees_all_and_shares_what_is_the_same(runner: Scanner, host: SimulatedHost) -> None:
    before = await runner.scan(None, Host(), (), {})
    assert len(before.functions) == 40
    assert await runner.scan(None, before, (), {}) is before
    host.hold(HANGING)
    after = await runner.scan(frozenset({HANGING}), before, (), {PciAddress(HANGING): Recovery.FAILED})
    assert after.functions[PciAddress(HANGING)].enable == 1
    assert after.functions[PciAddress(HANGING)].recovery is Recovery.FAILED
    assert after.groups is before.groups


async def test_a_hanging_read_costs_one_device(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    before = await runner.scan(None, Host(), (), {})
    fifos.hang(host, HANGING, "enable")
    host.hold(hosts.address(20))
    started = time.monotonic()
    after = await runner.scan(None, before, (), {})
    assert DEADLINE <= time.monotonic() - started < 4 * DEADLINE
    stuck = after.functions[PciAddress(HANGING)]
    assert stuck.unreadable == NOT_READABLE
    assert (stuck.device, stuck.group) == ("1001", 3)
    assert after.functions[PciAddress(hosts.address(20))].enable == 1
    assert [f.address for f in after.functions.values() if f.unreadable] == [HANGING]
    assert list(runner.stuck) == [HANGING]
    fifos.unhang(host, HANGING, "enable")
    await recovered.until_told(HANGING)
    assert not runner.stuck
    again = await runner.scan(frozenset({HANGING}), after, (), {})
    assert again.functions[PciAddress(HANGING)].unreadable is None
    assert again.functions[PciAddress(hosts.address(20))] is after.functions[PciAddress(hosts.address(20))]


async def test_a_device_in_which_a_thread_is_stuck_is_not_touched_again(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    fifos.hang(host, HANGING, "enable")
    first = await runner.scan(None, Host(), (), {})
    assert first.functions[PciAddress(HANGING)].device is None
    with anyio.fail_after(DEADLINE):
        second = await runner.scan(None, first, (), {})
        third = await runner.scan(frozenset({HANGING, hosts.address(4)}), second, (), {})
    assert third.functions[PciAddress(HANGING)].unreadable == NOT_READABLE
    fifos.unhang(host, HANGING, "enable")
    await recovered.until_told(HANGING)
    assert recovered.all == [HANGING]


async def test_each_hanging_device_takes_one_deadline_and_only_once(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    hanging = [hosts.address(number) for number in range(3)]
    for address in hanging:
        fifos.hang(host, address, "modalias")
    started = time.monotonic()
    found = await runner.scan(None, Host(), (), {})
    assert 3 * DEADLINE <= time.monotonic() - started < 6 * DEADLINE
    with anyio.fail_after(DEADLINE):
        found = await runner.scan(None, found, (), {})
    unreadable = [f.address for f in found.functions.values() if f.unreadable]
    assert unreadable == hanging
    for address in hanging:
        fifos.unhang(host, address, "modalias")
    await recovered.until(lambda told: sorted(str(key) for key in told) == hanging)


async def test_the_loop_goes_on_while_a_scan_hangs(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    fifos.hang(host, HANGING, "enable")
    turns = 0
    async with anyio.create_task_group() as group:

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.sleep(0.005)
                turns += 1

        group.start_soon(count)
        await runner.scan(None, Host(), (), {})
        group.cancel_scope.cancel()
    assert turns > 10
    fifos.unhang(host, HANGING, "enable")
    await recovered.until_told(HANGING)


async def test_a_scan_that_is_given_up_early_leaves_the_device_known_as_stuck(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    fifos.hang(host, HANGING, "enable")
    with anyio.fail_after(10.0):
        while not runner.stuck:  # on a loaded machine a scan does not come as far as the device
            with anyio.move_on_after(DEADLINE / 2) as scope:
                await runner.scan(None, Host(), (), {})
            assert scope.cancelled_caught
    assert list(runner.stuck) == [HANGING]
    fifos.unhang(host, HANGING, "enable")
    await recovered.until_told(HANGING)
    found = await runner.scan(None, Host(), (), {})
    assert found.functions[PciAddress(HANGING)].unreadable is None


async def test_two_scans_at_once_do_not_disturb_each_other(runner: Scanner, host: SimulatedHost) -> None:
    found: list[Host] = []

    async def one() -> None:
        found.append(await runner.scan(None, Host(), (), {}))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    assert found[0] == found[1]


async def test_a_hanging_group_keeps_its_last_known_members(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    before = await runner.scan(None, Host(), (), {})
    group = before.functions[PciAddress(HANGING)].group
    assert group is not None
    path = host.path(f"/sys/kernel/iommu_groups/{group}/type")
    fifos.replace_by_fifo(path)
    after = await runner.scan(None, before, (), {})
    assert after.groups[group] is before.groups[group]
    assert list(runner.stuck) == [str(group)]
    fifos.replace_fifo(path, b"DMA\n")
    await recovered.until_told(str(group))


async def test_a_hanging_mdev_is_unreadable_and_keeps_what_was_known(
    runner: Scanner, host: SimulatedHost, recovered: Heard[str | None]
) -> None:
    name = mdev_below(Path(host.path(f"/sys/bus/pci/devices/{HANGING}")), Path(host.path("/sys/bus/mdev")))
    before = await runner.scan(None, Host(), (), {})
    fifos.replace_by_fifo(str(name))
    after = await runner.scan(None, before, (), {})
    assert before.mdevs[UUID].type_name == "GRID T4-8A"
    assert after.mdevs[UUID] == before.mdevs[UUID]._replace(unreadable=NOT_READABLE)
    fifos.replace_fifo(str(name), b"GRID T4-8A\n")
    await recovered.until_told(UUID)
    assert (await runner.scan(frozenset({UUID}), after, (), {})).mdevs == before.mdevs


def mdev_below(parent: Path, bus: Path) -> Path:
    """Make an mdev; the file with the name of its type."""
    kind = parent.resolve() / "mdev_supported_types/nvidia-228"
    instance = parent.resolve() / UUID
    kind.mkdir(parents=True)
    instance.mkdir()
    (kind / "name").write_text("GRID T4-8A\n")
    (instance / "mdev_type").symlink_to(kind)
    (bus / "devices").mkdir(parents=True)
    (bus / "devices" / UUID).symlink_to(instance)
    return kind / "name"


async def test_a_list_that_cannot_be_had_is_an_error_in_bounded_time(
    tmp_path: Path, recovered: Heard[str | None]
) -> None:
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    os.mkfifo(release)
    runner = Scanner(Root(tmp_path), HeardScanRequests(recovered), deadline=DEADLINE, timeouts=Timeouts())
    with anyio.fail_after(4 * DEADLINE), pytest.raises(KernelRefused):
        await runner.scan(None, Host(), (), {})
    with anyio.fail_after(4 * DEADLINE), pytest.raises(KernelRefused):
        await runner.scan(None, Host(), (), {})
    release.write_text("6.12\n")
    await recovered.until_told(None)
    release.unlink()
    assert (await runner.scan(None, Host(), (), {})).release is None


def _reading() -> int:
    """Threads that are making a list of what is to be read."""
    return sum(thread.name.endswith("_Reads.run") for thread in threading.enumerate())


async def test_a_listing_that_was_given_up_early_is_not_started_twice(
    tmp_path: Path, recovered: Heard[str | None]
) -> None:
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    os.mkfifo(release)
    runner = Scanner(Root(tmp_path), HeardScanRequests(recovered), deadline=DEADLINE, timeouts=Timeouts())
    before = _reading()
    for _ in range(3):
        with anyio.move_on_after(0.02), suppress(KernelRefused):
            await runner.scan(None, Host(), (), {})
    assert _reading() == before + 1
    release.write_text("6.12\n")
    await recovered.until_told(None)
    release.unlink()
    assert (await runner.scan(None, Host(), (), {})).functions == {}
