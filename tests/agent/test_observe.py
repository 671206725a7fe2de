# SPDX-License-Identifier: Apache-2.0
"""From scan_requests to the newest Host, on simulated hosts: single scans, names, verdicts, fresh answers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent.agent import observe
from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import NodeRule, Spec
from nodeagent.sim.host import SimulatedHost
from tests.agent.parts import Eyes, settings
from tests.conftest import Said
from tests.sim import fifos, hosts

ONE, TWO = (PciAddress(hosts.address(number)) for number in (0, 1))


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path, 3)


def function(eyes: Eyes, address: PciAddress = ONE) -> PciFunction:
    return eyes.now.functions[address]


async def test_the_first_look_sees_all_and_names_what_vfio_has(host: SimulatedHost) -> None:
    host.write_file("/usr/share/hwdata/pci.ids", "10de  NVIDIA Corporation\n\t1000  Made-up Card")
    async with Eyes(host).open() as eyes:
        assert len(eyes.now.functions) == 3
        assert eyes.snapshots.now.names == {"10de": "NVIDIA Corporation", "10de:1000": "Made-up Card"}


async def test_vgpus_and_the_parents_of_mdevs_are_named_and_a_type_keeps_its_name(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    host.write_file("/usr/share/hwdata/pci.ids", "10de  NVIDIA Corporation\n8086  Intel Corporation")
    for address, vendor, driver in ((ONE, "10de", "nvidia"), (TWO, "8086", "i915")):
        host.add_function(address, vendor=vendor, device="1000", pci_class="030000", driver=driver, group=1)
    vgpu_on(host, "0\n", "1147 : NVIDIA A40-1B\n")
    mdev_on(host, TWO)
    async with Eyes(host).open() as eyes:
        wanted = {
            "10de": "NVIDIA Corporation",
            "8086": "Intel Corporation",
            "vgpu:1147": "NVIDIA A40-1B",
            "8086:1000": "82542 Gigabit Ethernet Controller (Fiber)",
        }
        assert eyes.snapshots.now.names == wanted
        vgpu_on(host, "1147\n", "")
        eyes.scan_requests.add(ONE)
        await eyes.until(lambda found: found.functions[ONE].vgpu_type == "1147")
        assert eyes.snapshots.now.names == wanted


def vgpu_on(host: SimulatedHost, current: str, creatable: str) -> None:
    """The files of NVIDIA's driver for vGPU types."""
    directory = Path(host.path(f"/sys/bus/pci/devices/{ONE}/nvidia"))
    directory.mkdir(exist_ok=True)
    (directory / "current_vgpu_type").write_text(current)
    (directory / "creatable_vgpu_types").write_text(creatable)


def mdev_on(host: SimulatedHost, parent: str) -> None:
    """An mdev below the function, without type and driver."""
    uuid = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
    real = Path(host.path(f"/sys/bus/pci/devices/{parent}")).resolve()
    (real / uuid).mkdir()
    bus = Path(host.path("/sys/bus/mdev/devices"))
    bus.mkdir(parents=True)
    (bus / uuid).symlink_to(os.path.relpath(real / uuid, bus))


async def test_a_wake_looks_again_at_what_it_names_only(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        before = eyes.now
        host.write(ONE, "power_state", "D3hot")
        host.write(TWO, "power_state", "D3hot")
        eyes.scan_requests.add(ONE)
        await eyes.until(lambda found: found is not before and found.functions != before.functions)
        assert function(eyes).power_state == "D3hot"
        assert function(eyes, TWO) is before.functions[TWO]
        eyes.scan_requests.add(None)
        await eyes.until(lambda found: found.functions[TWO].power_state == "D3hot")


async def test_a_burst_is_a_scan_at_once_and_one_of_what_follows(host: SimulatedHost) -> None:
    """The first wake after quiet waits for nothing: one more scan costs less than a late list."""
    async with Eyes(host).open() as eyes:
        await anyio.sleep_until(anyio.current_time() + 2 * Timeouts().event_burst_gap)
        before = eyes.scans
        eyes.scan_requests.add(ONE)
        await anyio.lowlevel.checkpoint()
        for address in (TWO, ONE, TWO):
            eyes.scan_requests.add(address)
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(5):
            while eyes.observer.scanned.get().number < before + 2:
                await eyes.observer.scanned.newer(eyes.observer.scanned.version)
        await anyio.wait_all_tasks_blocked()
        assert eyes.scans == before + 2


async def test_a_scan_that_finds_nothing_new_wakes_nobody(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        number, version = eyes.observer.scanned.get().number, eyes.snapshots.version
        await eyes.observer.rescan(frozenset({ONE}))
        assert (eyes.observer.scanned.get().number, eyes.snapshots.version) == (number + 1, version)


async def test_a_burst_that_does_not_end_is_looked_at_all_the_same(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes, anyio.create_task_group() as tasks:

        async def storm() -> None:
            while True:
                eyes.scan_requests.add(ONE)
                await anyio.sleep(0.002)

        seen = eyes.observer.scanned.version
        tasks.start_soon(storm)
        with anyio.fail_after(2):
            await eyes.observer.scanned.newer(seen)
        tasks.cancel_scope.cancel()


async def test_the_slow_timer_looks_at_everything(host: SimulatedHost) -> None:
    async with Eyes(host, settings=settings(resync=0.1)).open() as eyes:
        host.write(ONE, "power_state", "D3hot")
        await eyes.until(lambda found: found.functions[ONE].power_state == "D3hot")


async def test_a_change_of_the_host_is_noticed(host: SimulatedHost) -> None:
    async with Eyes(host).open(events=True) as eyes:
        host.bind(ONE, "nouveau")
        await eyes.until(lambda found: found.functions[ONE].driver == "nouveau")
        host.unplug(TWO)
        await eyes.until(lambda found: TWO not in found.functions)
        assert eyes.events.statistics.source == "tree"


async def test_where_events_come_from_nothing_is_polled(host: SimulatedHost, said: Said) -> None:
    async with Eyes(host).open(events=True) as eyes:
        await eyes.events.wait_until_listening(3600.0)
        assert said(log.EVENTS_UNAVAILABLE) == []
        before = eyes.scans
        await eyes.observer.refresh([ONE])
        assert eyes.scans > before


async def test_the_nodes_that_are_desired_are_seen_at_the_next_scan(host: SimulatedHost) -> None:
    host.node("/dev/kvm")
    async with Eyes(host).open() as eyes:
        assert "/dev/kvm" not in eyes.now.nodes
        spec = Spec(rules=(NodeRule("example.com/kvm", "/dev/kvm"),))
        eyes.snapshots.publish(replace(eyes.snapshots.now, spec=spec))
        await eyes.observer.rescan(frozenset({ONE}))
        assert "/dev/kvm" in eyes.now.nodes


async def test_what_is_as_the_host_says_needs_no_look(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        before = eyes.scans
        await eyes.observer.recheck([ONE, TWO])
        assert eyes.scans == before


async def test_what_has_changed_is_in_the_host_before_the_answer(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        host.bind(ONE, "nouveau")
        with anyio.fail_after(5):
            await eyes.observer.recheck([ONE])
        assert function(eyes).driver == "nouveau"


async def test_a_glance_that_gets_no_answer_is_shown_by_the_host_meanwhile(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes, anyio.create_task_group() as tasks:
        fifos.hang(host, ONE, "enable")
        tasks.start_soon(eyes.observer.recheck, [ONE])
        found = await eyes.until(lambda found: found.functions[ONE].unreadable is not None)
        assert found.functions[TWO].unreadable is None
        fifos.unhang(host, ONE, "enable")
        await eyes.until(lambda found: found.functions[ONE].unreadable is None)


async def test_a_refresh_waits_for_a_look_at_functions_and_at_nothing_else(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        host.hold(ONE)
        with anyio.fail_after(5):
            await eyes.observer.refresh([ONE, "some-uuid"])
        assert function(eyes).enable == 1
        before = eyes.scans
        await eyes.observer.refresh(["some-uuid"])
        assert eyes.scans == before


async def test_a_verdict_of_the_kernel_is_shown_until_the_function_is_unbound(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FAILED)
        await eyes.until(lambda found: found.functions[ONE].recovery is Recovery.FAILED)
        host.bind(ONE, None)
        eyes.scan_requests.add(ONE)
        await eyes.until(lambda found: found.functions[ONE].driver is None)
        host.bind(ONE, "vfio-pci")
        eyes.scan_requests.add(ONE)
        await eyes.until(lambda found: found.functions[ONE].driver == "vfio-pci")
        assert function(eyes).recovery is None


async def test_a_verdict_outlives_later_looks(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.FAILED)
        await eyes.until(lambda found: found.functions[ONE].recovery is Recovery.FAILED)
        host.write(ONE, "power_state", "D3hot")
        for _ in range(2):
            await eyes.observer.rescan(frozenset({ONE}))
        assert (function(eyes).power_state, function(eyes).recovery) == ("D3hot", Recovery.FAILED)


async def test_a_verdict_can_be_taken_back(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        eyes.scan_requests.recovery(ONE, Recovery.RUNNING)
        await eyes.until(lambda found: found.functions[ONE].recovery is Recovery.RUNNING)
        eyes.scan_requests.recovery(ONE, None)
        await eyes.until(lambda found: found.functions[ONE].recovery is None)


async def test_a_function_that_hangs_costs_that_function_and_comes_back(host: SimulatedHost) -> None:
    async with Eyes(host).open() as eyes:
        fifos.hang(host, ONE, "modalias")
        eyes.scan_requests.add(None)
        found = await eyes.until(lambda found: found.functions[ONE].unreadable is not None)
        assert found.functions[TWO].unreadable is None
        assert eyes.observer.status.not_readable == (ONE,)
        fifos.unhang(host, ONE, "modalias")
        await eyes.until(lambda found: found.functions[ONE].unreadable is None)


@pytest.mark.parametrize("gone", [(), (TWO,)], ids=["alone", "another has gone meanwhile"])
async def test_what_has_answered_a_recheck_is_readable_after_it(
    host: SimulatedHost, gone: tuple[PciAddress, ...]
) -> None:
    async with Eyes(host).open() as eyes:
        fifos.hang(host, ONE, "enable")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(eyes.observer.recheck, (ONE, TWO))
            await eyes.until(lambda found: found.functions[ONE].unreadable is not None)
            for address in gone:
                host.unplug(address)
            fifos.unhang(host, ONE, "enable")
        assert eyes.now.functions[ONE].unreadable is None


async def test_a_list_that_hangs_leaves_the_host_as_it_was_until_it_answers(
    host: SimulatedHost, said: Said
) -> None:
    release = host.path("/proc/sys/kernel/osrelease")
    host.write_file("/proc/sys/kernel/osrelease", "6.12")
    async with Eyes(host).open() as eyes:
        fifos.replace_by_fifo(release)
        host.unplug(TWO)
        seen = eyes.observer.scanned.version
        eyes.scan_requests.add(None)
        with anyio.fail_after(5):
            await eyes.observer.scanned.newer(seen)
        assert TWO in eyes.now.functions
        eyes.scan_requests.add(None)
        seen = eyes.observer.scanned.version
        with anyio.fail_after(5):
            await eyes.observer.scanned.newer(seen)
        assert [event["object"] for event in said(log.HOST_READ_SLOW)] == ["/sys"], "said once"
        fifos.replace_fifo(release, b"6.12\n")
        await eyes.until(lambda found: TWO not in found.functions)
        assert [event["object"] for event in said(log.HOST_READ_RECOVERED)] == ["/sys"]


async def test_a_glance_that_finds_a_change_which_cannot_be_read_is_refused(host: SimulatedHost) -> None:
    release = host.path("/proc/sys/kernel/osrelease")
    async with Eyes(host).open() as eyes:
        fifos.replace_by_fifo(release)
        seen = eyes.observer.scanned.version
        eyes.scan_requests.add(None)
        with anyio.fail_after(5):
            await eyes.observer.scanned.newer(seen)
        host.bind(ONE, "nouveau")
        with anyio.fail_after(5), pytest.raises(KernelRefused):
            await eyes.observer.recheck([ONE])
        fifos.replace_fifo(release, b"6.12\n")
        await eyes.until(lambda found: found.functions[ONE].driver == "nouveau")
        await eyes.observer.recheck([ONE])


async def test_fatal_errors_from_before_the_start_are_warned_of(host: SimulatedHost, said: Said) -> None:
    host.write(ONE, "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 2")
    async with Eyes(host).open() as eyes:
        await observe.warn_of_old_errors(Root(host.directory), eyes.snapshots, Timeouts().device_read)
    event = said(log.AER_WARNING)[0]
    assert event["pci_address"] == ONE
    assert str(event["text"]).startswith("2 fatal")


async def test_counters_that_hang_do_not_keep_changes_from_being_seen(host: SimulatedHost) -> None:
    host.write(ONE, "aer_dev_fatal", "TOTAL_ERR_FATAL 0")
    fifos.hang(host, ONE, "aer_dev_fatal")
    async with Eyes(host).open() as eyes:
        host.bind(TWO, "nouveau")
        eyes.scan_requests.add(TWO)
        await eyes.until(lambda found: found.functions[TWO].driver == "nouveau")
    fifos.unhang(host, ONE, "aer_dev_fatal")
