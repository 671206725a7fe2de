# SPDX-License-Identifier: Apache-2.0
"""What is true of the hardware and is not seen at first sight: who cannot be given, and why, in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from nodeagent.sim import files
from tests.blackbox.harness import T4, Node, allocate, health, until_health, within
from tests.facts import names

PF, VF = "0000:20:00.0", "0000:20:00.4"
FIRST, SECOND = "0000:10:00.0", "0000:11:00.0"
DIRECT = "0x00000000000e8000 0x00000000000e8fff direct"
RELAXABLE = "0x00000000000e8000 0x00000000000e8fff direct-relaxable"


async def test_a_group_in_which_firmware_has_memory_mapped_is_not_given_and_the_setup_is_named(
    node: Node,
) -> None:
    node.add_gpus(2)
    node.host.write_file("/sys/kernel/iommu_groups/10/reserved_regions", DIRECT)
    node.host.write_file("/sys/kernel/iommu_groups/11/reserved_regions", RELAXABLE)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        assert health(kubelet, T4) == {FIRST: "Unhealthy", SECOND: "Healthy"}
        line = await daemon.logged("device-unhealthy", device=FIRST)
        assert line["reason"] == "mapped-by-firmware"
        with pytest.raises(GRPCError, match="IOMMU group 10"):
            await allocate(kubelet, T4, [FIRST])
        await allocate(kubelet, T4, [SECOND])
        done = await node.command("explain", FIRST)
        assert "firmware" in done.stdout


async def test_the_kernel_before_6_6_keeps_such_a_group_on_intel_only(node: Node) -> None:
    node.add_gpus(1)
    node.host.write_file("/sys/kernel/iommu_groups/10/reserved_regions", DIRECT)
    node.host.write_file("/proc/sys/kernel/osrelease", "6.1.0-56-amd64")
    intel = await node.command("explain", FIRST)
    names(intel.stdout.splitlines()[0], "Unhealthy", "firmware")
    iommus = node.root / "sys/class/iommu"
    (iommus / "dmar0").rename(iommus / "ivhd0")
    amd = await node.command("explain", FIRST)
    assert "Healthy" in amd.stdout.splitlines()[0]


def add_vf_of_nvidia(node: Node) -> Path:
    """A VF that NVIDIA's driver has just taken; its file with the vGPU type, which cannot be read yet.

    The PF is in the same group, and on the same driver.
    """
    for address, sriov, physfn in ((PF, 4, None), (VF, 0, PF)):
        node.host.add_function(
            address,
            vendor="10de",
            device="1eb8",
            pci_class="030200",
            driver="nvidia",
            group=20,
            sriov=sriov,
            physfn=physfn,
        )
    function = Path(node.host.path(f"/sys/bus/pci/devices/{VF}"))
    (function / "vfio-dev/vfio7").mkdir(parents=True)
    (function / "nvidia").mkdir()
    (function / "nvidia/current_vgpu_type").write_bytes(b"\xff")
    node.host.node("/dev/vfio/20")
    return function / "nvidia/current_vgpu_type"


async def test_a_vf_on_the_driver_of_nvidia_is_no_gpu_to_pass_through_and_a_vgpu_as_soon_as_it_is_one(
    node: Node,
) -> None:
    current = add_vf_of_nvidia(node)
    node.configure('resources: [{name: example.com/gpu, pci: [{addresses: ["0000:20:00.4"]}]}]')
    async with node.running(listed={"example.com/gpu": 1}) as (daemon, kubelet):
        line = await daemon.logged("device-unhealthy", device=VF)
        names(line["message"], VF, "vGPU")
        assert health(kubelet, "example.com/gpu") == {VF: "Unhealthy"}
        files.write_unseen(str(current), "1147\n", str(node.root / "aside"))
        await within(3, until_health(kubelet, "example.com/gpu", VF, "Healthy"))
        assert len(kubelet.statistics.lists["example.com/gpu"]) == 2
        members = json.loads((await node.command("explain", VF, "-o", "json")).stdout)["members"]
        assert {"address": PF, "driver": "nvidia", "role": "friendly"} in members


async def test_vfs_of_a_pf_on_vfio_are_not_given_for_nobody_sends_their_token(node: Node) -> None:
    node.configure(
        'resources: [{name: example.com/pf, pci: [{addresses: ["0000:20:00.0"]}]}, '
        '{name: example.com/vf, pci: [{addresses: ["0000:20:00.4"]}]}]'
    )
    node.add_gpu(PF, 20, sriov=4)
    node.add_gpu(VF, 21, physfn=PF)
    async with node.running(listed={"example.com/pf": 1, "example.com/vf": 1}) as (daemon, kubelet):
        line = await daemon.logged("device-unhealthy", device=VF)
        assert line["reason"] == "needs-vf-token"
        assert health(kubelet, "example.com/pf") == {PF: "Healthy"}
        with pytest.raises(GRPCError, match="VF token"):
            await allocate(kubelet, "example.com/vf", [VF])
        node.host.hold(VF)
        with pytest.raises(GRPCError, match="VFs"):
            await allocate(kubelet, "example.com/pf", [PF])
        node.host.release(VF)
        await until_health(kubelet, "example.com/pf", PF, "Healthy")
        node.host.bind(PF, "nvidia")
        await until_health(kubelet, "example.com/vf", VF, "Healthy")
        node.host.bind(PF, "vfio-pci")
        await until_health(kubelet, "example.com/vf", VF, "Unhealthy")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [True, False])
async def test_a_count_of_opens_that_a_former_driver_has_left_keeps_no_card_from_being_given(
    node: Node, processes: bool
) -> None:
    """Where no process can be seen there is doubt, and that is Healthy with a note."""
    node.add_gpus(1)
    node.host.write(FIRST, "enable", "1")
    if processes:
        files.directory(node.host.path("/proc/4711/fd"))
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        assert health(kubelet, T4) == {FIRST: "Healthy"}
        told = json.loads((await node.command("explain", FIRST, "-o", "json")).stdout)
        assert told["healthy"]
        assert told["facts"]["opens"].startswith("1 ")
        assert ("no process" in told["facts"]["opens"]) is processes
        (given,) = await allocate(kubelet, T4, [FIRST])
        assert [each.host_path for each in given.devices] == ["/dev/vfio/vfio", "/dev/vfio/10"]
        assert not daemon.lines("device-unhealthy")


async def test_a_card_that_a_process_has_open_says_which_though_a_former_driver_has_left_a_count(
    node: Node,
) -> None:
    node.add_gpus(1)
    node.host.write(FIRST, "enable", "1")
    files.directory(node.host.path("/proc/4711/fd"))
    node.host.write_file("/proc/4711/comm", "qemu-system-x86")
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        assert health(kubelet, T4) == {FIRST: "Healthy"}
        node.host.tree.link("/proc/4711/fd/7", "/dev/vfio/10")
        node.host.write(FIRST, "enable", "2")
        line = await daemon.logged("device-unhealthy", device=FIRST)
        assert line["reason"] == "held-outside-kubernetes"
        names(line["message"], "4711", "qemu-system-x86")
        node.host.tree.remove("/proc/4711/fd/7")
        node.host.write(FIRST, "enable", "1")
        await until_health(kubelet, T4, FIRST, "Healthy")


@pytest.mark.parametrize("cdi", [True, False])
async def test_the_memory_of_a_socket_goes_with_all_gpus_of_it(node: Node, cdi: bool) -> None:
    node.add_gpus(2)
    node.host.node("/dev/egm4")
    node.host.write_file("/sys/class/egm/egm4/gpu_devices", f"{FIRST} {SECOND}")
    node.configure(
        f'resources: [{{name: example.com/gpu, cdi: {cdi}, pci: [{{devices: ["1eb8"]}}]}}]'.lower()
    )
    async with node.running(listed={"example.com/gpu": 2}) as (_, kubelet):
        (one,) = await allocate(kubelet, "example.com/gpu", [FIRST])
        assert "/dev/egm4" not in [each.host_path for each in one.devices]
        (both,) = await allocate(kubelet, "example.com/gpu", [FIRST, SECOND])
        assert [each.host_path for each in both.devices].count("/dev/egm4") == 1
