# SPDX-License-Identifier: Apache-2.0
"""How the daemon registers, and what it bears from a kubelet: absent, late, refusing, hanging, restarted."""

from __future__ import annotations

import shutil
import signal
import socket
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from nodeagent.base import sockets, threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.endpoint import register_delay
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import PATIENCE, T4, Node, eventually, health, socket_of, until_health
from tests.facts import names
from tests.sim.hosts import many

A, B = "example.com/a", "example.com/b"
TWO_RESOURCES = """
resources:
  - {name: example.com/a, node: {path: /dev/kvm, count: 2}}
  - {name: example.com/b, node: {path: /dev/kvm, count: 3}}
"""


@pytest.fixture
def two(node: Node) -> Node:
    """A node with two resources."""
    node.host.node("/dev/kvm")
    node.configure(TWO_RESOURCES)
    return node


async def test_a_kubelet_that_dials_back_inside_register_gets_options_and_a_complete_list(node: Node) -> None:
    addresses = node.add_gpus(3)
    async with node.running(listed={T4: 3}) as (_, kubelet):
        (registration,) = kubelet.statistics.registrations
        assert registration.resource == T4
        first = kubelet.statistics.lists[T4][0]
        assert first.health == dict.fromkeys(addresses, "Healthy")
        assert first.when - registration.when < 1.0
        assert kubelet.capacity(T4) == (3, 3)


async def test_a_kubelet_that_is_absent_at_the_start_costs_one_line_and_nothing_else(node: Node) -> None:
    node.add_gpus(1)
    async with node.daemon() as daemon:
        await daemon.logged("kubelet-unreachable")
        async with node.kubelet() as kubelet:
            await kubelet.until_listed(T4, 1, PATIENCE)
        assert len(daemon.lines("kubelet-unreachable")) == 1
        assert not daemon.lines("register-failing")
        assert daemon.alive


async def test_a_stale_socket_that_refuses_is_waited_out_with_one_line(two: Node) -> None:
    two.plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale, sockets.shortened(two.plugins / "kubelet.sock") as address:
        stale.bind(address)
    async with two.daemon() as daemon:
        await daemon.logged("kubelet-unreachable")
        async with two.kubelet() as kubelet:
            await kubelet.until_listed(A, 2, PATIENCE)
            await kubelet.until_listed(B, 3, PATIENCE)
        assert len(daemon.lines("kubelet-unreachable")) == 1
        assert not daemon.lines("register-failing")


@pytest.mark.slow
async def test_a_kubelet_that_comes_up_half_a_minute_late_gets_the_full_list_at_once(node: Node) -> None:
    node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        await kubelet.restart(away=30.0)
        back = kubelet.life.started
        await kubelet.until_listed(T4, 2, PATIENCE)
        assert kubelet.statistics.lists[T4][-1].when - back < 1.0
        assert kubelet.capacity(T4) == (2, 2)
        assert daemon.alive


def test_pauses_between_tries_grow_to_ten_seconds_and_start_anew_with_a_new_socket() -> None:
    young = [register_delay(attempt, 0.1, 0.0, Timeouts()) for attempt in range(8)]
    assert young == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1]
    old = [register_delay(attempt, 60.0, 0.0, Timeouts()) for attempt in range(12)]
    assert old == sorted(old)
    assert (old[0], old[-1]) == (0.2, 10.0)
    assert register_delay(11, 60.0, 1.0, Timeouts()) == 5.0


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.05, 2.0])
async def test_a_kubelet_killed_between_bind_and_listen_or_slow_there_is_met_as_soon_as_it_listens(
    two: Node, delay: float
) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await kubelet.restart(listen_delay=delay)
        listening = kubelet.life.started
        await kubelet.until_listed(A, 2, PATIENCE)
        assert kubelet.statistics.accepted(A)[-1].when - listening < 0.5
        assert daemon.alive


async def test_a_kubelet_that_has_ended_is_away_although_its_socket_stays(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await kubelet.stop()
        await daemon.logged("kubelet-unreachable")
        told = await two.until_told(lambda told: not told["kubelet"]["present"])
        assert kubelet.socket.exists()
        assert not any("not registered" in problem for problem in told["problems"])
        await kubelet.start()
        await two.until_told(lambda told: told["kubelet"]["present"] and not told["problems"])


async def test_a_socket_that_is_bound_and_never_listened_on_harms_nothing(two: Node) -> None:
    async with two.running(listed={A: 2}) as (daemon, kubelet):
        await kubelet.stop()
        kubelet.socket.unlink()
        with socket.socket(socket.AF_UNIX) as dead:
            with sockets.shortened(two.plugins / "kubelet.sock") as address:
                dead.bind(address)
            await daemon.logged("kubelet-unreachable")
        await kubelet.start()
        await kubelet.until_listed(A, 2, PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse-register", "drop-register"])
async def test_a_register_that_fails_is_tried_again_with_growing_pauses_and_harms_no_other(
    two: Node, fault: str
) -> None:
    async with two.kubelet() as kubelet:
        kubelet.faults.set(f"{fault}:{A}", "not today")
        async with two.daemon() as daemon:
            await kubelet.until_listed(B, 3, PATIENCE)

            def tries() -> list[float]:
                return [each.when for each in kubelet.statistics.registrations if each.resource == A]

            await kubelet.until(lambda: len(tries()) >= 5, PATIENCE)
            pauses = [later - earlier for earlier, later in pairwise(tries())]
            assert pauses[0] > 0.09, "a young kubelet that answers is not asked each 5 ms"
            assert pauses[3] > 2 * pauses[0]
            assert len(daemon.lines("register-failing", resource=A)) == 1
            status = await two.status()
            assert any(A in problem for problem in status["problems"])
            assert not any(B in problem for problem in status["problems"])
            kubelet.faults.clear(f"{fault}:{A}")
            await kubelet.until_listed(A, 2, PATIENCE)
            assert len(kubelet.statistics.accepted(B)) == 1


async def test_a_register_that_hangs_holds_up_nobody_else(two: Node) -> None:
    async with two.kubelet() as kubelet:
        kubelet.faults.set(f"hang-register:{A}")
        async with two.daemon() as daemon:
            await kubelet.until_listed(B, 3, PATIENCE)
            await kubelet.until(lambda: any(r.refusal == "hung" for r in kubelet.statistics.registrations))
            two.host.remove_node("/dev/kvm")
            await kubelet.until(lambda: kubelet.capacity(B) == (3, 0), PATIENCE)
            kubelet.faults.clear(f"hang-register:{A}")
            await kubelet.restart()
            await kubelet.until_listed(A, 2, PATIENCE)
            assert daemon.alive


@pytest.mark.parametrize("resources", [1, 8, 60])
async def test_a_kubelet_restart_brings_each_resource_back_once(node: Node, resources: int) -> None:
    await threads.call(many, node.root, resources, resources)
    async with node.kubelet() as kubelet, node.daemon("--discovery-naming", "id") as daemon:
        streams = kubelet.statistics.streams

        def all_back() -> bool:
            return len(kubelet.state.table.devices) == resources and all(
                streams.get(name) == 1 for name in kubelet.state.table.devices
            )

        await kubelet.until(all_back, PATIENCE)
        before = {name: health(kubelet, name) for name in kubelet.state.table.devices}
        await kubelet.restart()
        started = kubelet.life.started
        await kubelet.until(all_back, PATIENCE)
        assert {name: health(kubelet, name) for name in kubelet.state.table.devices} == before
        for name in before:
            assert len(kubelet.statistics.accepted(name)) == 2
            assert kubelet.statistics.accepted(name)[-1].when - started < 2.0
        assert len(node.sockets()) == resources
        assert daemon.usage().inotify == 1
        assert not kubelet.life.crashed


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_two_hundred_kubelet_restarts_with_changing_lists_leave_no_trace(node: Node) -> None:
    first, second = node.add_gpus(2)
    node.host.node("/dev/kvm")
    node.configure(TWO_RESOURCES)
    async with node.running(listed={T4: 2, A: 2, B: 3}) as (daemon, kubelet):
        before = None
        with anyio.fail_after(100):
            for number in range(200):
                node.host.bind(second, "nvidia" if number % 2 == 0 else "vfio-pci")
                await kubelet.restart()
                for name, devices in ((T4, 2), (A, 2), (B, 3)):
                    await kubelet.until_listed(name, devices, PATIENCE)
                wanted = "Unhealthy" if number % 2 == 0 else "Healthy"
                await until_health(kubelet, T4, second, wanted)
                if number == 50:
                    before = daemon.usage()
        assert before is not None
        await eventually(lambda: daemon.usage().fds <= before.fds + 4)
        after = daemon.usage()
        assert after.rss < before.rss + 3072
        assert after.threads <= before.threads + 2
        assert health(kubelet, T4) == {first: "Healthy", second: "Healthy"}
        assert not kubelet.life.crashed
        assert not daemon.lines("subsystem-failed")


async def test_twenty_restarts_in_quick_succession_settle_on_one_stream_each(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        for _ in range(20):
            await kubelet.restart()
            await kubelet.until(lambda: kubelet.life.running)
        await kubelet.until_listed(A, 2, PATIENCE)
        await kubelet.until_listed(B, 3, PATIENCE)
        assert kubelet.statistics.streams == {A: 1, B: 1}
        assert daemon.alive


async def test_a_stream_that_the_kubelet_ends_is_registered_again_after_a_pause(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        kubelet.end_stream(A)
        await kubelet.until(lambda: kubelet.statistics.streams[A] == 0)
        ended = anyio.current_time()
        await kubelet.until(lambda: len(kubelet.statistics.accepted(A)) == 2, PATIENCE)
        assert 0.9 < anyio.current_time() - ended < 5.0
        await kubelet.until_listed(A, 2, PATIENCE)
        assert len(kubelet.statistics.accepted(B)) == 1
        await daemon.logged("registration-lost", resource=A)


async def test_a_deleted_socket_is_bound_and_registered_again(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (_, kubelet):
        gone = socket_of(kubelet, A)
        gone.unlink()
        await kubelet.until(lambda: len(kubelet.statistics.accepted(A)) == 2, PATIENCE)
        await kubelet.until_listed(A, 2, PATIENCE)
        assert socket_of(kubelet, A) != gone
        assert socket_of(kubelet, A).is_socket()
        assert len(kubelet.statistics.accepted(B)) == 1


async def test_a_directory_that_is_deleted_and_made_anew_is_found_again(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await kubelet.stop()
        shutil.rmtree(two.plugins, ignore_errors=True)  # the daemon removes its sockets meanwhile
        await eventually(lambda: not two.plugins.exists() or not two.sockets())
        shutil.rmtree(two.plugins, ignore_errors=True)
        await daemon.logged("kubelet-unreachable")
        await kubelet.start()
        await kubelet.until_listed(A, 2, PATIENCE)
        await kubelet.until_listed(B, 3, PATIENCE)
        two.host.remove_node("/dev/kvm")
        await kubelet.until(lambda: kubelet.capacity(A) == (2, 0), PATIENCE)
        assert daemon.alive


async def test_an_overflow_of_inotify_loses_nothing(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        daemon.send(signal.SIGSTOP)
        await threads.call(_flood, two.plugins)
        await kubelet.restart()
        two.host.remove_node("/dev/kvm")
        daemon.send(signal.SIGCONT)
        await kubelet.until(lambda: kubelet.capacity(A) == (2, 0), PATIENCE)
        await kubelet.until(lambda: kubelet.capacity(B) == (3, 0), PATIENCE)


@pytest.mark.slow
async def test_a_kubelet_that_opens_no_stream_is_asked_again_with_a_new_socket(two: Node) -> None:
    async with two.kubelet() as kubelet:
        kubelet.faults.set(f"no-list:{A}")
        async with two.daemon():
            await kubelet.until_listed(B, 3, PATIENCE)
            await kubelet.until(lambda: len(kubelet.statistics.accepted(A)) == 1, PATIENCE)
            old = socket_of(kubelet, A)
            kubelet.faults.clear(f"no-list:{A}")
            await kubelet.until_listed(A, 2, PATIENCE)
            first, second = kubelet.statistics.accepted(A)
            assert second.when - first.when > 4.5
            assert not old.exists()


async def test_foreign_files_and_sockets_that_come_and_go_cause_nothing(two: Node) -> None:
    async with two.running(listed={A: 2, B: 3}) as (daemon, kubelet):
        await daemon.logged("resource-registered", count=2)
        lists, lines = kubelet.statistics.lists_total, len(daemon.log)
        for number in range(50):
            path = two.plugins / "foreign.sock"
            with socket.socket(socket.AF_UNIX) as foreign, sockets.shortened(path) as address:
                foreign.bind(address)
            path.unlink()
            (two.plugins / f".{number}").write_text("x")
            (two.plugins / f".{number}").unlink()
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: len(kubelet.statistics.registrations) > 2, 1.0)
        assert (kubelet.statistics.lists_total, len(daemon.log)) == (lists, lines)


async def test_one_setting_moves_the_kubelets_socket_and_ours(node: Node) -> None:
    node.add_gpus(1)
    moved = "/srv/moved/var/lib/kubelet/device-plugins"
    async with (
        FakeKubelet(node.root / "srv/moved") as kubelet,
        node.daemon("--kubelet-device-plugin-dir", moved),
    ):
        await kubelet.until_listed(T4, 1, PATIENCE)
        assert socket_of(kubelet, T4).is_socket()
        assert not node.plugins.exists()


def _flood(directory: Path) -> None:
    """More events than inotify queues."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 100):
        path = directory / f".{number % 7}"
        path.touch()
        path.unlink()


def _live(path: Path) -> socket.socket:
    served = socket.socket(socket.AF_UNIX)
    with sockets.shortened(path) as address:
        served.bind(address)
    served.listen()
    return served


async def test_leftovers_of_a_killed_instance_go_and_foreign_sockets_stay(node: Node) -> None:
    node.add_gpus(1)
    async with node.kubelet() as kubelet:
        async with node.daemon() as killed:
            await kubelet.until_listed(T4, 1, PATIENCE)
            (leftover,) = node.sockets()
            await killed.end(signal.SIGKILL)
        assert node.sockets() == [leftover]
        with _live(node.plugins / "foreign.sock"), _live(node.plugins / "nodeagent-other.sock"):
            async with node.daemon():
                await kubelet.until(lambda: len(kubelet.statistics.accepted(T4)) == 2, PATIENCE)
                await kubelet.until_listed(T4, 1, PATIENCE)
                names = node.sockets()
                assert leftover not in names
                assert "nodeagent-other.sock" in names
                assert (node.plugins / "foreign.sock").is_socket()


async def test_a_second_instance_ends_with_two_lines_and_disturbs_nothing(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        second = await node.command("run")
        assert second.returncode == 1
        told = [line for line in second.stderr.splitlines() if not line.startswith("{")]
        assert len(told) == 2
        names(told[0], str(daemon.pid))
        assert daemon.alive
        assert kubelet.statistics.streams == {T4: 1}
        assert (await node.status())["pid"] == daemon.pid
        assert len(kubelet.statistics.registrations) == 1


async def test_each_absence_of_the_kubelet_and_its_end_are_told_where_it_comes_by_itself(node: Node) -> None:
    node.add_gpus(1)
    async with node.daemon("--kubelet-registration", "plugins-registry") as daemon, node.kubelet() as kubelet:
        for times in (1, 2):
            await daemon.logged("kubelet-reachable", times)
            assert len(daemon.lines("kubelet-unreachable")) == times
            await kubelet.stop()
            kubelet.socket.unlink()
            await daemon.logged("kubelet-unreachable", times + 1)
            await kubelet.start()
