# SPDX-License-Identifier: Apache-2.0
"""The life of one resource in plugins_registry, against the fake kubelet: the kubelet comes by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.kubelet.device_plugin import DeviceList
from nodeagent.kubelet.endpoint import Endpoint, Registrar
from nodeagent.kubelet.plugin_watcher import AnnouncedEndpoint
from nodeagent.kubelet.socket_dir import SocketDir
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod, Registration
from tests import virtual
from tests.conftest import Said
from tests.hearing import Heard
from tests.kubelet.answers import BROKEN, Answers, device

ONE = "example.com/one"


@dataclass
class Node:
    """A kubelet, and an endpoint in its plugins_registry that is not started yet."""

    kubelet: FakeKubelet
    directory: SocketDir
    watcher: DirectoryWatcher

    def endpoint(self, resource: str = ONE) -> Endpoint:
        devices, registrar = DeviceList((device("a"),)), Registrar("/nowhere", Timeouts())
        return AnnouncedEndpoint(
            resource, devices, Answers(), self.directory, registrar, Latest(None), Timeouts()
        )

    @property
    def accepted(self) -> list[Registration]:
        return self.kubelet.statistics.accepted(ONE)

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.directory.path))

    async def until_registered(self, times: int) -> None:
        """Wait for that many registrations, and for the stream of the last one."""
        await self.kubelet.until(lambda: len(self.accepted) >= times, 15)
        await self.kubelet.until_listed(ONE, 1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with FakeKubelet(tmp_path) as kubelet:
        watcher = DirectoryWatcher()
        directory = SocketDir(str(kubelet.paths.registry), watcher, exclusive=False)
        directory.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.run)
            yield Node(kubelet, directory, watcher)
            tasks.cancel_scope.cancel()
        directory.close()
        watcher.close()


@asynccontextmanager
async def living(endpoint: Endpoint) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(endpoint.run)
        yield
        tasks.cancel_scope.cancel()


def why(said: Said) -> list[str]:
    return [str(event["cause"]) for event in said(log.REGISTRATION_LOST)]


async def test_the_kubelet_finds_the_resource_and_its_changes_and_gives_it(node: Node, said: Said) -> None:
    endpoint = node.endpoint()
    async with living(endpoint):
        await node.until_registered(1)
        await node.kubelet.until(lambda: endpoint.state.registered)
        pod = await node.kubelet.admit(Pod("ns", "p", [{ONE: 1}]))
        assert pod.result.ids == {ONE: ("a",)}
        endpoint.devices.update((device("a", BROKEN),))
        await node.kubelet.until(lambda: node.kubelet.capacity(ONE) == (1, 0))
        (name,) = node.files
        assert not name.startswith(".")
    assert said(log.RESOURCE_REGISTERED) == [{"resource": ONE, "devices": 1}]
    assert node.files == []
    await node.kubelet.until(lambda: node.kubelet.statistics.streams[ONE] == 0)


@virtual.TIME
async def test_a_restarted_kubelet_comes_back_to_the_same_file(node: Node, said: Said) -> None:
    endpoint = node.endpoint()
    async with living(endpoint):
        await node.until_registered(1)
        before = node.files
        await node.kubelet.restart()
        await node.until_registered(2)
        with pytest.raises(TimeoutError):
            await node.kubelet.until(lambda: len(node.accepted) > 2, Timeouts().plugin_watcher_return + 0.5)
        assert node.files == before
    assert why(said) == []


@virtual.TIME
async def test_a_file_that_is_removed_is_made_anew(node: Node, said: Said) -> None:
    async with living(node.endpoint()):
        await node.until_registered(1)
        (before,) = node.files
        os.unlink(f"{node.directory.path}/{before}")
        await node.until_registered(2)
        assert node.files != [before]
    assert why(said) == ["our socket was removed"]


@virtual.TIME
async def test_a_stream_that_the_kubelet_ends_is_announced_in_a_new_file(node: Node, said: Said) -> None:
    endpoint = node.endpoint()
    async with living(endpoint):
        await node.until_registered(1)
        (before,) = node.files
        node.kubelet.end_stream(ONE)
        await node.until_registered(2)
        assert node.files != [before]
    assert why(said) == ["the kubelet ended the stream"]


@virtual.TIME
async def test_what_the_kubelet_refuses_is_told_once_while_it_tries_again(node: Node, said: Said) -> None:
    endpoint = node.endpoint("kubernetes.io/one")
    async with living(endpoint):
        await node.kubelet.until(lambda: len(node.kubelet.statistics.registrations) >= 2, 15)
        assert not endpoint.state.registered
    (event,) = said(log.REGISTER_FAILING)
    assert "is invalid" in str(event["error"])
    assert endpoint.state.last_error == event["error"]


async def test_a_file_has_its_name_when_it_is_served_and_not_before(node: Node) -> None:
    heard: Heard[Change] = Heard()
    node.watcher.watch(node.directory.path, heard)
    async with living(node.endpoint()):
        await node.until_registered(1)
        (name,) = node.files
        await heard.until_told(Change(node.directory.path, name))
        assert heard.all[0].name == f".{name}"


async def test_without_the_directory_nothing_is_served_until_it_is_there(node: Node, said: Said) -> None:
    shutil.rmtree(node.directory.path)
    node.directory.scan()
    async with living(node.endpoint()):
        await anyio.wait_all_tasks_blocked()
        os.mkdir(node.directory.path)
        await node.until_registered(1)
    assert said(log.REGISTER_FAILING) == []
