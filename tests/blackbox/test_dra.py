# SPDX-License-Identifier: Apache-2.0
"""The life of a DRA driver: slices are published, claims prepared, containers get their devices."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.sim.apiserver.store import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.claims import DRIVER, FLAGS, NAME, POOL, Cluster, cluster_of, daemon_of
from tests.blackbox.harness import PATIENCE, Node, eventually

FIRST = "0000:10:00.0"
ONE, TWO = "pci-0000-10-00-0", "pci-0000-11-00-0"
SOON = 5.0  # seconds; 0.2 on a machine that nobody else loads


@pytest.fixture
async def cluster(node: Node) -> AsyncIterator[Cluster]:
    """A node with two GPUs, each alone in its group."""
    node.add_gpus(2)
    async with cluster_of(node) as cluster:
        yield cluster


def calls(kubelet: FakeKubelet, method: str = "NodePrepareResources") -> int:
    """How often the kubelet has called the driver."""
    return len([call for call in kubelet.statistics.claims if call.method == method])


def files(cluster: Cluster) -> list[Path]:
    """The CDI files of claims."""
    return sorted((cluster.node.root / "var/run/cdi").glob("dra-*.json"))


async def test_slices_are_published_after_the_registration_and_belong_to_the_node(cluster: Cluster) -> None:
    accepted = cluster.kubelet.statistics.accepted
    cluster.kubelet.faults.set("dra-versions", ("v2",))
    async with cluster.node.daemon(*FLAGS) as daemon:
        await daemon.logged("dra-register-failing")
        assert not cluster.slices
        assert not accepted(DRIVER)
        cluster.kubelet.faults.clear("dra-versions")
        await cluster.until_published(ONE, TWO)
        assert accepted(DRIVER)
        (published,) = cluster.slices
        assert published["spec"]["nodeName"] == NAME
        assert published["spec"]["pool"]["name"] == POOL
        (owner,) = published["metadata"]["ownerReferences"]
        (host,) = cluster.server.store.all(NODES)
        assert (owner["kind"], owner["uid"]) == ("Node", host["metadata"]["uid"])
        assert owner["controller"]


async def test_without_devices_an_empty_slice_is_published(node: Node) -> None:
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until(lambda: len(cluster.slices) == 1)
        (published,) = cluster.slices
        assert not published["spec"].get("devices")
        assert published["spec"]["pool"]["resourceSliceCount"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_of_the_daemon_writes_no_slice(cluster: Cluster, number: signal.Signals) -> None:
    async with daemon_of(cluster) as daemon:
        await cluster.until_published(ONE, TWO)
        (published,) = cluster.slices
        before = int(published["metadata"]["resourceVersion"])
        await daemon.end(number)
    async with daemon_of(cluster):
        cluster.node.host.bind(FIRST, "nouveau")
        await cluster.until_published(TWO)
        changes = cluster.server.store.since(RESOURCE_SLICES, before) or []
    assert [change.type for change in changes] == ["MODIFIED"]


async def test_a_restarted_kubelet_gets_the_slices_back_and_its_pods_keep_their_devices(
    cluster: Cluster,
) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        assert pod.phase == "Running"
        for _ in range(3):
            seen = cluster.server.store.version
            await cluster.kubelet.restart()

            def is_wiped(seen: int = seen) -> bool:
                changes = cluster.server.store.since(RESOURCE_SLICES, seen) or ()
                return any(change.type == "DELETED" for change in changes)

            await cluster.until(is_wiped)
            await cluster.until(lambda: {ONE, TWO} <= set(cluster.devices), SOON)
        assert calls(cluster.kubelet) == 1
        assert cluster.edits(pod)["nodes"] == ["/dev/vfio/10", "/dev/vfio/vfio"]


async def test_containers_get_the_devices_of_their_claims_and_the_files_go_with_the_pod(
    cluster: Cluster,
) -> None:
    cluster.allocate("a", {"gpu": ONE}, pod_claim="mine")
    cluster.allocate("b", {"gpu": TWO})
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a", "b")
        assert pod.phase == "Running", pod.message
        assert calls(cluster.kubelet) == 1
        edits = cluster.edits(pod)
        assert edits["nodes"] == ["/dev/vfio/10", "/dev/vfio/11", "/dev/vfio/vfio"]
        directory = "/var/run/kubernetes.io/dra-device-attributes"
        name = f"{DRIVER}-metadata.json"
        assert edits["mounts"] == [
            f"{directory}/resourceclaims/b/gpu/{name}",
            f"{directory}/resourceclaimtemplates/mine/gpu/{name}",
        ]
        await cluster.kubelet.terminate(pod)
        assert pod.message == ""
        assert calls(cluster.kubelet, "NodeUnprepareResources") == 1
        assert files(cluster) == []


async def test_a_claim_that_is_prepared_again_has_its_files_written_again(cluster: Cluster) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        before = cluster.edits(pod), list(pod.result.cdi)
        for _ in range(2):
            await cluster.kubelet.restart()  # it forgets that the claim is prepared
            shutil.rmtree(cluster.node.root / "var/run/cdi")
            await cluster.until_prepared(pod)
            assert (cluster.edits(pod), list(pod.result.cdi)) == before


async def test_a_started_daemon_writes_the_files_of_prepared_claims(cluster: Cluster) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster) as daemon:
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        before = cluster.edits(pod)
        await daemon.end(signal.SIGKILL)
        shutil.rmtree(cluster.node.root / "var/run/cdi")
    async with daemon_of(cluster):
        assert cluster.edits(pod) == before
        assert calls(cluster.kubelet) == 1


async def test_a_claim_waits_for_its_device_and_delays_no_other_claim(cluster: Cluster) -> None:
    cluster.allocate("a", {"gpu": ONE})
    cluster.allocate("b", {"gpu": TWO})
    async with daemon_of(cluster), anyio.create_task_group() as tasks:
        await cluster.until_published(ONE, TWO)
        cluster.node.host.bind(FIRST, "nouveau")
        await cluster.until_published(TWO)
        tasks.start_soon(cluster.start, "waits", "a")
        await cluster.kubelet.until(lambda: "ns/waits" in cluster.kubelet.state.pods)
        assert (await cluster.start("starts", "b")).phase == "Running"
        waiting = cluster.kubelet.state.pods["ns/waits"]
        assert waiting.phase == "Pending"
        cluster.node.host.bind(FIRST, "vfio-pci")
        await cluster.kubelet.until(lambda: waiting.phase == "Running", PATIENCE)
        assert calls(cluster.kubelet) == 2


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_kubelet_that_knows_one_version_only_prepares_and_unprepares(
    cluster: Cluster, version: str
) -> None:
    cluster.kubelet.faults.set("dra-versions", (version,))
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        assert pod.phase == "Running", pod.message
        await cluster.kubelet.terminate(pod)
        assert pod.message == ""


async def test_administrative_access_is_refused(cluster: Cluster) -> None:
    claim = cluster.allocate("a", {"gpu": ONE})
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    cluster.server.store.put(RESOURCE_CLAIMS, claim)
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        assert pod.phase == "Pending"
        assert "adminAccess" in pod.message
        assert files(cluster) == []


async def test_the_health_of_an_allocated_device_is_in_the_status_of_the_pod(cluster: Cluster) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster) as daemon:
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        await cluster.until_health(ONE, "Healthy")
        cluster.node.host.bind(FIRST, "nouveau")
        await cluster.until_health(ONE, "Unhealthy")
        seen = cluster.health(ONE)
        assert seen is not None
        assert "nouveau" in seen.message
        await cluster.until(lambda: ONE in cluster.devices and ONE not in cluster.usable)
        (taint,) = cluster.devices[ONE]["taints"]
        assert taint["effect"] == "NoSchedule"
        assert pod.phase == "Running"
        cluster.node.host.bind(FIRST, "vfio-pci")
        await cluster.until_health(ONE, "Healthy")
        await daemon.end()
        await cluster.until_health(ONE, None)


async def test_unprepare_needs_neither_the_claim_nor_the_api_server_nor_the_device(cluster: Cluster) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster):
        await cluster.until_published(ONE, TWO)
        pod = await cluster.start("p", "a")
        cluster.server.store.delete(RESOURCE_CLAIMS, "a", "ns")
        await cluster.server.stop()
        cluster.node.host.unplug(FIRST)
        await cluster.kubelet.terminate(pod)
        assert pod.message == ""
        await eventually(lambda: files(cluster) == [])
        await cluster.server.start()
        await cluster.until_published(TWO)


# becomes the daemon with the listening sockets that it gets from argv[1], as systemd passes them
BECOME = """
import fcntl, os, socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    names, fds, _, _ = socket.recv_fds(peer, 4096, 2)
for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in fds]):
    os.dup2(fd, 3 + number)
named = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names.decode()}
os.execvpe(sys.argv[2], sys.argv[2:], os.environ | named)
"""


class Store:
    """systemd's store of descriptors for one service."""

    def __init__(self, directory: Path) -> None:
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(directory / "notify"))
        self._notify.settimeout(0.5)
        self._pass = socket.socket(socket.AF_UNIX)
        self._pass.bind(str(directory / "pass"))
        self._pass.listen()
        self._stored: dict[str, int] = {}
        self.environ = {"NOTIFY_SOCKET": str(directory / "notify")}
        self.under = (sys.executable, "-c", BECOME, str(directory / "pass"))

    def receive(self) -> None:
        """Store the descriptors that were sent so far."""
        while len(self._stored) < 2:
            message, fds, _, _ = socket.recv_fds(self._notify, 4096, 1)
            if message.startswith(b"FDSTORE=1"):
                self._stored[message.decode().partition("FDNAME=")[2]] = fds[0]

    def serve(self) -> None:
        """Pass the descriptors to one process."""
        with self._pass.accept()[0] as peer:
            socket.send_fds(peer, [":".join(self._stored).encode()], list(self._stored.values()))

    def close(self) -> None:
        """Close everything."""
        for fd in self._stored.values():
            os.close(fd)
        self._notify.close()
        self._pass.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_pod_that_starts_during_a_restart_by_systemd_waits_for_the_daemon_only(
    cluster: Cluster, store: Store, number: signal.Signals
) -> None:
    cluster.allocate("a", {"gpu": ONE})
    async with daemon_of(cluster, environ=store.environ) as daemon:
        await cluster.until_published(ONE, TWO)
        await threads.call(store.receive)
        await daemon.end(number)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.start, "p", "a")
        await cluster.kubelet.until(lambda: bool(cluster.kubelet.state.claims))
        tasks.start_soon(threads.call, store.serve)
        async with cluster.node.daemon(*FLAGS, environ=store.environ, under=store.under):
            pod = cluster.kubelet.state.pods["ns/p"]
            await cluster.kubelet.until(lambda: pod.phase == "Running", PATIENCE)
    assert [call.error for call in cluster.kubelet.statistics.claims] == [None]
    assert len(cluster.kubelet.statistics.accepted(DRIVER)) == 1


async def test_a_daemon_that_no_longer_needs_the_sockets_removes_them(cluster: Cluster, store: Store) -> None:
    async with daemon_of(cluster, environ=store.environ) as daemon:
        await cluster.until_published(ONE, TWO)
        await threads.call(store.receive)
        await daemon.end()
    registry = cluster.kubelet.paths.registry
    assert os.listdir(registry) == ["nodeagent-dra.sock"]
    cluster.node.configure("apiVersion: nodeagent/v1\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.call, store.serve)
        async with cluster.node.daemon(environ=store.environ, under=store.under):
            await eventually(lambda: os.listdir(registry) == [])
