# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's sriov-manage: run once, seen to have worked, and refused in words that help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.change import Action, run_sriov_manage
from nodeagent.sim.host import SimulatedHost
from tests.facts import names
from tests.sim.vfs import SimulatedVfs, add_sriov_manage

GPU = "0000:3b:00.0"
RUN = """
import sys
from nodeagent.kernel.apply import sriov
from nodeagent.kernel.root import Root
sriov.run_tool(Root(sys.argv[1]), sys.argv[2], make=True)
"""
SLOW_TOOL = """#!/bin/sh
exec 3> {root}/under-way
read word < {root}/go
echo "it is being made"
echo made > {root}/made
"""
MAKE, REMOVE = run_sriov_manage(GPU, 4), run_sriov_manage(GPU, 0)


@pytest.fixture
async def vfs(tmp_path: Path) -> AsyncIterator[SimulatedVfs]:
    """An A40 that can have four VFs, and the tool."""
    host = SimulatedHost(tmp_path)
    host.add_function(
        GPU, vendor="10de", device="2235", pci_class="030200", driver="nvidia", group=1, sriov=4
    )
    add_sriov_manage(host)
    watcher = DirectoryWatcher()
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        yield SimulatedVfs(host, GPU, watcher, group=50, driver="nvidia")
        group.cancel_scope.cancel()


async def change(root: Path, action: Action, patience: float = 5.0) -> None:
    timeouts = Timeouts()._replace(write_effect=patience)
    await threads.call(actions.apply, Root(root), action, timeouts)


async def refusal(root: Path, action: Action) -> KernelRefused:
    with pytest.raises(KernelRefused) as caught:
        await change(root, action, 0.05)
    return caught.value


def asked(root: Path) -> str | None:
    return Root(root).text("/asked")


async def test_the_tool_makes_all_vfs_and_removes_them(vfs: SimulatedVfs, tmp_path: Path) -> None:
    counts = []
    for action in (MAKE, MAKE, REMOVE):
        await change(tmp_path, action)
        counts.append(len(vfs.made))
    assert counts == [4, 4, 0]
    assert asked(tmp_path) == f"-e {GPU}\n-d {GPU}"


async def test_what_the_tool_says_last_is_told_when_it_fails(vfs: SimulatedVfs, tmp_path: Path) -> None:
    vfs.host.write_file("/refuses", "")
    error = await refusal(tmp_path, MAKE)
    names(error.what, f"-e {GPU}", 1, f"Cannot obtain unbindLock for {GPU}")
    assert "by hand" in error.hint


async def test_a_tool_that_does_nothing_or_cannot_be_run_is_a_refusal(
    vfs: SimulatedVfs, tmp_path: Path
) -> None:
    vfs.host.write_file("/usr/lib/nvidia/sriov-manage", "#!/bin/true")
    names((await refusal(tmp_path, MAKE)).what, "0 VFs")
    vfs.host.write_file("/usr/lib/nvidia/sriov-manage", "#!/no/such/shell")
    error = await refusal(tmp_path, MAKE)
    names(error.what, "/usr/lib/nvidia/sriov-manage", "No such file or directory")


async def test_it_is_not_run_where_mig_is_set_up_or_vfs_were_left_behind(
    vfs: SimulatedVfs, tmp_path: Path
) -> None:
    vfs.host.write_file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: A40\nDevice Minor: \t 3")
    vfs.host.write_file("/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", "DeviceFileMinor: 12")
    names((await refusal(tmp_path, MAKE)).what, "MIG")
    vfs.host.add_function(
        "0000:3b:00.4", vendor="10de", device="2235", pci_class="030200", group=9, physfn=GPU
    )
    vfs.host.unplug(GPU)
    vfs.host.plug(GPU)
    names((await refusal(tmp_path, MAKE)).what, "0000:3b:00.4")
    assert asked(tmp_path) is None


def test_a_tool_that_is_under_way_outlives_whoever_runs_it(tmp_path: Path) -> None:
    tool = tmp_path / "usr/lib/nvidia/sriov-manage"
    tool.parent.mkdir(parents=True)
    tool.write_text(SLOW_TOOL.format(root=tmp_path))
    tool.chmod(0o755)
    for name in ("under-way", "go"):
        os.mkfifo(tmp_path / name)
    command = [sys.executable, "-c", RUN, str(tmp_path), GPU]
    with (
        subprocess.Popen(command, start_new_session=True) as daemon,
        (tmp_path / "under-way").open() as under_way,
        (tmp_path / "go").open("r+b", buffering=0) as go,
    ):
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        go.write(b"on\n")
        assert under_way.read() == "", "it has ended"
    assert (tmp_path / "made").exists()
