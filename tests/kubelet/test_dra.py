# SPDX-License-Identifier: Apache-2.0
"""The DRA driver's sockets, against the fake kubelet."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.systemd import NO_STORE, DescriptorStore, Notifier
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kubelet.dra import DraPlugin, Health
from nodeagent.sim.apiserver.store import Store
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import DeviceHealth, Pod
from tests import virtual
from tests.conftest import Said
from tests.kubelet.binding import bound
from tests.kubelet.claims import DRIVER, NODE, POOL, ClaimRecorder, allocate_claim

REGISTRY = "/var/lib/kubelet/plugins_registry"
SOCKET = f"var/lib/kubelet/plugins/{DRIVER}/dra.sock"
BROKEN = "its driver is nouveau"


@dataclass
class Node:
    """A kubelet, an API server's objects, and a driver that is not started yet."""

    root: Path
    store: Store
    kubelet: FakeKubelet
    answers: ClaimRecorder
    watcher: DirectoryWatcher
    plugin: DraPlugin = field(init=False)

    def renew(self, store: DescriptorStore = NO_STORE) -> None:
        """Replace the driver by that of a new process."""
        self.plugin = DraPlugin(
            DRIVER,
            lambda: POOL,
            self.answers,
            REGISTRY,
            self.watcher,
            Timeouts(),
            prefix=str(self.root),
            store=store,
        )

    def pod(self, *claims: str, name: str = "p") -> Pod:
        """A pod with claims that are allocated."""
        for claim in claims:
            allocate_claim(self.store, claim, {"gpu": "pci-0"})
        return Pod("ns", name, [{}], claims=list(claims))

    async def until_registered(self, times: int = 1) -> None:
        """Wait until the kubelet has accepted the driver that often, and the driver knows it."""
        await self.kubelet.until(lambda: len(self.kubelet.statistics.accepted(DRIVER)) >= times, 15)
        await until(self.plugin.registered, True)

    def health(self, device: str = "pci-0") -> DeviceHealth | None:
        """The device's health as the kubelet knows it."""
        return self.kubelet.state.health.get((DRIVER, POOL, device))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The driver runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.plugin.run)
            yield
            tasks.cancel_scope.cancel()


async def until(cell: Latest[bool], wanted: bool) -> None:
    with anyio.fail_after(15):
        while cell.get() is not wanted:
            await cell.newer(cell.version)


class Systemd:
    """Keeps the sockets that a process stores, and passes them to the next one."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self._notifier = Notifier(str(path))
        self.stored: dict[str, socket.socket] = {}

    def new_store(self) -> DescriptorStore:
        """The store as the next process sees it."""
        self._receive()
        return DescriptorStore(self._notifier, [(name, sock.dup()) for name, sock in self.stored.items()])

    def close(self) -> None:
        """Close all sockets, as when the service is stopped."""
        self._receive()
        for each in (*self.stored.values(), self._socket):
            each.close()

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                message, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
                action, _, name = message.decode().partition("\nFDNAME=")
                if (old := self.stored.pop(name, None)) is not None:
                    old.close()
                if action == "FDSTORE=1":
                    self.stored[name] = socket.socket(fileno=fds[0])


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    store, watcher, answers = Store(), DirectoryWatcher(), ClaimRecorder()
    async with FakeKubelet(tmp_path, api=store, node=NODE) as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        node = Node(tmp_path, store, kubelet, answers, watcher)
        node.renew()
        yield node
        tasks.cancel_scope.cancel()
    watcher.close()


async def test_the_kubelet_registers_the_driver_and_prepares_and_unprepares_claims(
    node: Node, said: Said
) -> None:
    async with node.serving():
        await node.until_registered()
        (seen,) = node.kubelet.statistics.accepted(DRIVER)
        assert seen.endpoint == f"/{SOCKET}"  # without the prefix
        pod = await node.kubelet.admit(node.pod("a", "b"))
        assert pod.phase == "Running"
        assert len(pod.result.cdi) == 2
        assert node.answers.prepared == ["ns/a", "ns/b"]
        assert [call.method for call in node.kubelet.statistics.claims] == ["NodePrepareResources"]
        await node.kubelet.terminate(pod)
        assert node.answers.unprepared == ["ns/a", "ns/b"]
        assert not node.kubelet.state.pods
    assert not node.plugin.registered.get()
    assert said(log.DRA_REGISTERED) == [{"subsystem": DRIVER}]
    assert os.listdir(node.kubelet.paths.registry) == []
    assert not (node.root / SOCKET).exists()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_kubelet_with_one_version_only_is_served(node: Node, version: str) -> None:
    node.kubelet.faults.set("dra-versions", (version,))
    node.kubelet.faults.set("health-version", {"v1": "v1", "v1beta1": "v1alpha1"}[version])
    node.plugin.health.set({"pci-0": Health(True)})
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a"))
        assert pod.phase == "Running"
        await node.kubelet.until(lambda: node.health() is not None)
        await node.kubelet.terminate(pod)
        assert node.answers.unprepared == ["ns/a"]


async def test_each_claim_has_its_own_answer(node: Node) -> None:
    node.answers.errors["a"] = "0000:01:00.0 is in use"
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a", "b"))
        assert pod.phase == "Pending"
        assert pod.message == "NodePrepareResources failed for ResourceClaim a: 0000:01:00.0 is in use"
        node.answers.errors.clear()
        assert (await node.kubelet.admit(pod, again=True)).phase == "Running"
        node.answers.errors["b"] = "no space left on device"
        await node.kubelet.terminate(pod)
        assert pod.message == "NodeUnprepareResources failed for ResourceClaim b: no space left on device"


async def test_a_claim_without_an_answer_is_an_error_of_this_claim(node: Node) -> None:
    node.answers.missing = {"b"}
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a", "b"))
    assert pod.message == "NodePrepareResources failed for ResourceClaim b: no answer"


async def test_an_unexpected_error_fails_one_call_only(node: Node) -> None:
    node.answers.fails = RuntimeError("bug")
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a"))
        assert pod.message.endswith("rpc error: code = Internal desc = RuntimeError: bug")
        node.answers.fails = None
        assert (await node.kubelet.admit(pod, again=True)).phase == "Running"


async def test_the_request_of_a_device_is_named_without_its_subrequest(node: Node) -> None:
    node.answers.request = "gpu/large"
    async with node.serving():
        await node.until_registered()
        await node.kubelet.admit(node.pod("a"))
        (claim,) = node.kubelet.state.claims.values()
        assert [device.requests for device in claim.devices] == [("gpu",)]


async def test_a_claim_that_waits_does_not_delay_another_pod(node: Node) -> None:
    gate = node.answers.gates["a"] = anyio.Event()
    slow, fast = node.pod("a", name="slow"), node.pod("b", name="fast")
    async with node.serving():
        await node.until_registered()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.kubelet.admit, slow)
            await node.kubelet.until(lambda: slow.key in node.kubelet.state.pods)
            await node.kubelet.admit(fast)
            assert (fast.phase, slow.phase) == ("Running", "Pending")
            gate.set()
    assert slow.phase == "Running"


@virtual.TIME
async def test_preparing_goes_on_when_the_kubelet_has_given_up_the_call(node: Node) -> None:
    gate = node.answers.gates["a"] = anyio.Event()
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a"))
        assert "code = DeadlineExceeded" in pod.message
        assert node.answers.prepared == []
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert node.answers.prepared == ["ns/a"]
        assert (await node.kubelet.admit(pod, again=True)).phase == "Running"


@virtual.TIME
async def test_a_call_at_shutdown_has_a_moment_to_succeed(node: Node) -> None:
    gate = node.answers.gates["a"] = anyio.Event()
    pod = node.pod("a")

    async def open_late() -> None:
        await anyio.sleep(Timeouts().allocate_at_shutdown / 2)
        gate.set()

    async with anyio.create_task_group() as tasks, node.serving():
        await node.until_registered()
        tasks.start_soon(node.kubelet.admit, pod)
        await node.answers.entered.wait()
        tasks.start_soon(open_late)
    assert pod.phase == "Running"


@virtual.TIME
async def test_a_call_that_waits_does_not_delay_a_shutdown(node: Node) -> None:
    node.answers.gates["a"] = anyio.Event()
    pod = node.pod("a")
    async with anyio.create_task_group() as tasks:
        async with node.serving():
            await node.until_registered()
            tasks.start_soon(node.kubelet.admit, pod)
            await node.answers.entered.wait()
            began = anyio.current_time()
        assert anyio.current_time() - began < 5
    assert "code = Unavailable" in pod.message


@virtual.TIME
async def test_the_health_of_devices_is_reported_after_changes_and_repeated_before_it_is_too_old(
    node: Node,
) -> None:
    node.plugin.health.set({"pci-0": Health(True)})
    async with node.serving():
        await node.until_registered()
        await node.kubelet.until(lambda: node.health() is not None)
        assert node.health() == ("Healthy", "", node.health().updated)  # type: ignore[union-attr]
        node.plugin.health.set({"pci-0": Health(False, BROKEN * 100)})
        await node.kubelet.until(lambda: node.health()[0] == "Unhealthy")  # type: ignore[index]
        assert node.health()[1] == (BROKEN * 100)[:1024]  # type: ignore[index]
        before, began = node.kubelet.statistics.health_reports, anyio.current_time()
        await node.kubelet.until(lambda: node.kubelet.statistics.health_reports == before + 2, 60)
        assert anyio.current_time() - began <= 2 * 20.1
    await node.kubelet.until(lambda: node.health() is None)


@virtual.TIME
async def test_a_restarted_kubelet_registers_the_driver_again(node: Node) -> None:
    async with node.serving():
        await node.until_registered()
        pod = await node.kubelet.admit(node.pod("a"))
        await node.kubelet.restart(away=1.0)
        await node.until_registered(2)
        await node.kubelet.terminate(pod)
        assert node.answers.unprepared == ["ns/a"]


async def test_sockets_of_a_killed_process_are_replaced(node: Node) -> None:
    shutil.rmtree(node.kubelet.paths.registry)
    for path in (node.kubelet.paths.registry / "nodeagent-dra.sock", node.root / SOCKET):
        path.parent.mkdir(parents=True)
        bound(path).close()
    async with node.serving():
        await node.until_registered()
        assert (await node.kubelet.admit(node.pod("a"))).phase == "Running"


@virtual.TIME
@pytest.mark.parametrize("path", ["var/lib/kubelet/plugins_registry/nodeagent-dra.sock", SOCKET])
async def test_a_socket_that_is_removed_is_created_again(node: Node, path: str) -> None:
    async with node.serving():
        await node.until_registered()
        os.unlink(node.root / path)
        await node.until_registered(2)
        assert (await node.kubelet.admit(node.pod("a"))).phase == "Running"


async def test_a_refusal_is_logged_once_while_the_kubelet_tries_again(node: Node, said: Said) -> None:
    node.kubelet.faults.set("dra-versions", ("v2",))
    async with node.serving():
        await node.kubelet.until(lambda: len(node.kubelet.statistics.registrations) >= 2, 15)
        assert not node.plugin.registered.get()
        node.kubelet.faults.clear("dra-versions")
        await node.until_registered()
    (event,) = said(log.DRA_REGISTER_FAILING)
    assert "none of services" in str(event["error"])


async def test_the_problem_is_the_refusal_until_the_driver_is_registered(node: Node) -> None:
    node.kubelet.faults.set("dra-versions", ("v2",))
    async with node.serving():
        await node.kubelet.until(lambda: "none of services" in node.plugin.find_problem()[0], 15)
        node.kubelet.faults.clear("dra-versions")
        await node.until_registered()
        assert node.plugin.find_problem() == ("", "")


@virtual.TIME
async def test_the_problem_of_a_socket_that_no_kubelet_uses_comes_after_seconds(node: Node) -> None:
    await node.kubelet.stop()
    async with node.serving():
        await anyio.sleep(Timeouts().dra_registration - 1)
        assert node.plugin.find_problem() == ("", "")
        await anyio.sleep(2)
        assert "the kubelet does not use" in node.plugin.find_problem()[0]


@virtual.TIME
async def test_the_problem_of_a_missing_registry_names_it(node: Node) -> None:
    assert node.plugin.find_problem() == ("", "")
    shutil.rmtree(node.kubelet.paths.registry)
    async with node.serving():
        await anyio.wait_all_tasks_blocked()
        assert node.plugin.find_problem() == ("", "")
        await anyio.sleep(Timeouts().dra_registration + 1)
        assert "plugins_registry does not exist" in node.plugin.find_problem()[0]


async def test_a_directory_that_cannot_be_created_is_one_error_with_a_hint(node: Node) -> None:
    directory = node.root / "var/lib/kubelet/plugins"
    directory.write_text("")
    with pytest.raises(KubeletUnavailable) as error:
        await node.plugin.run()
    assert "cannot serve on" in error.value.what
    assert "dra.enabled" in error.value.hint
    assert node.plugin.find_problem() == (error.value.what, error.value.hint)
    directory.unlink()
    async with node.serving():
        await node.until_registered()
        assert node.plugin.find_problem() == ("", "")


async def test_without_the_registry_nothing_is_served_until_it_exists(node: Node) -> None:
    shutil.rmtree(node.kubelet.paths.registry)
    async with node.serving():
        await anyio.wait_all_tasks_blocked()
        assert not (node.root / SOCKET).exists()
        os.mkdir(node.kubelet.paths.registry)
        await node.until_registered()


async def test_a_call_during_a_restart_waits_for_the_next_process(node: Node, systemd: Systemd) -> None:
    node.renew(systemd.new_store())
    async with node.serving():
        await node.until_registered()
    assert os.listdir(node.kubelet.paths.registry) == ["nodeagent-dra.sock"]
    node.renew(systemd.new_store())
    pod = node.pod("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.kubelet.admit, pod)
        await node.kubelet.until(lambda: bool(node.kubelet.state.claims))
        async with node.serving():
            await until(node.plugin.registered, True)
            await node.kubelet.until(lambda: pod.phase == "Running")
    assert [call.error for call in node.kubelet.statistics.claims] == [None]
    assert len(node.kubelet.statistics.registrations) == 1


async def test_a_kubelet_that_restarts_during_the_restart_registers_the_driver(
    node: Node, systemd: Systemd
) -> None:
    node.renew(systemd.new_store())
    async with node.serving():
        await node.until_registered()
    node.renew(systemd.new_store())
    await node.kubelet.restart()
    async with node.serving():
        await node.until_registered(2)
        assert (await node.kubelet.admit(node.pod("a"))).phase == "Running"


@pytest.mark.parametrize("path", ["var/lib/kubelet/plugins_registry/nodeagent-dra.sock", SOCKET])
async def test_stored_sockets_without_their_files_are_replaced(
    node: Node, systemd: Systemd, path: str
) -> None:
    node.renew(systemd.new_store())
    async with node.serving():
        await node.until_registered()
    os.unlink(node.root / path)
    for times in (2, 3):  # the new sockets are stored, too
        node.renew(systemd.new_store())
        async with node.serving():
            await until(node.plugin.registered, True)
            assert (await node.kubelet.admit(node.pod(f"a{times}", name=f"p{times}"))).phase == "Running"
    assert len(node.kubelet.statistics.accepted(DRIVER)) == 2
