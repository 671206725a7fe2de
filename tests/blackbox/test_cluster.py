# SPDX-License-Identifier: Apache-2.0
"""A node that follows the KubeVirt CR and the labels of its Node; the API server is a fake."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox import foreign
from tests.blackbox.harness import EXEC, LASTING, PATIENCE, T4, Daemon, Node, eventually, pod, until_health
from tests.blackbox.test_splitting import FIRST, two_cards
from tests.cluster import crs
from tests.facts import names

GPU, OTHER, SOUND = "example.com/gpu", "example.com/other", "example.com/sound"
NAME = "node1"
SOON = 2.0  # seconds; one on a machine that nobody else loads
ENTRY = {"pciVendorSelector": "10DE:1EB8", "resourceName": GPU, "externalResourceProvider": True}


def put(server: FakeApiServer, *entries: dict[str, Any], **more: Any) -> None:
    """The CR permits these PCI devices now."""
    server.store.put(
        KUBEVIRTS, crs.document({"permittedHostDevices": {"pciHostDevices": list(entries)}, **more})
    )


def label(server: FakeApiServer, **labels: str) -> None:
    """The Node has these labels now."""
    server.store.put(NODES, {"metadata": {"name": NAME, "labels": labels}})


@asynccontextmanager
async def server_of(node: Node) -> AsyncIterator[FakeApiServer]:
    """An API server with the Node, and without a CR."""
    async with FakeApiServer() as server:
        label(server)
        (node.root / "etc").mkdir(exist_ok=True)
        server.kubeconfig(node.root / "etc/kubeconfig")
        yield server


def of(told: dict[str, Any], key: str) -> Any:
    """What is told of the cluster; None for what is not worth telling."""
    return told.get("cluster", {}).get(key)


FLAGS = ("--kubeconfig", "/etc/kubeconfig", "--node-name", NAME)


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu("0000:20:00.0", 20)
    async with server_of(node) as server:
        yield server


@asynccontextmanager
async def followed(
    node: Node, *more: str, under: Sequence[str] = ()
) -> AsyncIterator[tuple[Daemon, FakeKubelet]]:
    """Daemon and kubelet, when the cluster is heard."""
    async with node.kubelet() as kubelet, node.daemon(*FLAGS, *more, under=under) as daemon:
        await node.until_told(lambda told: of(told, "reachable"))
        yield daemon, kubelet


async def test_an_edit_of_the_cr_is_followed_without_a_restart(node: Node, server: FakeApiServer) -> None:
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(T4, 1, PATIENCE)
        put(server, ENTRY)
        await kubelet.until_listed(GPU, 1, SOON)
        await kubelet.until(lambda: kubelet.state.table.allocatable(T4) == 0, SOON)
        put(server, ENTRY | {"resourceName": OTHER})
        await kubelet.until_listed(OTHER, 1, SOON)
        put(server)
        await kubelet.until_listed(T4, 1, SOON)


async def test_what_is_virt_handler_s_is_offered_by_nobody_else(node: Node, server: FakeApiServer) -> None:
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(T4, 1, PATIENCE)
        put(server, ENTRY | {"externalResourceProvider": False})
        await kubelet.until(lambda: kubelet.state.table.allocatable(T4) == 0, SOON)
        assert GPU not in kubelet.state.table.devices
        explained = await node.command("explain", "0000:20:00.0")
        assert "virt-handler" in explained.stdout


async def test_ids_of_what_the_cr_leaves_to_virt_handler_are_groups_whatever_its_socket_is_called(
    node: Node, server: FakeApiServer
) -> None:
    node.add_sound("0000:20:00.1", 20)
    sound = {"pciVendorSelector": "10DE:10F9", "resourceName": SOUND}
    put(server, ENTRY, sound)
    async with (
        followed(node) as (_, kubelet),
        foreign.serving(kubelet, "20", resource=SOUND, socket="some.sock") as virt_handler,
    ):
        virt_handler.groups = True
        await kubelet.until_listed(GPU, 1, PATIENCE)
        one = await kubelet.admit(pod("one", {SOUND: 1}))
        assert one.phase == "Running"
        await node.until_told(lambda told: one.key in str(told["holders"]))
        two = await kubelet.admit(pod("two", {GPU: 1}))
        assert two.phase == "Failed"


async def test_a_cr_that_is_deleted_or_makes_no_sense_leaves_the_last_good_one_in_force(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        server.store.delete(KUBEVIRTS, "kubevirt", "kubevirt")
        told = await node.until_told(lambda told: of(told, "warnings"))
        assert told["problems"][0] == of(told, "warnings")[0]
        server.store.put(KUBEVIRTS, crs.document({"permittedHostDevices": "all of them"}))
        told = await node.until_told(lambda told: "permittedHostDevices" in str(told["problems"]))
        assert kubelet.state.table.capacity(GPU) == 1
        put(server, ENTRY | {"resourceName": OTHER})
        await kubelet.until_listed(OTHER, 1, SOON)
        assert (await node.status()).get("problems", []) == []


@pytest.mark.parametrize("entries", ["10DE:1EB8", {"0": ENTRY}, ["10DE:1EB8"]])
async def test_devices_of_a_cr_stay_if_its_list_or_an_entry_of_it_is_of_a_wrong_type(
    node: Node, server: FakeApiServer, entries: Any
) -> None:
    put(server, ENTRY)
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        server.store.put(KUBEVIRTS, crs.document({"permittedHostDevices": {"pciHostDevices": entries}}))
        told = await node.until_told(lambda told: "is not in force" in str(told["problems"]))
        assert "permittedHostDevices.pciHostDevices" in str(told["problems"])
        node.add_gpu("0000:30:00.0", 30)
        await kubelet.until_listed(GPU, 2, PATIENCE)
        assert all(seen.health for seen in kubelet.statistics.lists[GPU]), "no device was withdrawn"
        put(server, ENTRY)
        await node.until_told(lambda told: not told.get("problems"))


async def test_one_entry_that_cannot_be_used_is_told_and_the_others_count(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY | {"pciVendorSelector": "all"}, ENTRY)
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        told = await node.until_told(lambda told: of(told, "refused"))
        assert told["problems"][0].startswith("KubeVirt CR: permittedHostDevices.pciHostDevices[0]")


async def test_the_resource_of_an_entry_that_cannot_be_used_is_explained_by_its_entry(
    node: Node, server: FakeApiServer
) -> None:
    wrong = ENTRY | {"pciVendorSelector": "10DX:20B0"}
    put(server, wrong | {"resourceName": OTHER}, ENTRY, wrong)
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        await node.until_told(lambda told: of(told, "refused"))
        done = await node.command("explain", OTHER)
        assert done.returncode == 1
        names(done.stderr, OTHER, "10DX:20B0", "permittedHostDevices.pciHostDevices[0]", "10DE:1EB8")
        done = await node.command("explain", GPU)
        assert done.returncode == 0, "another entry gives it a device"
        names(done.stderr, GPU, "10DX:20B0", "permittedHostDevices.pciHostDevices[2]", "10DE:1EB8")


async def test_after_a_reboot_the_last_wishes_count_until_the_api_server_answers(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    async with followed(node) as (daemon, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        await node.until_told(lambda told: of(told, "lastSaved"))
        await daemon.end(signal.SIGKILL)
    kept = node.root / LASTING
    assert kept.stat().st_mode & 0o777 == 0o600
    await server.stop()
    async with node.kubelet() as kubelet, node.daemon(*FLAGS):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        assert T4 not in kubelet.state.table.devices, "discovery never had it"
        told = await node.until_told(lambda told: of(told, "error"))
        assert of(told, "kubevirt") == "kubevirt/kubevirt"
        put(server, ENTRY | {"resourceName": OTHER})
        await server.start()
        await kubelet.until_listed(OTHER, 1, PATIENCE)


async def test_what_cannot_be_kept_is_told_once_and_kept_when_it_can_be(
    node: Node, server: FakeApiServer
) -> None:
    (node.root / "var/lib").mkdir(parents=True)
    (node.root / "var/lib/nodeagent").write_text("no directory")
    put(server, ENTRY)
    async with followed(node) as (daemon, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        told = await node.until_told(lambda told: of(told, "warnings"))
        assert "/var/lib/nodeagent" in told["problems"][0]
        assert of(told, "lastSaved") is None
        put(server, ENTRY | {"resourceName": OTHER})
        await kubelet.until_listed(OTHER, 1, SOON)
        await daemon.logged("cluster-state-not-saved")
        assert len(daemon.lines("cluster-state-not-saved")) == 1
        (node.root / "var/lib/nodeagent").unlink()
        put(server, ENTRY)
        await node.until_told(lambda told: of(told, "lastSaved"))
        assert (await node.status()).get("problems", []) == []


async def test_nobody_waits_for_a_disk_that_hangs(node: Node, server: FakeApiServer) -> None:
    """A pipe without a reader: whoever opens it to write, waits."""
    kept = node.root / "var/lib/nodeagent"
    kept.mkdir(parents=True)
    os.mkfifo(kept / "last.new")
    async with followed(node) as (_, kubelet):
        put(server, ENTRY)
        await kubelet.until_listed(GPU, 1, SOON)
        put(server, ENTRY | {"resourceName": OTHER})
        await kubelet.until_listed(OTHER, 1, SOON)


async def test_a_damaged_record_is_set_aside_and_said(node: Node, server: FakeApiServer) -> None:
    kept = node.root / LASTING
    kept.parent.mkdir(parents=True)
    kept.write_text("{")
    async with followed(node) as (daemon, _):
        await daemon.logged("state-damaged")
        assert daemon.lines("state-damaged")
        assert (kept.parent / "last.json.broken").read_text() == "{"


@pytest.mark.slow
async def test_devices_are_served_while_the_api_server_is_away(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    async with followed(node) as (daemon, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        await server.stop()
        await daemon.logged("cluster-watch-failed")
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        assert vm.phase == "Running"
        kubelet.delete(vm)
        node.host.bind("0000:20:00.0", "nvidia")
        await until_health(kubelet, GPU, "0000:20:00.0", "Unhealthy")
        await server.start()
        await node.until_told(lambda told: of(told, "reachable"))
        assert len(daemon.lines("cluster-watch-failed")) <= 2, "one for each kind"


async def test_labels_of_the_node_and_the_cr_choose_what_is_made(node: Node, server: FakeApiServer) -> None:
    node.configure("mdevs: {manage: true}\nkubevirt: {manageMdevs: true}")
    types = {"nodeSelector": {"example.com/use": "a"}, "mediatedDeviceTypes": ["nvidia-228"]}
    wanted = {"enabled": False, "mediatedDeviceTypes": ["nvidia-222"], "nodeMediatedDeviceTypes": [types]}
    async with two_cards(node) as made:
        put(server, mediatedDevicesConfiguration=wanted)
        async with followed(node):
            await eventually(lambda: made.types_on(FIRST) == ["nvidia-222"] * 16)
            label(server, **{"example.com/use": "a"})
            await eventually(lambda: made.types_on(FIRST) == ["nvidia-228"] * 2)
            label(server)
            await eventually(lambda: made.types_on(FIRST) == ["nvidia-222"] * 16)


NODE_TYPES = {"nodeSelector": {}, "mediatedDeviceTypes": ["nvidia-222"]}


@pytest.mark.parametrize(
    "broken",
    [
        {"mediatedDeviceTypes": "nvidia-222"},
        {"mediatedDeviceTypes": [222]},
        {"mediatedDevicesTypes": {"0": "nvidia-222"}},
        {"nodeMediatedDeviceTypes": NODE_TYPES},
        {"nodeMediatedDeviceTypes": ["nvidia-222"]},
        {"nodeMediatedDeviceTypes": [NODE_TYPES | {"mediatedDeviceTypes": "nvidia-222"}]},
        {"nodeMediatedDeviceTypes": [NODE_TYPES | {"nodeSelector": "all"}]},
    ],
)
async def test_vgpus_stay_if_a_list_of_types_is_of_a_wrong_type(
    node: Node, server: FakeApiServer, broken: dict[str, Any]
) -> None:
    node.configure("mdevs: {manage: true}\nkubevirt: {manageMdevs: true}")
    wanted = {"enabled": False, "nodeMediatedDeviceTypes": [NODE_TYPES]}
    async with two_cards(node) as made:
        put(server, mediatedDevicesConfiguration=wanted)
        async with followed(node):
            await eventually(lambda: len(made.instances) == 32)
            writes = made.writes
            put(server, mediatedDevicesConfiguration={"enabled": False} | broken)
            told = await node.until_told(lambda told: "is not in force" in str(told["problems"]))
            assert f"mediatedDevicesConfiguration.{next(iter(broken))}" in str(told["problems"])
            put(server, mediatedDevicesConfiguration=wanted)
            await node.until_told(lambda told: not told.get("problems"))
            assert made.writes == writes, "no vGPU was removed or created"


async def test_five_hundred_edits_end_in_the_last_one(node: Node, server: FakeApiServer) -> None:
    async with followed(node) as (_, kubelet):
        for number in range(500):
            put(server, ENTRY | {"resourceName": f"example.com/gpu{number}"})
        await kubelet.until_listed("example.com/gpu499", 1, PATIENCE)
        names = kubelet.state.table.devices
        await kubelet.until(
            lambda: (
                [name for name in names if kubelet.state.table.allocatable(name)] == ["example.com/gpu499"]
            ),
            PATIENCE,
        )


@pytest.mark.bench
async def test_a_daemon_that_follows_the_cluster_stays_small(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    async with followed(node, under=EXEC) as (daemon, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        for number in range(100):
            put(server, ENTRY | {"resourceName": f"example.com/gpu{number % 2}"})
        await kubelet.until_listed("example.com/gpu1", 1, PATIENCE)
        assert daemon.usage().rss < 50 * 1024


async def test_without_credentials_nobody_is_asked(node: Node) -> None:
    node.add_gpu("0000:20:00.0", 20)
    environ = {key: text for key, text in os.environ.items() if not key.startswith("KUBERNETES_")}
    async with node.kubelet() as kubelet, node.daemon(environ=environ):
        await kubelet.until_listed(T4, 1, PATIENCE)
        assert not of(await node.status(), "enabled")


async def test_with_credentials_nobody_is_asked_if_the_settings_say_so(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    flags = (*FLAGS, "--kubevirt-enabled", "false")
    async with node.kubelet() as kubelet, node.daemon(*flags):
        await kubelet.until_listed(T4, 1, PATIENCE)
        assert not of(await node.status(), "enabled")
    assert server.statistics.requests == []


async def test_credentials_that_are_taken_away_leave_the_last_word_in_force_and_that_is_said(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    node.configure("kubeconfig: /etc/kubeconfig\n")
    async with node.kubelet() as kubelet, node.daemon("--node-name", NAME):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        node.configure("apiVersion: nodeagent/v1\n")
        told = await node.until_told(lambda told: not of(told, "enabled"))
        assert any("cluster" in line for line in told["problems"])
        assert kubelet.state.table.allocatable(GPU) == 1


async def test_a_kubeconfig_that_comes_later_is_used_without_a_restart(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY)
    async with node.kubelet() as kubelet, node.daemon("--node-name", NAME):
        await kubelet.until_listed(T4, 1, PATIENCE)
        node.configure("kubeconfig: /etc/kubeconfig\n")
        await kubelet.until_listed(GPU, 1, PATIENCE)


async def test_credentials_that_are_refused_are_told_and_no_component_fails(
    node: Node, server: FakeApiServer
) -> None:
    """Both watches are refused at about the same moment; three times, because the order varies."""
    server.faults.set("status", Refusal(401))
    for _ in range(3):
        async with node.daemon(*FLAGS) as daemon:
            for what in ("Nodes", "KubeVirt CRs"):
                line = await daemon.logged("cluster-watch-failed", object=what)
                assert "401" in line["error"]
            assert not daemon.lines("subsystem-failed")
    server.faults.clear("status")
    async with followed(node) as (daemon, _):
        assert not daemon.lines("subsystem-failed")
