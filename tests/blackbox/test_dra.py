# SPDX-License-Identifier: Apache-2.0
"""The life of a DRA driver: slices are published, claims prepared, containers get their devices."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.sim.apiserver.store import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.claims import BY_DRA, DRIVER, FLAGS, NAME, POOL, Cluster, cluster_of, daemon_of
from tests.blackbox.harness import PATIENCE, Node, eventually
from tests.storing import SystemdStore

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
        told = await cluster.node.until_told(
            lambda told: any("not registered" in each for each in told["problems"])
        )
        assert "none of services" in str(told["problems"])
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


async def test_a_corrected_name_of_the_node_counts_without_a_restart(cluster: Cluster) -> None:
    kubeconfig = "kubeconfig: /etc/kubeconfig\n"
    cluster.node.configure(f"{BY_DRA}{kubeconfig}node: {{name: typo}}\n")
    async with cluster.node.daemon() as daemon:
        await daemon.logged("dra-registered")
        assert not cluster.slices
        cluster.node.configure(f"{BY_DRA}{kubeconfig}node: {{name: {NAME}}}\n")
        await cluster.until_published(ONE, TWO)
        cluster.allocate("a", {"gpu": ONE})
        pod = await cluster.start("p", "a")
        assert pod.phase == "Running", pod.message
        await cluster.until_health(ONE, "Healthy")


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
        # the first report may be about a device without a driver
        await cluster.kubelet.until(lambda: "nouveau" in str(cluster.health(ONE)), PATIENCE)
        seen = cluster.health(ONE)
        assert seen is not None
        assert seen.status == "Unhealthy"
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SystemdStore]:
    made = SystemdStore(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_pod_that_starts_during_a_restart_by_systemd_waits_for_the_daemon_only(
    cluster: Cluster, store: SystemdStore, number: signal.Signals
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


async def test_a_daemon_that_no_longer_needs_the_sockets_removes_them(
    cluster: Cluster, store: SystemdStore
) -> None:
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
