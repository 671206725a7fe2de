# SPDX-License-Identifier: Apache-2.0
"""What the daemon advises never takes its host down: the network that this lives on is not to be bound."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.blackbox.harness import Node

NIC, GPU = "0000:03:00.0", "0000:04:00.0"
RULE = 'resources: [{name: example.com/nic, pci: [{vendors: ["8086"]}]}]\n'
ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
DEV = "Inter-| Receive\n face |bytes\n eth0: 0\n"


def add_network(node: Node) -> None:
    """A NIC whose interface is up and has the default route."""
    node.host.add_function(NIC, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20)
    directory = Path(node.host.path(f"/sys/bus/pci/devices/{NIC}")).resolve() / "net/eth0"
    directory.mkdir(parents=True)
    (directory / "flags").write_text("0x1003\n")
    interfaces = node.root / "sys/class/net"
    interfaces.mkdir(parents=True)
    (interfaces / "eth0").symlink_to(os.path.relpath(directory, interfaces))
    node.host.write_file("/proc/1/net/dev", DEV)
    route(node, "eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n")


def route(node: Node, line: str) -> None:
    node.host.write_file("/proc/1/net/route", ROUTES + line)


def leaves_it(hint: str) -> bool:
    """True if the advice is for an interface in use: no driver is to be changed."""
    return "eth0" in hint and "default route" in hint and "vfio-pci" not in hint


def binds_it(hint: str) -> bool:
    """True if the advice is for a function that the host does not use."""
    return NIC in hint and "vfio-pci" in hint and "default route" not in hint


async def test_the_first_line_of_the_log_and_the_status_leave_the_host_its_network(node: Node) -> None:
    add_network(node)
    node.configure(RULE)
    async with node.kubelet(), node.daemon() as daemon:
        assert leaves_it((await daemon.logged("device-unhealthy", device=NIC))["hint"])
        (resource,) = (await node.status())["resources"]
        assert [leaves_it(device["hint"]) for device in resource["devices"]] == [True]
        for verb in (("status",), ("explain", NIC)):
            assert "default route" in (done := await node.command(*verb)).stdout
            assert "vfio-pci" not in done.stdout


async def test_a_gpu_whose_group_has_the_network_of_the_host_is_not_to_be_bound(node: Node) -> None:
    add_network(node)
    node.host.add_function(GPU, vendor="10de", device="1eb8", pci_class="030200", driver="nouveau", group=20)
    node.configure(f'resources: [{{name: example.com/gpu, pci: [{{addresses: ["{GPU}"]}}]}}]\n')
    async with node.kubelet(), node.daemon() as daemon:
        hint = (await daemon.logged("device-unhealthy", device=GPU))["hint"]
        done = await node.command("explain", GPU, "-o", "json")
    for advice in (hint, json.loads(done.stdout)["hint"]):
        assert NIC in advice
        assert leaves_it(advice)


async def test_a_rule_that_comes_later_is_advised_on_as_well_from_its_first_line(node: Node) -> None:
    add_network(node)
    async with node.kubelet(), node.daemon() as daemon:
        node.configure(RULE)
        assert leaves_it((await daemon.logged("device-unhealthy", device=NIC))["hint"])


async def test_what_the_host_has_given_up_may_be_bound_after_the_next_look(node: Node) -> None:
    add_network(node)
    node.configure(RULE + "timing: {resync: 1s}\n")
    async with node.kubelet(), node.daemon() as daemon:
        await daemon.logged("device-unhealthy", device=NIC)
        route(node, "")
        done = await node.command("explain", NIC, "-o", "json")
        assert binds_it(json.loads(done.stdout)["hint"])
        await node.until_told(
            lambda told: [binds_it(each["hint"]) for each in told["resources"][0]["devices"]] == [True]
        )
        await daemon.logged("device-unhealthy", device=NIC)
        assert len(daemon.lines("device-unhealthy", device=NIC)) == 1
