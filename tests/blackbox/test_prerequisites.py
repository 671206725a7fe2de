# SPDX-License-Identifier: Apache-2.0
"""An IOMMU or a driver that is missing: one story on all pages, advice that fits this host, none to bind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.harness import Node
from tests.blackbox.test_bindings import GPU
from tests.facts import names

CPUS = {
    "VT-d": "vendor_id\t: GenuineIntel",
    "AMD-Vi": "vendor_id\t: AuthenticAMD",
    "SMMU": "CPU implementer\t: 0x41",
}
SWITCHES = pytest.mark.parametrize("switch", CPUS)
RULES = f"""\
passthrough: [{{match: [{{addresses: ["{GPU}"]}}]}}]
resources: [{{name: example.com/gpu, pci: [{{addresses: ["{GPU}"]}}]}}]
"""


def add_gpu(node: Node, group: int | None) -> None:
    """A GPU on a host driver."""
    node.host.add_function(
        GPU, vendor="10de", device="1eb8", pci_class="030000", driver="nouveau", group=group
    )


def without_iommu(node: Node, switch: str = "VT-d") -> None:
    """A GPU on a host whose IOMMU is off, with a processor of the vendor of that switch."""
    (node.root / "sys/class/iommu/dmar0").unlink()
    node.host.write_file("/proc/cpuinfo", CPUS[switch])
    add_gpu(node, None)


def without_module(node: Node) -> None:
    """A GPU on a host whose kernel has no vfio-pci."""
    (node.root / "sys/bus/pci/drivers/vfio-pci").rmdir()
    node.host.write_file("/lib/modules/6.12.95/modules.dep", "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz:")
    add_gpu(node, 10)


async def output(node: Node, *arguments: str) -> str:
    """The text of a command."""
    return (await node.command(*arguments)).stdout


async def explained(node: Node, name: str = GPU) -> dict[str, Any]:
    """The answer of ``explain`` to programs."""
    document: dict[str, Any] = json.loads(await output(node, "explain", name, "-o", "json"))
    return document


def fits(text: str, switch: str) -> bool:
    """True if the advice names this switch of the firmware and no other one."""
    return switch in text and not any(other in text for other in CPUS if other != switch)


@SWITCHES
async def test_scan_explain_bind_and_check_name_the_iommu_of_this_architecture(
    node: Node, switch: str
) -> None:
    without_iommu(node, switch)
    for arguments in (("scan",), ("explain", GPU), ("bind", GPU, "--dry-run"), ("check",)):
        assert fits(await output(node, *arguments), switch), arguments


@SWITCHES
async def test_log_and_status_name_the_iommu_of_this_architecture(node: Node, switch: str) -> None:
    without_iommu(node, switch)
    node.configure(RULES)
    async with node.kubelet(), node.daemon() as daemon:
        assert fits((await daemon.logged("device-unhealthy", device=GPU))["hint"], switch)
        await node.until_told(lambda told: len(told["changes"]["problems"]) == 1)
        text = await output(node, "status")
    assert fits(text, switch)


async def test_a_function_without_a_group_is_not_told_to_switch_an_active_iommu_on(node: Node) -> None:
    add_gpu(node, None)
    node.configure(RULES)
    async with node.kubelet(), node.daemon():
        await node.until_told(lambda told: len(told["problems"]) == 2)
        texts = [await output(node, *words) for words in (("status",), ("plan",), ("bind", GPU, "--dry-run"))]
    texts += [await output(node, "explain", GPU)]
    for text in texts:
        names(text, GPU, "kernel log")
        assert "turn the IOMMU on" not in text
        assert "switch" not in text
        assert "no IOMMU separates" not in text


async def test_without_an_iommu_nobody_is_advised_to_bind(node: Node) -> None:
    without_iommu(node)
    assert "bind" not in (await explained(node))["hint"]
    assert "bound" not in await output(node, "scan")
    node.configure(RULES.partition("\n")[2])
    assert "bind" not in (await explained(node))["hint"]


async def test_a_card_whose_vgpus_are_wanted_is_not_advised_to_be_bound(node: Node) -> None:
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    card = Card(GPU, (Type("nvidia-222", 16, "GRID T4-1B"),))
    add_card(node.host, card, 10)
    node.configure("mdevs: {manage: true, types: [nvidia-222]}\n" + RULES.partition("\n")[2])
    async with simulated_cards(node.host, MdevKernel([card])):
        told = await explained(node)
    names(told["hint"], "mdevs")
    assert "bind" not in told["hint"]


async def test_vfs_with_vgpus_are_not_advised_to_be_removed_for_their_pf(node: Node) -> None:
    vf = "0000:3b:00.4"
    node.add_gpu(GPU, 10, sriov=4)
    node.add_gpu(vf, 11, physfn=GPU)
    for address in (GPU, vf):
        node.host.bind(address, "nvidia")
    node.configure(RULES.partition("\n")[2])
    told = await explained(node)
    names(told["hint"], "vGPUs")
    assert "remove its" not in told["hint"]
    assert "bind" not in told["hint"]


async def test_a_driver_that_this_kernel_lacks_is_not_advised_to_be_loaded(node: Node) -> None:
    without_module(node)
    node.configure(RULES)
    for arguments in (("scan",), ("bind", GPU, "--dry-run"), ("plan",), ("check",)):
        text = await output(node, *arguments)
        names(text, "/lib/modules/6.12.95")
        assert "modprobe vfio-pci" not in text


async def test_explain_does_not_advise_to_bind_to_a_driver_that_this_kernel_lacks(node: Node) -> None:
    without_module(node)
    names((await explained(node))["hint"], "linux-modules-extra")
    assert "bind" not in (await explained(node))["hint"]
