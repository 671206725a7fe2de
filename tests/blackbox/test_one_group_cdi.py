# SPDX-License-Identifier: Apache-2.0
"""CDI names that a container was given: the runtime looks them up whenever it makes the container."""

from __future__ import annotations

import contextlib
import json
import resource as limits

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import GPU, named, running, started, stays, usb_boards
from tests.blackbox.harness import PATIENCE, Daemon, Node, eventually, pod

RENAMED = "example.com/gpu2"
RULES = 'resources: [{name: %s, pci: [{devices: ["1eb8"]}], cdi: true}]'
OFTEN = ("--timing-resync", "1s")
WITHOUT = {"plain": RULES.replace("true", "false") % GPU, "nothing": "discovery: {enabled: false}"}


def resolved(node: Node) -> list[str]:
    """The CDI names that a runtime finds: one that several files have is nobody's."""
    names = []
    for path in (node.root / "var/run/cdi").glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # it was listed, and has gone since
            file = json.loads(path.read_text())
            names += [f"{file['kind']}={device['name']}" for device in file["devices"]]
    return [name for name in names if names.count(name) == 1]


@pytest.mark.parametrize("known", [True, False], ids=["named", "given"])
async def test_a_container_can_start_again_after_its_device_has_moved_to_another_resource(
    node: Node, known: bool
) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(RULES % GPU)
    async with started(node, listed={GPU: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        if known:
            await named(node, board.gpu, vm)
        assert resolved(node) == vm.result.cdi
        node.configure(RULES % RENAMED)
        await daemon.logged("config-reloaded")
        await kubelet.until_listed(RENAMED, 1, PATIENCE)
        assert resolved(node) == vm.result.cdi


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("wish", ["plain", "nothing"])
async def test_a_container_can_start_again_after_its_resource_needs_no_cdi_any_more(
    node: Node, wish: str, restarted: bool
) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(RULES % GPU)
    async with node.kubelet() as kubelet:
        async with node.daemon(*OFTEN) as daemon:
            await kubelet.until_listed(GPU, 1, PATIENCE)
            vm = await kubelet.admit(pod("vm", {GPU: 1}))
            running(vm)
            await named(node, board.gpu, vm)
            if not restarted:
                node.configure(WITHOUT[wish])
                await daemon.logged("config-reloaded")
                await until_released(node, kubelet, vm)
                return
        node.configure(WITHOUT[wish])
        async with node.daemon(*OFTEN):
            await named(node, board.gpu, vm)
            await until_released(node, kubelet, vm)


async def until_released(node: Node, kubelet: FakeKubelet, vm: Pod) -> None:
    """The name that the pod has can be found for as long as it is there, and no longer.

    While it moves from one file to the other both have it, for a moment: a runtime asks again. That moment
    may come soon after a start, since files are written beside the lists.
    """
    await eventually(lambda: resolved(node) == vm.result.cdi)
    with contextlib.suppress(AssertionError):
        await stays(kubelet, lambda: resolved(node) == vm.result.cdi, 1.0)
    await eventually(lambda: resolved(node) == vm.result.cdi)
    await stays(kubelet, lambda: resolved(node) == vm.result.cdi, 1.0)
    kubelet.delete(vm)
    await eventually(lambda: resolved(node) == [])


@pytest.mark.parametrize("loss", ["removed", "overwritten"])
async def test_a_cdi_file_that_somebody_has_taken_away_is_there_again_before_a_name_of_it_is_given(
    node: Node, loss: str
) -> None:
    usb_boards(node, 1)
    node.configure(RULES % GPU)
    async with started(node, listed={GPU: 1}) as (_, kubelet):
        await eventually(lambda: bool(resolved(node)))
        (path,) = (node.root / "var/run/cdi").glob("*.json")
        path.unlink()
        if loss == "overwritten":
            path.write_text('{"cdiVersion": "0.5.0", "kind": "nodeagent.local/vfio", "devices": []}')
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        assert resolved(node) == vm.result.cdi


async def test_a_second_daemon_on_a_node_leaves_the_cdi_files_of_the_first_alone(node: Node) -> None:
    usb_boards(node, 1)
    node.configure(RULES % GPU)
    async with started(node, listed={GPU: 1}) as (first, kubelet):
        node.configure(RULES % RENAMED, "other.yaml")
        other = str(node.root / "etc/nodeagent/other.yaml")
        async with node.daemon("--config", other, ready=False) as second:
            await second.process.wait()
        assert first.alive
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        assert resolved(node) == vm.result.cdi


def full(daemon: Daemon, size: int = 0) -> None:
    """No file that the daemon writes may be larger, as on a disk that is full; removing them works."""
    limits.prlimit(daemon.pid, limits.RLIMIT_FSIZE, (size, limits.RLIM_INFINITY))


@pytest.mark.parametrize("wish", [RULES % RENAMED, WITHOUT["plain"]], ids=["renamed", "plain"])
async def test_a_name_that_a_pod_has_stays_where_it_is_while_the_disk_is_full(node: Node, wish: str) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(RULES % GPU)
    async with started(node, *OFTEN, listed={GPU: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        await named(node, board.gpu, vm)
        full(daemon)
        node.configure(wish)
        await daemon.logged("cdi-failed")
        await stays(kubelet, lambda: resolved(node) == vm.result.cdi, 2.0)
        full(daemon, limits.RLIM_INFINITY)
        kubelet.delete(vm)
        wanted = vm.result.cdi if "gpu2" in wish else []
        files = 1 if wanted else 0
        directory = node.root / "var/run/cdi"
        await eventually(lambda: resolved(node) == wanted and len([*directory.iterdir()]) == files)


async def test_a_name_that_a_pod_has_is_in_one_file_also_if_only_small_ones_can_be_written(
    node: Node,
) -> None:
    usb_boards(node, 3)
    node.configure(RULES % GPU)
    async with started(node, listed={GPU: 3}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        (path,) = (node.root / "var/run/cdi").glob("*.json")
        full(daemon, path.stat().st_size)
        node.add_gpu("0000:70:00.0", 70)
        await daemon.logged("cdi-failed")
        await stays(kubelet, lambda: vm.result.cdi[0] in resolved(node), 1.0)
