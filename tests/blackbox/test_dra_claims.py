# SPDX-License-Identifier: Apache-2.0
"""Claims whose devices are not usable yet, are used by others, or whose files cannot be written."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import anyio

from nodeagent.base import threads
from nodeagent.sim.apiserver.store import RESOURCE_CLAIMS
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.claims import DRIVER, GPU, Cluster, cluster_of, daemon_of
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.facts import names

ONE, OTHER = "0000:10:00.0", "0000:11:00.0"
FIRST, SECOND = "pci-0000-10-00-0", "pci-0000-11-00-0"
SHORT = {"NODEAGENT_TIME_SCALE": "0.05"}  # a Prepare waits two seconds
TWO_WAYS = """
apiVersion: nodeagent/v1
resources:
  - {name: example.com/gpu, pci: [{devices: ["1eb8"]}], via: dra}
  - {name: example.com/sound, pci: [{devices: ["10f9"]}]}
"""
RECORD = "var/lib/nodeagent/claims"
METADATA = f"var/lib/kubelet/plugins/{DRIVER}/dra-device-metadata"


def record(node: Node) -> list[str]:
    """The UIDs of the recorded claims on disk."""
    return sorted(path.stem for path in (node.root / RECORD).glob("*.json"))


def files(node: Node) -> set[str]:
    """The names of CDI files of claims, and the directories of metadata files."""
    found = [*(node.root / "var/run/cdi").glob("dra-*"), *(node.root / METADATA).glob("*")]
    return {path.name for path in found}


def seconds(cluster: Cluster, method: str = "Prepare") -> float:
    """How long the last call took."""
    calls = [each for each in cluster.kubelet.statistics.claims if method in each.method]
    return calls[-1].seconds


async def used_by(node: Node, device: str, user: str | None) -> None:
    """Wait until the status says so of the user of the device."""
    await node.until_told(lambda told: told["holders"].get(device, {}).get("pod") == user)


async def test_a_claim_waits_for_a_device_that_becomes_usable(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster) as daemon:
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        await daemon.logged("resource-added", resource=GPU)
        node.host.bind(ONE, "nouveau")
        await daemon.logged("device-unhealthy", device=ONE, reason="driver-changed")
        await cluster.until(lambda: cluster.usable == [])
        started: list[Pod] = []

        async def start() -> None:
            started.append(await cluster.start("p", "a"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await anyio.sleep(1)
            assert not started
            node.host.bind(ONE, "vfio-pci")
        assert started[0].phase == "Running", started[0].message
        assert len(cluster.kubelet.statistics.claims) == 1, "one call that waits"


async def test_an_unusable_device_is_an_error_in_time_and_the_next_try_succeeds(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster, environ=SHORT) as daemon:
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        node.host.bind(ONE, "nouveau")
        await cluster.until(lambda: cluster.usable == [])
        failed = await cluster.start("p", "a")
        assert failed.phase == "Pending"
        names(failed.message, FIRST, "nouveau", "next try in about a minute")
        line = await daemon.logged("claim-refused")
        names(line["message"], "claim ns/a", "nouveau")
        node.host.bind(ONE, "vfio-pci")
        await cluster.until_published(FIRST)
        again = await cluster.kubelet.admit(failed, again=True)
        assert again.phase == "Running", again.message


async def test_an_unknown_field_in_a_configuration_is_named(node: Node) -> None:
    node.add_gpus(2)
    wrong = {"apiVersion": "nodeagent/v1", "kind": "DeviceConfig", "iomufd": "auto"}
    config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": wrong}}]
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST, SECOND)
        cluster.allocate("a", {"gpu": FIRST}, config=config)
        failed = await cluster.start("p", "a")
        names(failed.message, "iomufd", "iommufd")
        assert seconds(cluster) < PATIENCE / 3, "waiting would not help"


async def test_a_claim_that_is_created_again_has_its_new_device(node: Node) -> None:
    node.add_gpus(2)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST, SECOND)
        cluster.allocate("a", {"gpu": FIRST})
        started = await cluster.start("p", "a")
        store = cluster.server.store
        await cluster.kubelet.terminate(started)
        store.delete(RESOURCE_CLAIMS, "a", namespace="ns")
        cluster.allocate("a", {"gpu": SECOND})
        second = await cluster.start("q", "a")
        assert second.phase == "Running", second.message
        await used_by(node, OTHER, "claim ns/a")
        await used_by(node, ONE, None)


async def test_a_claim_is_released_without_the_api_server_and_its_object(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster) as daemon:
        await cluster.until_published(FIRST)
        claim = cluster.allocate("a", {"gpu": FIRST})
        started = await cluster.start("p", "a")
        uid = claim["metadata"]["uid"]
        assert record(node) == [uid]
        assert len(files(node)) == 2
        await used_by(node, ONE, "claim ns/a")
        await daemon.logged("claim-prepared")
        await cluster.server.stop()
        await cluster.kubelet.terminate(started)
        assert (record(node), files(node)) == ([], set())
        await used_by(node, ONE, None)
        await daemon.logged("claim-released")


async def test_a_former_user_is_awaited(node: Node) -> None:
    """After a force deletion the device is allocated again before the kubelet has ended the pod."""
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        cluster.allocate("b", {"gpu": FIRST})
        first = await cluster.start("p", "a")
        started: list[Pod] = []

        async def start() -> None:
            started.append(await cluster.start("q", "b"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await cluster.kubelet.until(lambda: "ns/q" in cluster.kubelet.state.pods, PATIENCE)
            await anyio.sleep(0.5)
            assert not started
            await cluster.kubelet.terminate(first)
        assert started[0].phase == "Running", started[0].message
        await used_by(node, ONE, "claim ns/b")


async def test_a_sibling_of_a_device_of_a_device_plugin_is_tainted_and_refused(node: Node) -> None:
    """Two functions of one group: one by the device plugin, one by DRA."""
    node.add_gpu(ONE, 10)
    node.add_sound("0000:10:00.1", 10)
    async with cluster_of(node, TWO_WAYS) as cluster, daemon_of(cluster, environ=SHORT):
        await cluster.until_published(FIRST)
        await until_health(cluster.kubelet, "example.com/sound", "0000:10:00.1", "Healthy")
        held = await cluster.kubelet.admit(pod("dp", {"example.com/sound": 1}))
        assert held.phase == "Running", held.message
        await cluster.until(lambda: cluster.usable == [])
        cluster.allocate("a", {"gpu": FIRST})
        failed = await cluster.start("p", "a")
        names(failed.message, "ns/dp", "0000:10:00.1")
        cluster.kubelet.delete(held)
        await cluster.until_published(FIRST)
        assert (await cluster.kubelet.admit(failed, again=True)).phase == "Running"
        await until_health(cluster.kubelet, "example.com/sound", "0000:10:00.1", "Unhealthy")


async def test_a_damaged_record_affects_one_claim_only(node: Node) -> None:
    node.add_gpus(2)
    async with cluster_of(node) as cluster:
        async with daemon_of(cluster):
            await cluster.until_published(FIRST, SECOND)
            for name, device in (("a", FIRST), ("b", SECOND)):
                cluster.allocate(name, {"gpu": device})
                assert (await cluster.start(f"p{name}", name)).phase == "Running"
        damaged, _ = sorted((node.root / RECORD).iterdir())
        kept = "ns/b" if json.loads(damaged.read_text())["ref"]["name"] == "a" else "ns/a"
        damaged.write_text("{}")
        async with daemon_of(cluster) as daemon:
            names((await daemon.logged("state-damaged"))["error"], damaged)
            told = await node.status()
            assert [each["pod"] for each in told["holders"].values()] == [f"claim {kept}"]


async def test_a_pod_gets_functions_of_one_group_by_both_apis(node: Node) -> None:
    node.add_gpu(ONE, 10)
    node.add_sound("0000:10:00.1", 10)
    async with cluster_of(node, TWO_WAYS) as cluster, daemon_of(cluster, environ=SHORT):
        await cluster.until_published(FIRST)
        await until_health(cluster.kubelet, "example.com/sound", "0000:10:00.1", "Healthy")
        cluster.allocate("a", {"gpu": FIRST}, pods=["vm"])
        vm = await cluster.kubelet.admit(Pod("ns", "vm", [{"example.com/sound": 1}], claims=["a"]))
        assert vm.phase == "Running", vm.message


async def test_metadata_that_cannot_be_written_fails_the_claim_as_a_whole(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        (node.root / METADATA).write_text("")
        failed = await cluster.start("p", "a")
        assert failed.phase == "Pending"
        names(failed.message, "metadata.json", "next try in about a minute")
        assert record(node) == []
        assert not list((node.root / "var/run/cdi").glob("dra-*"))
        (node.root / METADATA).unlink()
        assert (await cluster.kubelet.admit(failed, again=True)).phase == "Running"


async def test_of_several_drivers_only_our_results_count_and_the_claim_decides(node: Node) -> None:
    node.add_gpus(1)

    def config(source: str, name: str) -> dict[str, Any]:
        parameters = {"apiVersion": "nodeagent/v1", "kind": "DeviceConfig", "resourceName": name}
        return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}

    foreign = {"source": "FromClass", "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Odd"}}}
    configs = [config("FromClass", "example.com/class"), config("FromClaim", "example.com/claim"), foreign]
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST)
        claim = cluster.allocate("a", {"gpu": FIRST}, config=configs)
        results = claim["status"]["allocation"]["devices"]["results"]
        results.append({"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "nic-0"})
        cluster.server.store.put(RESOURCE_CLAIMS, claim)
        started = await cluster.start("p", "a")
        names(started.message or started.phase, "nic.example.com")  # the kubelet has no such driver
        env = "PCI_RESOURCE_EXAMPLE_COM_CLAIM=0000:10:00.0"
        (path,) = (node.root / "var/run/cdi").glob("dra-*")
        assert env in path.read_text()
        assert "EXAMPLE_COM_CLASS" not in path.read_text()


async def test_a_device_that_a_process_of_the_host_has_open_is_tainted_and_refused(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster, environ=SHORT):
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        node.host.hold(ONE)
        failed = await cluster.start("p", "a")
        names(failed.message, FIRST, "it is open")
        await cluster.until(lambda: FIRST in cluster.devices and cluster.usable == [])
        node.host.release(ONE)
        await cluster.until_published(FIRST)
        assert (await cluster.kubelet.admit(failed, again=True)).phase == "Running"


async def test_status_explain_and_metrics_show_the_claim_that_uses_a_device(node: Node) -> None:
    node.add_gpu(ONE, 10)
    node.add_gpu("0000:10:00.1", 10)
    http = ("--http-listen", "127.0.0.1:0")
    async with cluster_of(node) as cluster, daemon_of(cluster, *http):
        await cluster.until(lambda: len(cluster.devices) == 3)
        cluster.allocate("a", {"gpu": FIRST})
        started = await cluster.start("p", "a")
        assert started.phase == "Running", started.message
        await used_by(node, ONE, "claim ns/a")
        told = await node.status()
        (resource,) = told["resources"]
        assert resource["via"] == "dra"
        assert told["problems"] == []
        text = (await node.command("status")).stdout
        names(text, f"{ONE} in use by claim ns/a", "by DRA", "0000:10:00.1: IOMMU group in use by claim ns/a")
        names((await node.command("explain", ONE)).stdout, "Healthy, in use by claim ns/a")
        names((await node.command("explain", GPU)).stdout, f"claim ns/a uses {ONE}", "advertised by DRA")
        address = told["http"]["address"]
        metrics = await threads.call(_read, f"{address}metrics")
        names(metrics, f'nodeagent_devices_allocated{{resource="{GPU}"}} 1')
        assert "nodeagent_resource_registered{" not in metrics
        assert await threads.call(_read, f"{address}readyz")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text
