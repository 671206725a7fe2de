# SPDX-License-Identifier: Apache-2.0
"""Mediated devices of a captured host, and a vendor vGPU, from the files to the container."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.machines.capture import materialise

CAPTURED = Path(__file__).parent.parent / "machines/hosts/6.12-mdev.json"
SERIAL = "mdev.nodeagent/Single_port_serial"
ONE, TWO = (f"0000000{number}-0000-4000-8000-00000000000{number}" for number in (1, 2))
RULES = """
resources:
  - name: example.com/serial
    mdev: [{types: [mtty-1]}, {names: [Dual_port_serial]}]
"""


@pytest.fixture
def node(tmp_path: Path, loop_may_block: None) -> Node:
    """The captured host with five mdevs."""
    materialise(CAPTURED, tmp_path)
    return Node(tmp_path)


async def test_mdevs_are_offered_and_given_by_their_uuids(node: Node) -> None:
    async with node.running(listed={SERIAL: 2, "mdev.nodeagent/mdpy-vga": 1}) as (_, kubelet):
        given = (await kubelet.admit(pod("p", {SERIAL: 2}))).result
        (variable,) = given.envs
        assert variable == "MDEV_PCI_RESOURCE_MDEV_NODEAGENT_SINGLE_PORT_SERIAL"
        assert given.envs[variable] == ",".join(given.ids[SERIAL])
        assert sorted(given.ids[SERIAL]) == [ONE, TWO]
        assert [device[0] for device in given.devices] == ["/dev/vfio/vfio", *groups(node, given.ids[SERIAL])]
        told = await node.until_told(lambda document: len(document["holders"]) == 2)
        assert not [line for line in told["problems"] if "Unhealthy" in line]


def groups(node: Node, uuids: Iterable[str]) -> list[str]:
    """The nodes of these mdevs' groups."""
    links = (Path(node.host.path(f"/sys/bus/mdev/devices/{uuid}/iommu_group")) for uuid in uuids)
    return [f"/dev/vfio/{link.readlink().name}" for link in links]


async def test_a_rule_puts_mdevs_of_several_types_under_one_name(node: Node) -> None:
    node.configure(RULES)
    async with node.running(listed={"example.com/serial": 3}) as (daemon, kubelet):
        assert kubelet.capacity("example.com/serial") == (3, 3)
        node.host.remove_node(groups(node, [ONE])[0])
        await until_health(kubelet, "example.com/serial", ONE, "Unhealthy")
        logged = await daemon.logged("device-unhealthy", device=ONE)
        assert logged["reason"] == "node-missing"


async def test_an_mdev_explains_itself(node: Node) -> None:
    told = await node.command("explain", ONE.upper())
    assert told.returncode == 0
    assert told.stdout.startswith(f"{ONE}  offered as {SERIAL}, Healthy")
    unknown = await node.command("explain", ONE[:-1] + "9")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    scanned = await node.command("scan")
    (row,) = (line for line in scanned.stdout.splitlines() if line.startswith(ONE))
    assert row.endswith(f"  {SERIAL}")


def with_vgpu(node: Node, vf: str) -> Path:
    """Give the VF a vGPU type; return the file that says so."""
    directory = Path(node.host.path(f"/sys/bus/pci/devices/{vf}/nvidia"))
    directory.mkdir()
    (directory / "creatable_vgpu_types").write_text("ID : vGPU Name\n1147 : NVIDIA A40-1B\n")
    current = directory / "current_vgpu_type"
    current.write_text("1147\n")
    return current


@pytest.mark.slow
async def test_a_vf_with_a_vgpu_type_is_offered_under_its_name_until_the_type_is_cleared(
    tmp_path: Path, loop_may_block: None
) -> None:
    node, vf = Node(tmp_path), "0000:3b:00.4"
    node.add_gpu("0000:3b:00.0", 1, sriov=4)
    node.add_gpu(vf, 2, physfn="0000:3b:00.0")
    node.host.bind("0000:3b:00.0", "nvidia")
    node.host.bind(vf, "nvidia")
    node.host.node("/dev/vfio/2")
    current = with_vgpu(node, vf)
    resource = "nvidia.com/NVIDIA_A40-1B"
    async with node.running(listed={resource: 1}) as (_, kubelet):
        given = (await kubelet.admit(pod("p", {resource: 1}))).result
        assert given.envs == {"PCI_RESOURCE_NVIDIA_COM_NVIDIA_A40-1B": vf}
        current.write_text("0\n")
        node.host.write(vf, "enable", "1")  # an event, as when the driver takes the node away
        with anyio.fail_after(PATIENCE):
            await until_health(kubelet, resource, vf, "Unhealthy")
