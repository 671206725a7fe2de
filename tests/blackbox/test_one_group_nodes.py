# SPDX-License-Identifier: Apache-2.0
"""The node of an IOMMU group is given with its devices alone: no rule for nodes and no CDI file shares it.

Such Devices are no part of a group, so nobody asks who holds it.
"""

from __future__ import annotations

import json
import os

import pytest

from nodeagent.sim import files
from tests.blackbox.boards import GPU, all_listed, refusal, running, usb_boards
from tests.blackbox.harness import PATIENCE, Node, health, pod
from tests.sim import devnodes
from tests.sim.usb import HUB, STICK

SHARED, RULE = "example.com/shared", 'resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}, %s]'
BY_NODE = "{name: example.com/shared, node: {%s, count: 2}}"
BY_CDI = "{name: example.com/shared, cdiDevices: {kind: vendor.example/gpu}}"


def linked(node: Node) -> None:
    """udev's links by number, and one to the directory of all groups."""
    node.host.tree.link("/dev/char/240:20", "/dev/vfio/20")
    files.link(node.host.path("/dev/groups"), "vfio")


def described(node: Node, path: str) -> None:
    """A CDI file of another tool that has a device with this node."""
    edits = {"deviceNodes": [{"path": path}]}
    devices = [{"name": "0", "containerEdits": edits}]
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": devices}
    files.write(node.host.path("/etc/cdi/gpu.json"), json.dumps(spec))


@pytest.mark.parametrize(
    "rule",
    [
        BY_NODE % "path: /dev/char/240:20",
        BY_NODE % 'paths: ["/dev/char/*"]',
        BY_NODE % 'paths: ["/dev/char/*"], perPath: true',
        BY_NODE % "path: /dev/groups/20",
        BY_NODE % 'paths: ["/dev/groups/2*"]',
        BY_NODE % "path: /dev/groups",
        BY_CDI,
    ],
)
async def test_the_node_of_a_group_is_given_with_its_devices_alone(node: Node, rule: str) -> None:
    usb_boards(node, 1)
    linked(node)
    described(node, "/dev/vfio/20")
    node.configure(RULE % rule)
    async with node.kubelet() as kubelet, node.daemon():
        await all_listed(kubelet, {GPU: 1, SHARED: 1 if rule == BY_CDI else 2})
        running(await kubelet.admit(pod("vm", {GPU: 1})))
        states = health(kubelet, SHARED)
        assert set(states.values()) == {"Unhealthy"}
        assert "of IOMMU groups" in await refusal(kubelet, SHARED, next(iter(states)))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
@pytest.mark.parametrize(
    "rule",
    [
        BY_NODE % "path: /dev/bus/usb/001/004",
        BY_NODE % 'paths: ["/dev/bus/usb/001/*"], perPath: true',
        BY_NODE % 'paths: ["/dev/ttyUSB*"]',
        BY_NODE % "path: /dev/bus/usb/001",
        BY_NODE % "path: /dev/bus",
        BY_CDI,
    ],
)
async def test_a_node_of_a_usb_device_that_a_rule_offers_is_given_with_it_alone(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", HUB, 3)
    node.usb.plug("1-1.3", STICK._replace(vendor="1234"), 5)
    for number, port in enumerate(("2", "3")):
        behind = f"{node.usb.path('1-1')}/1-1.{port}/1-1.{port}:1.0/ttyUSB{number}"
        devnodes.add(node.host, f"/dev/ttyUSB{number}", (188, number), behind)
    described(node, "/dev/ttyUSB0")
    node.configure(f'resources: [{{name: {GPU}, usb: [{{vendors: ["46f4"]}}]}}, {rule}]')
    async with node.kubelet() as kubelet, node.daemon() as daemon:
        await daemon.logged("ready")
        node.usb.plug("1-1.2", STICK, 4)
        await kubelet.until_listed(GPU, 1)
        await kubelet.until(lambda: "Unhealthy" in health(kubelet, SHARED).values(), PATIENCE)
        running(await kubelet.admit(pod("vm", {GPU: 1})))
        (given, *_) = [each for each, state in health(kubelet, SHARED).items() if state == "Unhealthy"]
        assert "46f4:0001" in await refusal(kubelet, SHARED, given)
