# SPDX-License-Identifier: Apache-2.0
"""A GPU whose memory the firmware's framebuffer holds: a VM cannot use it, and nothing calls it well."""

from __future__ import annotations

from tests.blackbox.harness import T4, Node, until_health
from tests.facts import names

IOMEM = """\
00000000-00000fff : Reserved
2800000000-2fffffffff : PCI Bus 0000:10
  2800000000-2fffffffff : {gpu}
    2800000000-2801fa3fff : BOOTFB
      2800000000-2801fa3fff : simpledrm
3000000000-3fffffffff : PCI Bus 0000:11
  3000000000-30ffffffff : {other}
    3000000000-30ffffffff : vfio-pci
"""


async def test_a_gpu_with_the_framebuffer_of_the_firmware_is_unhealthy_with_a_way_out(node: Node) -> None:
    gpu, other = node.add_gpus(2)
    node.host.write_file("/proc/iomem", IOMEM.format(gpu=gpu, other=other))
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        await until_health(kubelet, T4, gpu, "Unhealthy")
        await until_health(kubelet, T4, other, "Healthy")
        said = await daemon.logged("device-unhealthy", device=gpu)
        status = await node.command("status")
        explained = await node.command("explain", gpu)
        checked = await node.command("check")
    names(said["text"], "BOOTFB", "simpledrm")
    names(said["hint"], "initcall_blacklist=sysfb_init", "reboot")
    assert status.returncode == 3
    for text in (status.stdout, explained.stdout, checked.stdout):
        names(text, gpu, "BOOTFB")
