# SPDX-License-Identifier: Apache-2.0
"""From Wakes to the newest Host, on simulated hosts: bursts, single looks, names, verdicts, fresh looks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent.agent.observe import Observer
from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from nodeagent.base.watching import Watcher
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.sim import files, nodes
from nodeagent.sim.host import SimulatedHost
from tests.conftest import Said

ONE, TWO = (PciAddress(nodes.address(number)) for number in (0, 1))
LATER = 3600.0


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return nodes.many(tmp_path, 3)


@asynccontextmanager
async def observing(
    host: SimulatedHost, *, resync: float = LATER, events: bool = False
) -> AsyncIterator[Observer]:
    """An Observe that has had its first look; with ``events`` it hears of changes by itself."""
    watcher = Watcher()
    root = Root(host.directory)
    observe = Observer(root, watcher, resync=lambda: resync, node_paths=(), on_change=lambda: None)
    await observe.first()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observe.run)
        if events:
            tasks.start_soon(watcher.run)
            tasks.start_soon(observe.watch)
        yield observe
        tasks.cancel_scope.cancel()
    watcher.close()


async def until(observe: Observer, condition: Callable[[Host], bool]) -> Host:
    with anyio.fail_after(5):
        seen = -1
        while True:
            seen, found = await observe.host.newer(seen)
            if condition(found):
                return found


def function(observe: Observer, address: PciAddress = ONE) -> PciFunction:
    return observe.host.get().functions[address]


async def test_the_first_look_sees_all_and_names_what_vfio_has(host: SimulatedHost) -> None:
    host.pci_ids("10de  NVIDIA Corporation\n\t1000  Made-up Card\n")
    async with observing(host) as observe:
        assert len(observe.host.get().functions) == 3
        assert observe.names.get() == {"10de": "NVIDIA Corporation", "10de:1000": "Made-up Card"}


async def test_vgpus_and_the_parents_of_mdevs_are_named_and_a_type_keeps_its_name(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    host.pci_ids("10de  NVIDIA Corporation\n8086  Intel Corporation\n")
    for address, vendor, driver in ((ONE, "10de", "nvidia"), (TWO, "8086", "i915")):
        host.add_function(address, vendor=vendor, device="1000", pci_class="030000", driver=driver, group=1)
    vgpu_on(host, "0\n", "1147 : NVIDIA A40-1B\n")
    mdev_on(host, TWO)
    async with observing(host) as observe:
        wanted = {"10de": "NVIDIA Corporation", "8086": "Intel Corporation", "vgpu:1147": "NVIDIA A40-1B"}
        assert observe.names.get() == wanted
        vgpu_on(host, "1147\n", "")
        observe.wake(frozenset({ONE}))
        await until(observe, lambda found: found.functions[ONE].vgpu_type == "1147")
        assert observe.names.get() == wanted


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
    async with observing(host) as observe:
        before = observe.host.get()
        host.write(ONE, "power_state", "D3hot")
        host.write(TWO, "power_state", "D3hot")
        observe.wake(frozenset({ONE}))
        await until(observe, lambda found: found is not before and found.functions != before.functions)
        assert function(observe).power_state == "D3hot"
        assert function(observe, TWO) is before.functions[TWO]
        observe.wake()
        await until(observe, lambda found: found.functions[TWO].power_state == "D3hot")


async def test_a_burst_is_one_look(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        seen = observe.looked.version
        for address in (ONE, TWO, ONE, TWO):
            observe.wake(frozenset({address}))
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(5):
            await observe.looked.newer(seen)
        await anyio.wait_all_tasks_blocked()
        assert observe.looked.version == seen + 1


async def test_a_look_that_finds_nothing_new_wakes_nobody(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        seen = observe.looked.get(), observe.host.version
        await observe.look_at(frozenset({ONE}))
        assert (observe.looked.get(), observe.host.version) == (seen[0] + 1, seen[1])


async def test_a_burst_that_does_not_end_is_looked_at_all_the_same(host: SimulatedHost) -> None:
    async with observing(host) as observe, anyio.create_task_group() as tasks:

        async def storm() -> None:
            while True:
                observe.wake(frozenset({ONE}))
                await anyio.sleep(0.002)

        seen = observe.looked.version
        tasks.start_soon(storm)
        with anyio.fail_after(2):
            await observe.looked.newer(seen)
        tasks.cancel_scope.cancel()


@pytest.mark.shows("NG-6")
async def test_the_slow_timer_looks_at_everything(host: SimulatedHost) -> None:
    async with observing(host, resync=0.1) as observe:
        host.write(ONE, "power_state", "D3hot")
        await until(observe, lambda found: found.functions[ONE].power_state == "D3hot")


async def test_a_change_of_the_host_is_noticed(host: SimulatedHost) -> None:
    async with observing(host, events=True) as observe:
        host.bind(ONE, "nouveau")
        await until(observe, lambda found: found.functions[ONE].driver == "nouveau")
        host.unplug(TWO)
        await until(observe, lambda found: TWO not in found.functions)
        assert observe.statistics.source == "tree"


async def test_where_events_come_from_nothing_is_polled(host: SimulatedHost, said: Said) -> None:
    async with observing(host, events=True) as observe:
        await observe.listening()
        assert said(log.EVENTS_UNAVAILABLE) == []
        before = observe.looks
        await observe.refresh([ONE])
        assert observe.looks > before


async def test_other_nodes_are_watched_when_the_settings_change(host: SimulatedHost) -> None:
    host.node("/dev/kvm")
    async with observing(host) as observe:
        assert "/dev/kvm" not in observe.host.get().nodes
        observe.set_nodes(["/dev/kvm"])
        await until(observe, lambda found: "/dev/kvm" in found.nodes)


async def test_what_is_as_the_host_says_needs_no_look(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        before = observe.looks
        await observe.glance([ONE, TWO])
        assert observe.looks == before


async def test_what_has_changed_is_in_the_host_before_the_answer(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        host.bind(ONE, "nouveau")
        with anyio.fail_after(5):
            await observe.glance([ONE])
        assert function(observe).driver == "nouveau"


async def test_a_glance_that_gets_no_answer_is_shown_by_the_host_meanwhile(host: SimulatedHost) -> None:
    async with observing(host) as observe, anyio.create_task_group() as tasks:
        host.hang(ONE, "enable")
        tasks.start_soon(observe.glance, [ONE])
        found = await until(observe, lambda found: found.functions[ONE].unreadable is not None)
        assert found.functions[TWO].unreadable is None
        host.unhang(ONE, "enable")
        await until(observe, lambda found: found.functions[ONE].unreadable is None)


async def test_a_refresh_waits_for_a_look_at_functions_and_at_nothing_else(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        host.hold(ONE)
        with anyio.fail_after(5):
            await observe.refresh([ONE, "some-uuid"])
        assert function(observe).enable == 1
        before = observe.looks
        await observe.refresh(["some-uuid"])
        assert observe.looks == before


async def test_a_verdict_of_the_kernel_is_shown_until_the_function_is_unbound(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        observe.wakes.recovery(ONE, Recovery.FAILED)
        await until(observe, lambda found: found.functions[ONE].recovery is Recovery.FAILED)
        host.bind(ONE, None)
        observe.wake(frozenset({ONE}))
        await until(observe, lambda found: found.functions[ONE].driver is None)
        host.bind(ONE, "vfio-pci")
        observe.wake(frozenset({ONE}))
        await until(observe, lambda found: found.functions[ONE].driver == "vfio-pci")
        assert function(observe).recovery is None


async def test_a_verdict_outlives_later_looks(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        observe.wakes.recovery(ONE, Recovery.FAILED)
        await until(observe, lambda found: found.functions[ONE].recovery is Recovery.FAILED)
        host.write(ONE, "power_state", "D3hot")
        for _ in range(2):
            await observe.look_at(frozenset({ONE}))
        assert (function(observe).power_state, function(observe).recovery) == ("D3hot", Recovery.FAILED)


async def test_a_verdict_can_be_taken_back(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        observe.wakes.recovery(ONE, Recovery.RUNNING)
        await until(observe, lambda found: found.functions[ONE].recovery is Recovery.RUNNING)
        observe.wakes.recovery(ONE, None)
        await until(observe, lambda found: found.functions[ONE].recovery is None)


async def test_a_function_that_hangs_costs_that_function_and_comes_back(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        host.hang(ONE, "vendor")
        observe.wake()
        found = await until(observe, lambda found: found.functions[ONE].unreadable is not None)
        assert found.functions[TWO].unreadable is None
        assert observe.stuck == (ONE,)
        host.unhang(ONE, "vendor")
        await until(observe, lambda found: found.functions[ONE].unreadable is None)


async def test_a_list_that_hangs_leaves_the_host_as_it_was_until_it_answers(
    host: SimulatedHost, said: Said
) -> None:
    release = host.path("/proc/sys/kernel/osrelease")
    host.write_file("/proc/sys/kernel/osrelease", "6.12")
    async with observing(host) as observe:
        files.replace_by_fifo(release)
        host.unplug(TWO)
        seen = observe.looked.version
        observe.wake()
        with anyio.fail_after(5):
            await observe.looked.newer(seen)
        assert TWO in observe.host.get().functions
        assert [event["what"] for event in said(log.HOST_READ_SLOW)] == ["/sys"]
        files.replace_fifo(release, b"6.12\n")
        await until(observe, lambda found: TWO not in found.functions)


async def test_a_glance_that_finds_a_change_which_cannot_be_read_is_refused(host: SimulatedHost) -> None:
    release = host.path("/proc/sys/kernel/osrelease")
    async with observing(host) as observe:
        files.replace_by_fifo(release)
        seen = observe.looked.version
        observe.wake()
        with anyio.fail_after(5):
            await observe.looked.newer(seen)
        host.bind(ONE, "nouveau")
        with anyio.fail_after(5), pytest.raises(KernelRefused):
            await observe.glance([ONE])
        files.replace_fifo(release, b"6.12\n")
        await until(observe, lambda found: found.functions[ONE].driver == "nouveau")
        await observe.glance([ONE])


async def test_fatal_errors_from_before_the_start_are_warned_of(host: SimulatedHost, said: Said) -> None:
    host.write(ONE, "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 2")
    async with observing(host) as observe:
        await observe._warn_of_old_errors()
    event = said(log.AER_WARNING)[0]
    assert event["pci_address"] == ONE
    assert str(event["text"]).startswith("2 fatal")


async def test_counters_that_hang_do_not_keep_changes_from_being_seen(host: SimulatedHost) -> None:
    host.write(ONE, "aer_dev_fatal", "TOTAL_ERR_FATAL 0")
    host.hang(ONE, "aer_dev_fatal")
    async with observing(host) as observe:
        host.bind(TWO, "nouveau")
        observe.wake(frozenset({TWO}))
        await until(observe, lambda found: found.functions[TWO].driver == "nouveau")
    host.unhang(ONE, "aer_dev_fatal")


async def test_a_wake_that_comes_from_the_kernel_door_is_kept(host: SimulatedHost) -> None:
    async with observing(host) as observe:
        host.bind(ONE, "nouveau")
        observe.wakes.wake(ONE)
        await until(observe, lambda found: found.functions[ONE].driver == "nouveau")
