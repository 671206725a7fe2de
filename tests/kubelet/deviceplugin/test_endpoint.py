# SPDX-License-Identifier: Apache-2.0
"""The life of one resource against the stand-in kubelet: every way in which a registration can end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kubelet.deviceplugin.endpoint import Bells, Endpoint, Pauses
from nodeagent.kubelet.deviceplugin.life import End, Life
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.registration import RegisterWay, Registrar
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod, Registration
from tests import virtual
from tests.conftest import Said
from tests.kubelet.answers import BROKEN, Answers, device

ONE = "example.com/one"


@dataclass
class Node:
    """A kubelet, and an endpoint that is not started yet."""

    kubelet: Kubelet
    directory: SocketDir
    endpoint: Endpoint
    answers: Answers
    ended: Latest[None]

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
    async with Kubelet(tmp_path) as kubelet:
        watcher = DirectoryWatcher()
        directory = SocketDir(str(kubelet.paths.plugins), watcher)
        directory.open()
        answers, ended = Answers(), Latest[None](None)
        way = RegisterWay(directory, Registrar(directory.kubelet_path, Timeouts()), Timeouts())
        endpoint = Endpoint(
            ONE, Listing((device("a"),)), answers, way, Bells(ended, Latest(None)), Timeouts()
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.run)
            yield Node(kubelet, directory, endpoint, answers, ended)
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
    return [str(event["why"]) for event in said(log.REGISTRATION_LOST)]


async def test_a_resource_is_registered_and_its_changes_arrive(node: Node, said: Said) -> None:
    async with living(node):
        await node.until_registered(1)
        assert node.endpoint.registration.registered
        node.endpoint.listing.show((device("a", BROKEN),))
        await node.kubelet.until(lambda: node.kubelet.capacity(ONE) == (1, 0))
    assert said(log.RESOURCE_REGISTERED) == [{"resource": ONE, "devices": 1}]


async def test_the_end_of_a_life_is_told_when_its_connections_are_closed(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        assert node.ended.version == 0
        await node.kubelet.restart()
        await node.until_registered(2)
        assert node.ended.version == 1


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
    assert node.endpoint.registration.last_error is None


async def test_when_the_own_socket_goes_it_is_made_anew(node: Node, said: Said) -> None:
    async with living(node):
        await node.until_registered(1)
        node.remove_own_socket()
        await node.until_registered(2)
    assert why(said) == [End.SOCKET_GONE.value]


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
    assert why(said) == [End.STREAM_ENDED.value]


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
    assert why(said) == [End.NO_STREAM.value]


@virtual.TIME
async def test_a_refusal_is_tried_again_and_told_once(node: Node, said: Said) -> None:
    node.kubelet.faults.set("refuse-register", "no room")
    async with living(node):
        await node.kubelet.until(lambda: len(node.kubelet.statistics.registrations) >= 3)
        errors = [node.endpoint.registration.last_error]
        assert not node.endpoint.registration.registered
        node.kubelet.faults.clear("refuse-register")
        await node.until_registered(1)
        errors.append(node.endpoint.registration.last_error)
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
    node.endpoint.hurry(0.2)
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


async def test_a_life_that_breaks_leaves_nobody_who_is_called_registered(node: Node) -> None:
    class Breaking(RegisterWay):
        async def hold(self, life: Life) -> End:
            raise ZeroDivisionError

    way = Breaking(node.directory, Registrar(node.directory.kubelet_path, Timeouts()), Timeouts())
    breaking = Endpoint(
        ONE, node.endpoint.listing, node.answers, way, Bells(node.ended, Latest(None)), Timeouts()
    )
    with pytest.raises(ZeroDivisionError):
        await breaking.run()
    assert breaking.registration.registrations == 1
    assert not breaking.registration.registered


@pytest.mark.parametrize(
    ("ends", "least", "most"),
    [
        ([End.SOCKET_GONE], Timeouts().kubelet_restart, Timeouts().kubelet_restart),
        ([End.NO_STREAM], 1.0, 1.2),
        ([End.NOT_SERVED], 1.0, 1.2),
        ([End.KUBELET_CHANGED], 0.0, 0.0),
        ([End.SOCKET_GONE, End.SOCKET_GONE], 1.0, 2.1),
        (
            [End.STREAM_ENDED, End.KUBELET_CHANGED, End.SOCKET_GONE],
            Timeouts().kubelet_restart,
            Timeouts().kubelet_restart,
        ),
    ],
    ids=str,
)
def test_pauses_depend_on_why_lives_end(ends: list[End], least: float, most: float) -> None:
    for jitter in (0.0, 0.5, 0.999):
        pauses = Pauses(Timeouts())
        waits = [pauses.after(end, 1.0, jitter) for end in ends]
        assert least <= waits[-1] <= most


def test_a_long_life_is_followed_by_a_short_pause_again() -> None:
    pauses = Pauses(Timeouts())
    waits = [pauses.after(End.STREAM_ENDED, lived, 0.0) for lived in (1.0, 1.0, 1.0, 61.0)]
    assert waits == [*sorted(waits[:3]), 1.0]
    assert waits[2] > waits[1]


async def test_a_new_kubelet_is_owed_a_registration_until_it_has_one(node: Node) -> None:
    async with living(node):
        await node.until_registered(1)
        assert node.endpoint.owed() is None
        node.directory.kubelet.set((0, 0, 0))
        debt = node.endpoint.owed()
        assert debt is not None
        assert debt.what
        await node.kubelet.restart()
        await node.until_registered(2)
        assert node.endpoint.owed() is None


async def test_where_there_is_no_kubelet_nothing_is_owed(node: Node) -> None:
    assert node.endpoint.owed() is not None, "nobody runs it, and there is a kubelet"
    node.directory.kubelet.set(None)
    assert node.endpoint.owed() is None
