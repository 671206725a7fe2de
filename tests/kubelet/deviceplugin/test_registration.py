# SPDX-License-Identifier: Apache-2.0
"""Registering with the stand-in kubelet: connections, the kubelet's texts, and the waits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.deviceplugin import registration
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.registration import Registrar, Tries
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.grpc.server import SocketServer
from nodeagent.sim.kubelet.standin import Kubelet
from tests.kubelet.answers import Answers, device

ONE = "example.com/one"
OPTIONS = Plugin(Listing(), Answers(), lambda: None, Timeouts()).options


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(tmp_path) as running:
        yield running


@pytest.fixture
async def endpoint(kubelet: Kubelet) -> AsyncIterator[str]:
    served = Plugin(Listing((device("a"),)), Answers(), lambda: None, Timeouts())
    server = SocketServer(kubelet.paths.plugins, "one.sock", [served], timeouts=Timeouts())
    await server.start()
    yield "one.sock"
    await server.stop(0)


async def registered(kubelet: Kubelet, endpoint: str, resource: str = ONE) -> None:
    await Registrar(str(kubelet.socket), Timeouts()).register(resource, endpoint, OPTIONS)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(0, 0.005), (1, 0.01), (2, 0.02), (3, 0.04), (4, 0.08), (5, 0.1), (60, 0.1)],
)
def test_a_young_kubelet_is_tried_quickly(attempt: int, seconds: float) -> None:
    assert registration.delay(attempt, age=0.0, jitter=1.0, timeouts=Timeouts()) == pytest.approx(seconds)
    assert registration.delay(attempt, age=4.99, jitter=0.0, timeouts=Timeouts()) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("attempt", "jitter", "seconds"),
    [(0, 0.0, 0.2), (1, 0.0, 0.4), (5, 0.0, 6.4), (6, 0.0, 10.0), (99, 0.0, 10.0), (99, 1.0, 5.0)],
)
def test_later_the_tries_grow_apart(attempt: int, jitter: float, seconds: float) -> None:
    assert registration.delay(attempt, age=5.0, jitter=jitter, timeouts=Timeouts()) == pytest.approx(seconds)


def test_the_first_tries_at_a_kubelet_that_is_young_no_more_are_quick() -> None:
    tries = Tries(Timeouts())
    while_young = [tries.next_delay(age, 0.0) for age in (0.0, 0.1, 0.2, 1.0, 4.9)]
    afterwards = [tries.next_delay(age, 0.0) for age in (5.0, 5.2, 5.6)]
    assert while_young == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08])
    assert afterwards == pytest.approx([0.2, 0.4, 0.8])


def test_who_has_refused_is_asked_at_growing_pauses_however_young() -> None:
    tries = Tries(Timeouts())
    assert [tries.after_refusal(0.0) for _ in range(8)] == pytest.approx(
        [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    )
    assert tries.next_delay(0.0, 0.0) == pytest.approx(0.005), "nobody answers now"
    tries.begin_again()
    assert tries.after_refusal(0.0) == pytest.approx(0.2)


def test_another_kubelet_is_tried_as_quickly_as_the_first() -> None:
    tries = Tries(Timeouts())
    old = [tries.next_delay(60.0, 0.0) for _ in range(5)]
    tries.begin_again()
    young = [tries.next_delay(age, 0.0) for age in (0.0, 0.01)]
    assert old[0] == pytest.approx(0.2)
    assert young == pytest.approx([0.005, 0.01])


async def test_the_kubelet_takes_a_plugin_and_reads_its_list(kubelet: Kubelet, endpoint: str) -> None:
    await registered(kubelet, endpoint)
    await kubelet.until_listed(ONE, 1)
    assert [each.endpoint for each in kubelet.statistics.accepted(ONE)] == ["one.sock"]


async def test_a_refusal_has_the_kubelets_text(kubelet: Kubelet, endpoint: str) -> None:
    kubelet.faults.set("refuse-register", "no room")
    with pytest.raises(KubeletUnavailable, match="UNKNOWN: no room"):
        await registered(kubelet, endpoint)


async def test_a_bad_name_is_refused_by_the_kubelet(kubelet: Kubelet, endpoint: str) -> None:
    with pytest.raises(KubeletUnavailable, match='the ResourceName "one" is invalid'):
        await registered(kubelet, endpoint, "one")


async def test_a_connection_that_is_dropped_is_the_kubelets_fault(kubelet: Kubelet, endpoint: str) -> None:
    kubelet.faults.set("drop-register")
    with pytest.raises(KubeletUnavailable):
        await registered(kubelet, endpoint)


async def test_an_absent_kubelet_is_named_by_the_systems_text(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="No such file or directory"):
        await Registrar(str(tmp_path / "kubelet.sock"), Timeouts()).register(ONE, "x", OPTIONS)


async def test_a_socket_on_which_nobody_listens_refuses(kubelet: Kubelet, endpoint: str) -> None:
    await kubelet.stop()
    with pytest.raises(KubeletUnavailable, match="Connection refused"):
        await registered(kubelet, endpoint)


async def test_no_connection_stays_open_when_registering_is_given_up(kubelet: Kubelet, endpoint: str) -> None:
    kubelet.faults.set("hang-register")
    registrar, seen = Registrar(str(kubelet.socket), Timeouts()), kubelet.statistics.registrations
    before = len(os.listdir("/proc/self/fd"))
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(registrar.register, f"example.com/r{number}", endpoint, OPTIONS)
        await kubelet.until(lambda: len(seen) == 5)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(5):
        while len(os.listdir("/proc/self/fd")) > before:
            await anyio.wait_all_tasks_blocked()
    kubelet.faults.clear("hang-register")
    await registrar.register(ONE, endpoint, OPTIONS)
    await kubelet.until_listed(ONE, 1)
