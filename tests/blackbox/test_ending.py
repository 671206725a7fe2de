# SPDX-License-Identifier: Apache-2.0
"""How the daemon ends: at any moment, quickly, leaving nothing; and how it comes back after it was killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, health, pod, socket_of, until_health
from tests.sim import fifos

LIMIT = 2.0  # seconds, on a machine that is not loaded
SLACK = 3.0


async def ends_well(node: Node, daemon: Daemon, limit: float = LIMIT) -> None:
    """SIGTERM, and all is as it must be."""
    began = time.monotonic()
    assert await daemon.end() == 0
    assert time.monotonic() - began < limit + SLACK
    assert node.sockets() == []
    assert not (node.root / "run/nodeagent/status.sock").exists()


async def test_what_an_operator_has_bound_is_never_touched(node: Node) -> None:
    node.add_gpus(2)
    wishes = "mdevs: {manage: true, types: [nvidia-222]}\n"
    node.configure(f"{wishes}sriov: [{{match: [{{vendors: [8086]}}], numVFs: 4}}]\n")
    node.host.write_file("/etc/machine-id", "0123456789abcdef0123456789abcdef")
    before = sysfs(node)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        await kubelet.admit(pod("p", {T4: 1}))
        await node.until_told(lambda told: len(told["holders"]) == 1)
        assert await daemon.end() == 0
    assert sysfs(node) == before


def sysfs(node: Node) -> dict[str, tuple[int, str]]:
    """Each file and link below /sys, with when it was written and where it leads."""
    walked = os.walk(node.root / "sys")
    paths = (Path(at, name) for at, folders, files in walked for name in (*folders, *files))
    return {str(path): (path.lstat().st_mtime_ns, os.path.realpath(path)) for path in paths}


async def test_the_log_names_who_has_a_device_and_when_it_was_let_go_also_after_a_restart(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        (device,) = vm.result.ids[T4]
        held = await daemon.logged("device-in-use")
        assert (held["device"], held["pod"]) == ([device], [f"{vm.namespace}/{vm.name}"])
        assert await daemon.end() == 0
        async with node.daemon("--timing-resync", "1s") as again:
            assert (await again.logged("device-in-use"))["device"] == [device]
            kubelet.delete(vm)
            assert (await again.logged("device-released"))["device"] == [device]
            assert [line["device"] for line in again.lines("device-in-use")] == [[device]]


async def test_sigterm_when_idle_ends_streams_removes_sockets_and_exits_with_zero(node: Node) -> None:
    addresses = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        assert vm.phase == "Running"
        await ends_well(node, daemon)
        await kubelet.until(lambda: kubelet.statistics.streams[T4] == 0)
        assert set(health(kubelet, T4)) == set(addresses)
        assert not kubelet.life.crashed


async def test_sigterm_before_a_kubelet_was_ever_there_exits_with_zero(node: Node) -> None:
    node.add_gpus(1)
    async with node.daemon() as daemon:
        await ends_well(node, daemon)


async def test_sigterm_at_the_start_exits_with_zero(node: Node) -> None:
    node.add_gpus(1)
    async with node.kubelet(), node.daemon(ready=False) as daemon:
        await daemon.logged("started")
        await ends_well(node, daemon)


async def test_sigterm_while_the_host_hangs_at_the_start_exits_with_zero(node: Node) -> None:
    (address,) = node.add_gpus(1)
    fifos.hang(node.host, address, "enable")
    async with node.kubelet(), node.daemon(ready=False) as daemon:
        await daemon.logged("started")
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.2):
                await daemon.logged("ready")
        await ends_well(node, daemon)
        fifos.unhang(node.host, address, "enable")


async def test_sigterm_during_register_exits_with_zero(node: Node) -> None:
    node.add_gpus(1)
    async with node.kubelet() as kubelet:
        kubelet.faults.set("hang-register")
        async with node.daemon() as daemon:
            await kubelet.until(lambda: bool(kubelet.statistics.registrations), PATIENCE)
            await ends_well(node, daemon)


async def test_sigterm_with_an_allocate_in_flight_fails_it_cleanly(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), anyio.create_task_group() as tasks:
        fifos.hang(node.host, address, "enable")
        asked = pod("vm", {T4: 1})
        tasks.start_soon(kubelet.admit, asked)
        await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
        await ends_well(node, daemon)
        await kubelet.until(lambda: asked.phase == "Failed", PATIENCE)
        assert "Unavailable" in asked.message
        assert not kubelet.life.crashed
        fifos.unhang(node.host, address, "enable")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_does_no_harm(node: Node, number: signal.Signals) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, _):
        daemon.send(number)
        daemon.send(number)
        assert await daemon.end(number) in (0, -number)
        assert node.sockets() == []


async def test_after_sigkill_the_same_ids_come_back_and_nothing_is_given_twice(node: Node) -> None:
    pair = ["0000:20:00.0", "0000:20:00.1"]
    for address in pair:
        node.add_gpu(address, 20)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(T4, 2, PATIENCE)
            first = await kubelet.admit(pod("first", {T4: 1}))
            assert first.phase == "Running"
            (held,) = first.result.ids[T4]
            await daemon.end(signal.SIGKILL)
        old, seen = socket_of(kubelet, T4), len(kubelet.statistics.lists[T4])
        assert old.exists()
        async with node.daemon():
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            (sibling,) = set(pair) - {held}
            assert kubelet.statistics.lists[T4][seen].health == {held: "Healthy", sibling: "Unhealthy"}
            second = await kubelet.admit(pod("second", {T4: 1}))
            assert second.phase == "Failed"
            assert not old.exists()
            kubelet.delete(first)
            await until_health(kubelet, T4, sibling, "Healthy")


async def test_a_second_instance_is_refused_also_where_there_was_never_a_kubelet(node: Node) -> None:
    async with node.daemon() as daemon:
        assert not node.plugins.exists()
        second = await node.command("run")
        assert second.returncode == 1
        assert f": process {daemon.pid};" in second.stderr
