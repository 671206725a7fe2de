# SPDX-License-Identifier: Apache-2.0
"""Registering with the fake kubelet: connections, the kubelet's texts, and the waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import device_plugin
from nodeagent.kubelet.device_plugin import DeviceList, DevicePlugin
from nodeagent.kubelet.endpoint import Registrar, register_delay
from nodeagent.kubelet.grpc import SocketServer
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.kubelet.answers import Answers, device

ONE = "example.com/one"
OPTIONS = device_plugin.options(Answers())


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(tmp_path) as running:
        yield running


@pytest.fixture
async def endpoint(kubelet: FakeKubelet) -> AsyncIterator[str]:
    served = DevicePlugin(DeviceList((device("a"),)), Answers(), Timeouts())
    server = SocketServer(kubelet.paths.plugins, "one.sock", [served], timeouts=Timeouts())
    await server.start()
    yield "one.sock"
    await server.stop(0)


async def registered(kubelet: FakeKubelet, endpoint: str, resource: str = ONE) -> None:
    registrar = Registrar(str(kubelet.socket), Timeouts())
    await registrar.register(resource, endpoint, OPTIONS)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(0, 0.005), (1, 0.01), (2, 0.02), (3, 0.04), (4, 0.08), (5, 0.1), (60, 0.1)],
)
def test_a_young_kubelet_is_tried_quickly(attempt: int, seconds: float) -> None:
    assert register_delay(attempt, age=0.0, jitter=1.0, timeouts=Timeouts()) == pytest.approx(seconds)
    assert register_delay(attempt, age=4.99, jitter=0.0, timeouts=Timeouts()) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("attempt", "jitter", "seconds"),
    [(0, 0.0, 0.2), (1, 0.0, 0.4), (5, 0.0, 6.4), (6, 0.0, 10.0), (99, 0.0, 10.0), (99, 1.0, 5.0)],
)
def test_later_the_tries_grow_apart(attempt: int, jitter: float, seconds: float) -> None:
    assert register_delay(attempt, age=5.0, jitter=jitter, timeouts=Timeouts()) == pytest.approx(seconds)


async def test_the_kubelet_takes_a_plugin_and_reads_its_list(kubelet: FakeKubelet, endpoint: str) -> None:
    await registered(kubelet, endpoint)
    await kubelet.until_listed(ONE, 1)
    assert [each.endpoint for each in kubelet.statistics.accepted(ONE)] == ["one.sock"]


async def test_a_refusal_has_the_kubelets_text(kubelet: FakeKubelet, endpoint: str) -> None:
    kubelet.faults.set("refuse-register", "no room")
    with pytest.raises(KubeletUnavailable, match="UNKNOWN: no room"):
        await registered(kubelet, endpoint)


async def test_a_kubelet_that_answers_with_an_error_is_back(kubelet: FakeKubelet, endpoint: str) -> None:
    registrar = Registrar(str(kubelet.socket), Timeouts())
    await kubelet.stop()
    with pytest.raises(KubeletUnavailable, match="Connection refused"):
        await registrar.register(ONE, endpoint, OPTIONS)
    assert registrar.refused
    await kubelet.start()
    kubelet.faults.set("refuse-register", "no room")
    with pytest.raises(KubeletUnavailable, match="no room"):
        await registrar.register(ONE, endpoint, OPTIONS)
    assert not registrar.refused


async def test_a_bad_name_is_refused_by_the_kubelet(kubelet: FakeKubelet, endpoint: str) -> None:
    with pytest.raises(KubeletUnavailable, match='the ResourceName "one" is invalid'):
        await registered(kubelet, endpoint, "one")


async def test_a_connection_that_is_dropped_is_the_kubelets_fault(
    kubelet: FakeKubelet, endpoint: str
) -> None:
    kubelet.faults.set("drop-register")
    with pytest.raises(KubeletUnavailable):
        await registered(kubelet, endpoint)


async def test_an_absent_kubelet_is_named_by_the_systems_text(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="No such file or directory"):
        await Registrar(str(tmp_path / "kubelet.sock"), Timeouts()).register(ONE, "x", OPTIONS)


async def test_a_socket_on_which_nobody_listens_refuses(kubelet: FakeKubelet, endpoint: str) -> None:
    await kubelet.stop()
    with pytest.raises(KubeletUnavailable, match="Connection refused"):
        await registered(kubelet, endpoint)


async def test_calls_that_are_given_up_do_not_end_others(kubelet: FakeKubelet, endpoint: str) -> None:
    kubelet.faults.set("hang-register")
    registrar = Registrar(str(kubelet.socket), Timeouts())
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(registrar.register, f"example.com/r{number}", endpoint, OPTIONS)
        await kubelet.until(lambda: len(kubelet.statistics.registrations) == 5)
        kubelet.faults.clear("hang-register")
        await registrar.register(ONE, endpoint, OPTIONS)
        tasks.cancel_scope.cancel()
    await registrar.register(ONE, endpoint, OPTIONS)
    await kubelet.until(lambda: len(kubelet.statistics.accepted(ONE)) == 2)


async def test_a_dropped_connection_ends_no_other_call(kubelet: FakeKubelet, endpoint: str) -> None:
    kubelet.faults.set("drop-register:example.com/other")
    registrar = Registrar(str(kubelet.socket), Timeouts())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registrar.register, ONE, endpoint, OPTIONS)
        with pytest.raises(KubeletUnavailable):
            await registrar.register("example.com/other", endpoint, OPTIONS)
    assert len(kubelet.statistics.accepted(ONE)) == 1


async def test_a_new_kubelet_is_called_at_its_own_socket(kubelet: FakeKubelet, endpoint: str) -> None:
    registrar = Registrar(str(kubelet.socket), Timeouts())
    await registrar.register(ONE, endpoint, OPTIONS)
    await kubelet.restart()
    registrar.note_socket((1, 2, 3))
    kubelet.faults.set("refuse-register", "new here")
    with pytest.raises(KubeletUnavailable, match="new here"):
        await registrar.register(ONE, endpoint, OPTIONS)
