# SPDX-License-Identifier: Apache-2.0
"""Functions bound to VFIO by rule: a group at once or not at all, given back, never from under the host."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.blackbox.harness import PATIENCE, Node, eventually, pod, until_health
from tests.facts import names
from tests.sim import fifos
from tests.sim.drivers import SimulatedDrivers, simulated

GPU, AUDIO = "0000:3b:00.0", "0000:3b:00.1"
DISK, NIC = "0000:3b:00.2", "0000:3b:00.3"
CARDS = "example.com/card"
RESOURCE = f"""apiVersion: nodeagent/v1
discovery: {{enabled: false}}
resources: [{{name: {CARDS}, pci: [{{addresses: ["{GPU}"]}}]}}]
"""
RULE = f'passthrough: [{{match: [{{addresses: ["{GPU}"]}}]}}]\n'
ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


def add_card(node: Node) -> None:
    """A display function with its audio function, in one group."""
    for address, device, code, driver in (
        (GPU, "1eb8", "030000", "nouveau"),
        (AUDIO, "10f9", "040300", "snd_hda_intel"),
    ):
        node.host.add_function(address, vendor="10de", device=device, pci_class=code, driver=driver, group=10)


def add_disk(node: Node) -> None:
    """An NVMe disk in the group of the card, which is mounted."""
    node.host.add_function(DISK, vendor="144d", device="a808", pci_class="010802", driver="nvme", group=10)
    below(node, DISK, "nvme/nvme0/nvme0n1", "sys/class/block/nvme0n1", dev="259:0")
    node.host.write_file("/proc/1/mountinfo", "1 0 259:0 / /srv/data rw - ext4 /dev/nvme0n1 rw")


def add_network(node: Node) -> None:
    """A network interface in the group of the card, with a route."""
    node.host.add_function(NIC, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=10)
    below(node, NIC, "net/eth0", "sys/class/net/eth0", flags="0x1003")
    node.host.write_file("/proc/1/net/dev", "Inter-| Receive\n face |bytes\n eth0: 0\n")
    node.host.write_file("/proc/1/net/route", f"{ROUTES}eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n")


async def planned(node: Node) -> dict[str, Any]:
    """What ``plan`` answers to programs."""
    document: dict[str, Any] = json.loads((await node.command("plan", "-o", "json")).stdout)
    return document


def below(node: Node, address: str, path: str, listed: str, **texts: str) -> None:
    """What a driver makes of a function, and where its class lists it."""
    directory = Path(node.host.path(f"/sys/bus/pci/devices/{address}")).resolve() / path
    directory.mkdir(parents=True)
    for name, text in texts.items():
        (directory / name).write_text(f"{text}\n")
    link = node.root / listed
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(directory, link.parent))


def drivers_of(drivers: SimulatedDrivers) -> list[tuple[str | None, str]]:
    """Driver and override of each function."""
    return [(drivers.driver(address), drivers.override(address)) for address in drivers.own]


OWN: list[tuple[str | None, str]] = [("nouveau", ""), ("snd_hda_intel", "")]
BOUND: list[tuple[str | None, str]] = [("vfio-pci", "vfio-pci")] * 2


async def settled(node: Node) -> dict[str, Any]:
    """The changes that the status tells when nothing is under way."""
    told = await node.until_told(lambda told: not told["changes"]["inProgress"])
    changes: dict[str, Any] = told["changes"]
    return changes


async def test_a_free_device_of_a_group_in_use_is_no_problem_while_drivers_are_to_be_restored(
    node: Node,
) -> None:
    add_card(node)
    both = RESOURCE.replace(f'"{GPU}"', f'"{GPU}", "{AUDIO}"')
    node.configure(both + RULE)
    async with simulated(node.host, GPU, AUDIO), node.running(listed={CARDS: 2}) as (_, kubelet):
        for each in (GPU, AUDIO):
            await until_health(kubelet, CARDS, each, "Healthy")
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        (used,) = vm.result.ids[CARDS]
        (free,) = {GPU, AUDIO} - {used}
        node.configure(both)
        told = await node.until_told(lambda told: reasons(told) == {used: "going-away", free: "group-held"})
        assert told["problems"] == []


def reasons(told: dict[str, Any]) -> dict[str, str | None]:
    """Device → reason in the Status of the one resource."""
    return {device["id"]: device.get("reason") for device in told["resources"][0]["devices"]}


async def test_a_group_is_bound_as_a_whole_and_offered_and_given_back_without_its_rule(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.running(listed={CARDS: 1}) as (daemon, kubelet),
    ):
        await until_health(kubelet, CARDS, GPU, "Healthy")
        assert drivers_of(drivers) == BOUND
        names((await daemon.logged("action-done"))["action"], GPU, AUDIO, "vfio-pci")
        node.configure(RESOURCE)
        await eventually(lambda: drivers_of(drivers) == OWN, PATIENCE)
        await daemon.logged("action-done", count=2)
        await eventually(lambda: not node.has_former_drivers(), PATIENCE)
        assert [wrote.kind for wrote in drivers.writes] == [
            *(*("override", "unbind") * 2, "probe", "probe"),
            *(*("clear", "release") * 2, "reprobe", "reprobe"),
        ]


async def test_a_group_is_bound_before_the_kubelet_comes_also_beside_the_socket_of_the_last_one(
    node: Node,
) -> None:
    """Nobody listens there, so nobody gives anything."""
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet() as kubelet:
        await kubelet.stop()
        assert (kubelet.paths.pod_resources / "kubelet.sock").is_socket()
        async with node.daemon():
            await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)


async def test_what_is_as_wished_is_not_written_to(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        async with node.running(listed={CARDS: 1}) as (_, kubelet):
            await until_health(kubelet, CARDS, GPU, "Healthy")
        wrote = len(drivers.writes)
        async with node.running(listed={CARDS: 1}) as (_, kubelet):
            await until_health(kubelet, CARDS, GPU, "Healthy")
            assert (await node.status())["changes"]["writes"] == 0
            assert "nothing to do" in (await node.command("plan")).stdout
        assert (len(drivers.writes), drivers_of(drivers)) == (wrote, BOUND)


async def test_a_group_with_a_mounted_disk_is_left_as_it_is_and_the_mount_point_is_named(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.configure(RESOURCE + RULE)
    async with (
        simulated(node.host, GPU, AUDIO, DISK) as drivers,
        node.running(listed={CARDS: 1}) as (daemon, _),
    ):
        said = await daemon.logged("plan-problem")
        names(said["text"], "nvme0n1", "/srv/data", "group 10")
        told = await settled(node)
        (problem,) = told["problems"]
        assert (problem["message"], told["writes"]) == (said["text"], 0)
        assert "/srv/data" in (await node.command("plan")).stdout
        assert "/srv/data" in (await node.command("status")).stdout
        node.configure(RESOURCE + RULE.replace("}]}]", f'}}], force: ["{DISK}"]}}]'))
        await daemon.logged("config-reloaded")
        assert "/srv/data" in (await node.command("plan")).stdout
        assert drivers.writes == []


async def test_a_group_with_a_network_in_use_is_bound_only_by_force(node: Node) -> None:
    add_card(node)
    add_network(node)
    node.configure(RESOURCE + RULE)
    async with (
        simulated(node.host, GPU, AUDIO, NIC) as drivers,
        node.running(listed={CARDS: 1}) as (daemon, _),
    ):
        said = await daemon.logged("plan-problem")
        names(said["text"], "eth0", "default route")
        assert "default route" in (await node.command("plan")).stdout
        assert drivers.writes == []
        node.configure(RESOURCE + RULE.replace("}]}]", f'}}], force: ["{NIC}"]}}]'))
        await eventually(lambda: drivers.driver(NIC) == "vfio-pci", PATIENCE)
        await eventually(lambda: drivers_of(drivers)[:2] == BOUND, PATIENCE)


async def test_what_a_pod_holds_is_given_back_when_it_has_ended(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.running(listed={CARDS: 1}) as (daemon, kubelet),
    ):
        await until_health(kubelet, CARDS, GPU, "Healthy")
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        node.configure(RESOURCE)
        names((await daemon.logged("action-waiting"))["cause"], GPU)
        await node.until_told(
            lambda told: any("ns/vm" in each["message"] for each in told["changes"]["waiting"])
        )
        assert drivers_of(drivers) == BOUND
        kubelet.delete(vm)
        await eventually(lambda: drivers_of(drivers) == OWN, PATIENCE)


async def test_what_is_left_of_a_group_is_not_given_back_while_a_pod_has_what_has_left_it(node: Node) -> None:
    """The pod got the group, and may have it open, whatever of it is there."""
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.running(listed={CARDS: 1}) as (daemon, kubelet),
    ):
        await until_health(kubelet, CARDS, GPU, "Healthy")
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        await node.until_told(lambda told: told["holders"].get(GPU, {}).get("pod") == "ns/vm")
        node.host.unplug(GPU)
        await until_health(kubelet, CARDS, GPU, "Unhealthy")
        node.configure(RESOURCE)
        waits = f"{GPU} of the same group"  # what is unplugged is seen without its driver first
        await eventually(
            lambda: any(waits in line["cause"] for line in daemon.lines("action-waiting")), PATIENCE
        )
        assert drivers.driver(AUDIO) == "vfio-pci"
        kubelet.delete(vm)
        await eventually(lambda: drivers.driver(AUDIO) == "snd_hda_intel", PATIENCE)


async def test_a_rule_that_ends_while_no_daemon_runs_is_undone_by_the_next_one(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        async with node.running(listed={CARDS: 1}) as (_, kubelet):
            await until_health(kubelet, CARDS, GPU, "Healthy")
        node.configure(RESOURCE)
        async with node.running(listed={CARDS: 1}):
            await eventually(lambda: drivers_of(drivers) == OWN, PATIENCE)


async def test_what_an_operator_bound_by_hand_is_never_unbound(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        node.host.bind(GPU, "vfio-pci")
        async with node.running(listed={CARDS: 1}) as (daemon, _):
            await eventually(lambda: drivers.driver(AUDIO) == "vfio-pci", PATIENCE)
            node.configure(RESOURCE)
            await daemon.logged("action-done", count=2)
            assert drivers_of(drivers) == [("vfio-pci", ""), ("snd_hda_intel", "")]


async def test_without_a_daemon_the_plan_is_the_same_and_nothing_is_written(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        (step,) = (await planned(node))["steps"]
        assert step["kind"] == "bind-drivers"
        names(step["action"], GPU, AUDIO, "vfio-pci")
        names(step["message"], "config.yaml:4")
        add_disk(node)
        plan = await planned(node)
        (problem,) = plan["problems"]
        names(problem["message"], "nvme0n1", "/srv/data")
        assert plan["steps"] == []
        assert problem["hint"]
        assert (drivers.writes, drivers_of(drivers)) == ([], OWN)


async def test_an_unbind_that_the_kernel_does_not_end_is_told_and_holds_up_nobody(node: Node) -> None:
    add_card(node)
    node.add_gpu("0000:5e:00.0", 20)
    node.configure(RESOURCE.replace(f'"{GPU}"', '"0000:*:00.0"') + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        with held_up(node, "snd_hda_intel"):
            async with node.running(listed={CARDS: 2}) as (_, kubelet):
                await node.until_told(lambda told: bool(told["changes"]["inProgress"]))
                await kubelet.admit(pod("vm", {CARDS: 1}))
                assert drivers.writes[1:] == []
        assert drivers.driver(GPU) == "nouveau"


def held_up(node: Node, driver: str) -> AbstractContextManager[None]:
    """A write to ``unbind`` of the driver waits, as for a VM that has the device open."""
    return fifos.delaying_writers(Path(node.host.path(f"/sys/bus/pci/drivers/{driver}/unbind")))


async def test_a_function_that_came_back_is_bound_again(node: Node) -> None:
    add_card(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.running(listed={CARDS: 1}) as (_, kubelet):
        await until_health(kubelet, CARDS, GPU, "Healthy")
        node.host.unplug(AUDIO)
        node.host.plug(AUDIO)
        node.host.bind(AUDIO, "snd_hda_intel")
        await eventually(lambda: drivers_of(drivers) == BOUND, PATIENCE)
