# SPDX-License-Identifier: Apache-2.0
"""The life of one resource against the fake kubelet: every way in which a registration can end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kubelet.device_plugin import DeviceList
from nodeagent.kubelet.endpoint import Endpoint, EndReason, Registrar
from nodeagent.kubelet.grpc import SocketServer
from nodeagent.kubelet.socket_dir import SocketDir
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod, Registration
from tests import virtual
from tests.conftest import Said
from tests.kubelet.answers import BROKEN, Answers, device

ONE = "example.com/one"


@dataclass
class Node:
    """A kubelet, and an endpoint that is not started yet."""

    kubelet: FakeKubelet
    directory: SocketDir
    endpoint: Endpoint
    answers: Answers
    registrar: Registrar
    changed: Latest[None]

    @property
    def accepted(self) -> list[Registration]:
        return self.kubelet.statistics.accepted(ONE)

    @property
    def sockets(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory.path) if name.startswith("nodeagent-"))

    async def until_registered(self, times: int, seconds: float = 10.0) -> None:
        """Wait for that many registrations, and for the stream of the last one."""
        await self.kubelet.until(lambda: len(self.accepted) >= times, seconds)
        await self.kubelet.until_listed(ONE, 1)

    def remove_own_socket(self) -> None:
        (name,) = self.sockets
        os.unlink(f"{self.directory.path}/{name}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with FakeKubelet(tmp_path) as kubelet:
        watcher = DirectoryWatcher()
        directory = SocketDir(str(kubelet.paths.plugins), watcher)
        directory.open()
        answers, changed = Answers(), Latest[None](None)
        registrar = Registrar(directory.kubelet_path, Timeouts())
        devices = DeviceList((device("a"),))
        endpoint = Endpoint(ONE, devices, answers, directory, registrar, changed, Timeouts())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.run)
            yield Node(kubelet, directory, endpoint, answers, registrar, changed)
            tasks.cancel_scope.cancel()
        directory.close()
        watcher.close()


@asynccontextmanager
async def living(node: Node) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.endpoint.run)
        yield
        tasks.cancel_scope.cancel()


def why(said: Said) -> list[str]:
    return [str(event["cause"]) for event in said(log.REGISTRATION_LOST)]


async def test_a_resource_is_registered_and_its_changes_arrive(node: Node, said: Said) -> None:
    async with living(node):
        await node.until_registered(1)
        assert node.endpoint.state.registered
        node.endpoint.devices.update((device("a", BROKEN),))
        await node.kubelet.until(lambda: node.kubelet.capacity(ONE) == (1, 0))
    assert said(log.RESOURCE_REGISTERED) == [{"resource": ONE, "devices": 1}]


async def test_ending_removes_the_socket_and_ends_the_stream(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        assert len(node.sockets) == 1
    assert node.sockets == []
    await node.kubelet.until(lambda: node.kubelet.statistics.streams[ONE] == 0)


async def test_without_a_kubelet_nothing_is_served(node: Node) -> None:
    await node.kubelet.stop()
    os.unlink(node.directory.kubelet_path)
    node.directory.scan()
    async with living(node):
        await anyio.wait_all_tasks_blocked()
        assert node.sockets == []
        await node.kubelet.start()
        await node.until_registered(1)


async def test_a_new_kubelet_gets_a_new_socket_at_once(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        began = anyio.current_time()
        await node.kubelet.restart()
        await node.until_registered(2)
        assert anyio.current_time() - began < 1.0
    first, second = node.accepted
    assert first.endpoint != second.endpoint


@virtual.TIME
async def test_a_kubelet_that_listens_late_is_tried_until_it_does(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        await node.kubelet.restart(listen_delay=0.4)
        began = anyio.current_time()
        await node.until_registered(2)
        assert anyio.current_time() - began < 0.5
    assert node.endpoint.state.last_error is None


async def test_when_the_own_socket_goes_it_is_made_anew(node: Node, said: Said) -> None:
    async with living(node):
        await node.until_registered(1)
        node.remove_own_socket()
        await node.until_registered(2)
    assert why(said) == [EndReason.SOCKET_GONE.value]


@virtual.TIME
async def test_when_the_stream_ends_there_is_a_pause_before_the_next_registration(
    node: Node, said: Said
) -> None:
    async with living(node):
        await node.until_registered(1)
        ended = anyio.current_time()
        node.kubelet.end_stream(ONE)
        await node.kubelet.until(lambda: len(node.accepted) == 2)
        assert anyio.current_time() - ended >= 0.99
    assert why(said) == [EndReason.STREAM_ENDED.value]


async def test_a_new_kubelet_ends_the_pause(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        node.kubelet.end_stream(ONE)
        await node.kubelet.until(lambda: node.kubelet.statistics.streams[ONE] == 0)
        with anyio.fail_after(5):
            while node.sockets:
                await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        await node.kubelet.restart()
        await node.kubelet.until(lambda: len(node.accepted) == 2)
        assert anyio.current_time() - began < 0.9


@virtual.TIME
async def test_a_kubelet_that_opens_no_stream_is_registered_with_again(node: Node, said: Said) -> None:
    node.kubelet.faults.set("no-list")
    async with living(node):
        await node.kubelet.until(lambda: len(node.accepted) == 1)
        began = anyio.current_time()
        node.kubelet.faults.clear("no-list")
        await node.kubelet.until(lambda: len(node.accepted) == 2, Timeouts().list_and_watch_open + 5)
        assert anyio.current_time() - began > Timeouts().list_and_watch_open
    assert why(said) == [EndReason.NO_STREAM.value]


@virtual.TIME
async def test_a_refusal_is_tried_again_and_told_once(node: Node, said: Said) -> None:
    node.kubelet.faults.set("refuse-register", "no room")
    async with living(node):
        await node.kubelet.until(lambda: len(node.kubelet.statistics.registrations) >= 3)
        errors = [node.endpoint.state.last_error]
        assert not node.endpoint.state.registered
        node.kubelet.faults.clear("refuse-register")
        await node.until_registered(1)
        errors.append(node.endpoint.state.last_error)
    assert errors == ["UNKNOWN: no room", None]
    assert said(log.REGISTER_FAILING) == [{"resource": ONE, "error": "UNKNOWN: no room"}]


async def test_a_socket_that_goes_while_registering_hangs_is_made_anew_at_once(node: Node) -> None:
    node.kubelet.faults.set("hang-register")
    async with living(node):
        await node.kubelet.until(lambda: len(node.kubelet.statistics.registrations) == 1)
        node.kubelet.faults.clear("hang-register")
        began = anyio.current_time()
        node.remove_own_socket()
        await node.until_registered(1)
        assert anyio.current_time() - began < 2.0


async def test_a_directory_that_vanishes_is_no_error_to_die_of(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        await node.kubelet.stop()
        for name in os.listdir(node.directory.path):
            os.unlink(f"{node.directory.path}/{name}")
        os.rmdir(node.directory.path)
        await node.kubelet.start()
        await node.until_registered(2)


async def test_ending_waits_for_an_allocate_in_flight_but_not_longer_than_its_grace(node: Node) -> None:
    node.answers.gate = anyio.Event()
    node.endpoint.shorten_grace(0.2)
    pod = Pod("ns", "p", [{ONE: 1}])
    async with anyio.create_task_group() as pods:
        async with living(node):
            await node.until_registered(1)
            pods.start_soon(node.kubelet.admit, pod)
            await node.answers.entered.wait()
            began = anyio.current_time()
        assert 0.15 < anyio.current_time() - began < 4.5
    assert pod.phase == "Failed"
    assert node.sockets == []


async def test_an_endpoint_that_fails_is_not_reported_as_registered(node: Node) -> None:
    class Failing(Endpoint):
        async def hold(self, server: SocketServer) -> EndReason:
            raise ZeroDivisionError

    failing = Failing(
        ONE, node.endpoint.devices, node.answers, node.directory, node.registrar, node.changed, Timeouts()
    )
    with pytest.raises(ZeroDivisionError):
        await failing.run()
    assert failing.state.registrations == 1
    assert not failing.state.registered


@virtual.TIME
async def test_pauses_grow_while_the_kubelet_ends_each_stream_soon(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        pauses = []
        for times in range(2, 6):
            ended = anyio.current_time()
            node.kubelet.end_stream(ONE)
            await node.until_registered(times, 60)
            pauses.append(anyio.current_time() - ended)
    assert pauses[-1] > 3 * pauses[0]


@virtual.TIME
async def test_a_refusal_is_repeated_at_growing_delays_however_young_the_kubelet(node: Node) -> None:
    node.kubelet.faults.set("refuse-register", "no room")
    tried = node.kubelet.statistics.registrations
    async with living(node):
        await node.kubelet.until(lambda: len(tried) == 5, 60)
    gaps = [later.when - earlier.when for earlier, later in pairwise(tried)]
    assert [0.4 < gap / pause <= 1.2 for gap, pause in zip(gaps, (0.2, 0.4, 0.8, 1.6), strict=True)] == [
        True
    ] * 4
