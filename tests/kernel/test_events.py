# SPDX-License-Identifier: Apache-2.0
"""Watching a simulated host: each change requests a scan by the key that makes a refresh see it.

The uevents of the running kernel are in test_uevents.py; here only that they are the source on a host.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kernel import uevents
from nodeagent.kernel.events import KernelEvents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests.base.test_watch import overflow
from tests.hearing import Heard
from tests.kernel.requesting import HeardScanRequests
from tests.namespaces import ALONE, namespaces
from tests.sim import hosts

GPU, NVME = "0000:3b:00.0", "0000:02:00.0"
EVERYTHING = None
Watched = tuple[SimulatedHost, Heard[str | None], KernelEvents]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """The demo's node, watched and quiet."""
    host = nodes.demo_node(tmp_path)
    heard: Heard[str | None] = Heard()
    watcher = DirectoryWatcher()
    scan_requests = HeardScanRequests(heard)
    watch = KernelEvents(Root(tmp_path), watcher, scan_requests, timeouts=Timeouts())
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        group.start_soon(watch.run)
        await heard.until_told(EVERYTHING)
        heard.clear()
        yield host, heard, watch
        group.cancel_scope.cancel()
    assert scan_requests.recoveries == {}
    watcher.close()


async def test_a_driver_that_lets_go_wakes_with_the_function_and_the_node(watched: Watched) -> None:
    host, heard, _ = watched
    for number in range(4):
        host.bind(f"0000:3b:00.{number}", None)
    await heard.until_told("0000:3b:00.3")
    await heard.until_told("/dev/vfio/10")
    assert EVERYTHING not in heard.all


async def test_keys_are_enough_for_a_refresh(watched: Watched, tmp_path: Path) -> None:
    host, heard, _ = watched
    scan = Scanner(Root(tmp_path), ScanRequests(), deadline=2.0, timeouts=Timeouts()).scan
    before = await scan(None, Host(), (), {})
    host.bind("0000:d8:01.0", "vfio-pci")
    host.unplug("0000:02:00.0")
    host.write(GPU, "enable", "1")
    host.begin_going_away("0000:af:00.0")
    await heard.until_told("0000:af:00.0")
    await heard.until_told("0000:02:00.0")
    await heard.until_told(GPU)
    await heard.until_told("0000:d8:01.0")
    named = frozenset(told for told in heard.all if told is not None)
    assert _now(await scan(named, before, (), {})) == _now(await scan(None, Host(), (), {}))


def _now(host: Host) -> Host:
    """Without what is remembered of earlier scans."""
    functions = {at: each._replace(idle=None, lowest=None) for at, each in host.functions.items()}
    return dataclasses.replace(host, functions=functions)


async def test_opening_a_device_wakes_nobody_as_with_the_kernel(watched: Watched) -> None:
    host, heard, _ = watched
    host.hold(GPU)
    host.write(NVME, "enable", "0")
    await heard.until_told(NVME)
    assert GPU not in heard.all


async def test_a_function_that_is_new_is_named_and_so_is_its_next_change(watched: Watched) -> None:
    host, heard, _ = watched
    host.add_function("0000:04:00.0", vendor="8086", device="10d3", pci_class="020000", group=20)
    await heard.until_told("0000:04:00.0")
    heard.clear()
    host.write("0000:04:00.0", "enable", "1")
    await heard.until_told("0000:04:00.0")


async def test_a_function_that_came_back_is_named_at_each_change(watched: Watched) -> None:
    host, heard, _ = watched
    host.unplug(NVME)
    await heard.until_told(NVME)
    host.plug(NVME)
    await heard.until(lambda told: told.count(NVME) > 1)
    host.bind(NVME, "vfio-pci")
    await heard.until_told("/dev/vfio/1")
    heard.clear()
    host.write(NVME, "enable", "1")
    await heard.until_told(NVME)


async def test_a_new_driver_wakes_everything_and_is_watched(watched: Watched) -> None:
    host, heard, _ = watched
    host.bind("0000:02:00.0", "mydriver")
    await heard.until_told(EVERYTHING)
    await heard.until_told("0000:02:00.0")


async def test_nodes_wake_when_they_are_asked_for(watched: Watched) -> None:
    host, heard, watch = watched
    watch.watch_rule_nodes(["/dev/kvm", "/dev/net/tun"])
    host.remove_node("/dev/kvm")
    await heard.until_told("/dev/kvm")
    host.node("/dev/unknown")
    host.node("/dev/net/tun")
    await heard.until(lambda told: EVERYTHING in told or "/dev/net/tun" in told)
    assert "/dev/unknown" not in heard.all
    watch.watch_rule_nodes([])
    heard.clear()
    host.node("/dev/kvm")
    host.remove_node("/dev/vfio/vfio")
    await heard.until_told("/dev/vfio/vfio")
    assert "/dev/kvm" not in heard.all


@pytest.mark.parametrize("directory", ["dev/vfio", "dev/net"])
async def test_a_directory_of_nodes_that_comes_with_its_nodes_wakes_everything(
    watched: Watched, tmp_path: Path, directory: str
) -> None:
    _, heard, watch = watched
    there = tmp_path / directory
    there.mkdir(exist_ok=True)
    watch.watch_rule_nodes(["/dev/net/tun"])
    there.rename(tmp_path / "elsewhere")
    await heard.until_told(EVERYTHING)
    heard.clear()
    (tmp_path / "elsewhere").rename(there)
    await heard.until_told(EVERYTHING)


async def test_an_mdev_wakes_with_its_uuid(watched: Watched, tmp_path: Path) -> None:
    _, heard, _ = watched
    uuid = "00000001-0000-4000-8000-000000000001"
    (tmp_path / "sys/bus/mdev/devices").mkdir(parents=True)
    await heard.until_told(EVERYTHING)
    (tmp_path / "sys/bus/mdev/devices" / uuid).symlink_to("../../../devices/virtual/mtty/mtty")
    await heard.until_told(uuid)


async def test_a_card_that_begins_to_offer_mdevs_wakes_everything(watched: Watched, tmp_path: Path) -> None:
    _, heard, _ = watched
    parents = tmp_path / "sys/class/mdev_bus"
    parents.mkdir(parents=True, exist_ok=True)
    await heard.until_told(EVERYTHING)
    heard.clear()
    (parents / GPU).symlink_to(f"../../bus/pci/devices/{GPU}")
    await heard.until_told(EVERYTHING)


async def test_lost_events_of_inotify_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dev/vfio").mkdir(parents=True)
    heard: Heard[str | None] = Heard()
    watcher = DirectoryWatcher()
    watch = KernelEvents(Root(tmp_path), watcher, HeardScanRequests(heard), timeouts=Timeouts())
    await anyio.to_thread.run_sync(overflow, tmp_path / "dev/vfio")
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        await heard.until_told(EVERYTHING)
        group.cancel_scope.cancel()
    assert watch.statistics.lost == 1
    watcher.close()


async def test_the_source_of_a_tree_is_the_tree(watched: Watched) -> None:
    host, heard, watch = watched
    assert watch.statistics.source == "tree"
    before = watch.statistics.events
    host.write(GPU, "enable", "1")
    await heard.until_told(GPU)
    assert watch.statistics.events > before
    assert watch.statistics.unwatched == 0


async def test_the_number_of_watches_does_not_grow_with_the_number_of_functions(tmp_path: Path) -> None:
    host = await anyio.to_thread.run_sync(hosts.many, tmp_path, 2000)
    heard: Heard[str | None] = Heard()
    watcher = DirectoryWatcher(str(tmp_path))
    watch = KernelEvents(Root(tmp_path), watcher, HeardScanRequests(heard), timeouts=Timeouts())
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        group.start_soon(watch.run)
        await heard.until_told(EVERYTHING)
        host.write(hosts.address(1999), "enable", "1")
        await heard.until_told(hosts.address(1999))
        group.cancel_scope.cancel()
    assert watcher.watches < 50
    watcher.close()


@pytest.mark.skipif(not namespaces(), reason="no user namespace to be had")
def test_where_no_uevents_arrive_devices_are_watched_and_the_rest_is_polled() -> None:
    command = [*ALONE, sys.executable, "-m", "tests.kernel.polling"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    told, buffer = done.stdout.splitlines()
    assert told == "poll True True"
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert int(buffer) == 2 * min(limit, uevents.BUFFER)  # the kernel doubles it for its own use


async def test_on_a_host_the_source_is_uevents_or_polling() -> None:
    heard: Heard[str | None] = Heard()
    watcher = DirectoryWatcher()
    watch = KernelEvents(Root(), watcher, HeardScanRequests(heard), timeouts=Timeouts())
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        group.start_soon(watch.run)
        await heard.until_told(EVERYTHING)
        assert watch.statistics.source in ("uevents", "poll")
        group.cancel_scope.cancel()
    watcher.close()
