# SPDX-License-Identifier: Apache-2.0
"""What is true of the hardware and is not seen at first sight: who cannot be given, and why, in words."""

from __future__ import annotations

import pytest
from grpclib.exceptions import GRPCError

from tests.blackbox.harness import T4, Node, allocate, health

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
        with pytest.raises(GRPCError, match="memory mapped 1:1 for IOMMU group 10"):
            await allocate(kubelet, T4, [FIRST])
        await allocate(kubelet, T4, [SECOND])
        done = await node.command("explain", FIRST)
        assert "look in the firmware's setup" in done.stdout


async def test_the_kernel_before_6_6_keeps_such_a_group_on_intel_only(node: Node) -> None:
    node.add_gpus(1)
    node.host.write_file("/sys/kernel/iommu_groups/10/reserved_regions", DIRECT)
    node.host.write_file("/proc/sys/kernel/osrelease", "6.1.0-56-amd64")
    intel = await node.command("explain", FIRST)
    assert "Unhealthy: firmware has memory mapped" in intel.stdout
    iommus = node.root / "sys/class/iommu"
    (iommus / "dmar0").rename(iommus / "ivhd0")
    amd = await node.command("explain", FIRST)
    assert "Healthy" in amd.stdout.splitlines()[0]
