# SPDX-License-Identifier: Apache-2.0
"""The node of an IOMMU group is given with its devices alone, however a rule or a CDI file names it."""

from __future__ import annotations

import json
import os

import pytest

from nodeagent.sim import files
from tests.blackbox.boards import GPU, all_listed, refusal, running, usb_boards
from tests.blackbox.harness import Node, health, pod
from tests.blackbox.test_one_group_nodes import BY_CDI, BY_NODE, RULE, SHARED
from tests.facts import names
from tests.sim import devnodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")


def described(node: Node, *names: str, **device_node: object) -> None:
    """A CDI file of another tool, with this node behind each of its names."""
    edits = {"deviceNodes": [device_node]}
    devices = [{"name": name, "containerEdits": edits} for name in names or ("0",)]
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": devices}
    files.write(node.host.path("/etc/cdi/gpu.json"), json.dumps(spec))


@pytest.mark.parametrize(
    "device_node",
    [
        {"path": "/dev/vfio/20", "type": "c", "major": 240, "minor": 20},
        {"path": "/dev/gpu", "hostPath": "/dev/vfio/20", "type": "c", "major": 240, "minor": 20},
        {"path": "/dev//vfio/./20"},
        {"path": "/run/driver/dev/vfio//20"},
        {"path": "/run/driver/dev/./vfio/20"},
    ],
)
async def test_a_cdi_file_gives_no_node_of_a_group_however_it_is_written(
    node: Node, device_node: dict[str, object]
) -> None:
    usb_boards(node, 1)
    files.write(node.host.path("/run/driver/dev/vfio/20"), "")
    described(node, **device_node)
    node.configure(RULE % BY_CDI)
    async with node.kubelet() as kubelet, node.daemon():
        await all_listed(kubelet, {GPU: 1, SHARED: 1})
        running(await kubelet.admit(pod("vm", {GPU: 1})))
        assert set(health(kubelet, SHARED).values()) == {"Unhealthy"}
        assert "of IOMMU groups" in await refusal(kubelet, SHARED, next(iter(health(kubelet, SHARED))))


async def test_two_names_of_one_numbered_node_are_one_device(node: Node) -> None:
    """By number and by UUID, as tools write them."""
    described(node, "0", "GPU-1", path="/dev/card", type="c", major=226, minor=0)
    node.configure(f"resources: [{BY_CDI}]")
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SHARED, 1)
        assert health(kubelet, SHARED) == {"vendor.example/gpu=0": "Healthy"}


async def test_a_node_that_somebody_has_made_with_the_number_of_a_group_is_the_group_s(node: Node) -> None:
    usb_boards(node, 1)
    devnodes.add(node.host, "/dev/mine", (240, 20))
    files.directory(node.host.path("/sys/dev/char"))
    node.host.tree.link("/sys/dev/char/240:20", "/sys/devices/virtual/vfio/20")
    node.configure(RULE % (BY_NODE % "path: /dev/mine"))
    async with node.kubelet() as kubelet, node.daemon():
        await all_listed(kubelet, {GPU: 1, SHARED: 2})
        names(await refusal(kubelet, SHARED, "mine-0"), "/dev/mine", "/dev/vfio/20")
