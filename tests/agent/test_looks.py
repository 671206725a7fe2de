# SPDX-License-Identifier: Apache-2.0
"""Who was seen to have a device open is remembered, also by looks that are made at the same time."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.looks import Looks
from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost

GPU = PciFunction(PciAddress("0000:20:00.0"), group=GroupNumber(20), inode=1)
ALL = frozenset({GPU.id})


def process(host: SimulatedHost, *, flags: int = 0, state: str = "S") -> None:
    """A process of the host; proc_pid_stat(5)."""
    files.directory(host.path("/proc/4711/fd"))
    host.write_file("/proc/4711/stat", f"4711 (qemu) {state} 1 4711 4711 0 -1 {flags} {'0 ' * 10}1 0 0")


@pytest.mark.parametrize("before", ["unknown", "known"])
async def test_who_is_seen_while_an_older_look_goes_on_is_not_forgotten_by_that(
    tmp_path: Path, before: str
) -> None:
    """``known``: who had closed it, and opens it again."""
    host = SimulatedHost(tmp_path)
    host.add_function(
        GPU.address, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=20
    )
    process(host)
    looks = Looks(Root(host.directory), Timeouts())
    if before == "known":
        host.tree.link("/proc/4711/fd/7", "/dev/vfio/20")
        await looks.at_all([GPU], ALL)
        host.tree.remove("/proc/4711/fd/7")
    slow = host.path("/proc/4712/stat")
    files.directory(host.path("/proc/4712/fd"))
    os.mkfifo(slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(looks.at_all, [GPU], ALL)
        told = await threads.call(os.open, slow, os.O_WRONLY)  # the look at all files has come to this one
        host.tree.link("/proc/4711/fd/7", "/dev/vfio/20")
        await looks.by_names([GPU], ALL)
        process(host, flags=0x4, state="D")
        host.tree.remove("/proc/4711/fd/7")
        host.tree.remove("/proc/4712/stat")
        os.close(told)
    assert (await looks.at_all([GPU], ALL)).openers == {GPU.id: ("process 4711 (?)",)}


async def test_who_was_seen_by_an_older_look_alone_is_forgotten_by_the_next(tmp_path: Path) -> None:
    """He has the node under another name, so that a look at all files tells; the older one takes its time."""
    host = SimulatedHost(tmp_path)
    host.add_function(
        GPU.address, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=20
    )
    process(host)
    os.link(host.path("/dev/vfio/20"), host.path("/dev/alias"))
    host.tree.link("/proc/4711/fd/7", "/dev/alias")
    looks, newer = Looks(Root(host.directory), Timeouts()), list[object]()
    await looks.at_all([GPU], ALL)
    slow = host.path("/proc/4712/stat")
    files.directory(host.path("/proc/4712/fd"))
    os.mkfifo(slow)

    async def look() -> None:
        newer.append((await looks.at_all([GPU], ALL)).openers)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(looks.at_all, [GPU], ALL)
        told = await threads.call(os.open, slow, os.O_WRONLY)  # it has seen him, and has come to this one
        host.tree.remove("/proc/4711/fd/7")
        tasks.start_soon(look)
        await anyio.wait_all_tasks_blocked()
        host.tree.remove("/proc/4712/stat")
        os.close(told)
    assert newer == [{}]


async def test_what_has_left_the_host_is_not_remembered(tmp_path: Path) -> None:
    """Under the same id another one may come, whose nodes are those of before."""
    host = SimulatedHost(tmp_path)
    host.add_function(
        GPU.address, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=20
    )
    process(host)
    host.tree.link("/proc/4711/fd/7", "/dev/vfio/20")
    looks, here = Looks(Root(host.directory), Timeouts()), Host(functions={GPU.address: GPU})
    await looks.at_all([GPU], ALL)
    assert looks.remembered(here) == [GPU]
    assert looks.remembered(Host()) == []
    assert looks.remembered(here) == []
