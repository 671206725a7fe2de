# SPDX-License-Identifier: Apache-2.0
"""Names of discovered devices: the same on all nodes, and the same for the life of a daemon."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import running
from tests.blackbox.harness import PATIENCE, T4, Node, health, pod, run, until_health
from tests.facts import names

HWDATA = "/usr/share/hwdata/pci.ids"
OLD = "10de  NVIDIA Corporation\n\t1eb8  An Old Text\n\tfff0  Made Up [First]\n\tfff1  Made Up [Second]\n"
NEWER = OLD.replace("[First]", "[Renamed]")
FIRST, SECOND, RENAMED = (f"nvidia.com/MADE_UP_{word}" for word in ("FIRST", "SECOND", "RENAMED"))
ONE, TWO = "0000:10:00.0", "0000:11:00.0"
UNNAMED, NAMED = "nvidia.com/vgpu-without-name", "nvidia.com/NVIDIA_A40-1B"
CONFIG = '<vgpuconfig>\n<vgpuType id="1147" name="NVIDIA A40-1B" class="NVS">\n</vgpuconfig>\n'
DRIVER_ROOT = "/run/nvidia/driver/usr/share/nvidia/vgpu/vgpuConfig.xml"


def resources(kubelet: FakeKubelet) -> set[str]:
    """The resources of which the kubelet has devices."""
    return {name for name, devices in kubelet.state.table.devices.items() if devices}


async def test_the_bundled_copy_names_what_it_knows_whatever_the_host_has(node: Node) -> None:
    node.host.write_file(HWDATA, OLD)
    node.add_gpu(ONE, 1)
    node.add_gpu(TWO, 2, device="fff0")
    async with node.running(listed={T4: 1, FIRST: 1}) as (_, kubelet):
        assert resources(kubelet) == {T4, FIRST}


async def test_an_explicit_file_names_before_both_and_leaves_the_rest_to_them(node: Node) -> None:
    node.host.write_file(HWDATA, OLD)
    node.host.write_file("/etc/nodeagent/pci.ids", "10de  NVIDIA Corporation\n\t1eb8  My Own\n")
    node.configure("discovery: {pciIds: /etc/nodeagent/pci.ids}")
    node.add_gpu(ONE, 1)
    node.add_gpu(TWO, 2, device="fff0")
    async with node.running(listed={"nvidia.com/MY_OWN": 1, FIRST: 1}) as (_, kubelet):
        assert resources(kubelet) == {"nvidia.com/MY_OWN", FIRST}


async def test_an_explicit_file_that_is_missing_is_a_mistake_in_two_lines(node: Node) -> None:
    path = node.configure("discovery: {pciIds: /etc/nodeagent/pci.ids}")
    done = await node.command("run")
    what, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"{path}:1: discovery.pciIds" in what
    assert "no such file" in what
    assert "pci.ids" in hint


async def test_an_unrelated_card_after_a_package_update_renames_nothing(node: Node) -> None:
    node.host.write_file(HWDATA, OLD)
    node.add_gpu(ONE, 1, device="fff0")
    async with node.running(listed={FIRST: 1}) as (_, kubelet):
        node.host.write_file(HWDATA, NEWER)
        node.add_gpu(TWO, 2, device="fff1")
        await kubelet.until_listed(SECOND, 1, PATIENCE)
        assert resources(kubelet) == {FIRST, SECOND}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_at_a_start_the_hosts_file_may_rename_a_resource_and_no_device_gets_a_second_pod(
    node: Node, end: signal.Signals
) -> None:
    node.host.write_file(HWDATA, OLD)
    node.add_gpu(ONE, 1, device="fff0")
    node.add_gpu(TWO, 2, device="fff0")
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(FIRST, 2, PATIENCE)
            running(await kubelet.admit(pod("vm", {FIRST: 1})))
            await daemon.end(end)
        node.host.write_file(HWDATA, NEWER)
        async with node.daemon():
            await kubelet.until_listed(RENAMED, 2, PATIENCE)
            assert sorted(health(kubelet, RENAMED).values()) == ["Healthy", "Unhealthy"]
            running(await kubelet.admit(pod("second", {RENAMED: 1})))
            assert (await kubelet.admit(pod("third", {RENAMED: 1}))).phase != "Running"


def with_vgpu(node: Node, number: str, creatable: str = "") -> None:
    """A VF of NVIDIA's driver that has a vGPU type."""
    node.host.add_function(ONE, vendor="10de", device="2235", pci_class="030200", driver="nvidia", group=1)
    directory = Path(node.host.path(f"/sys/bus/pci/devices/{ONE}/nvidia"))
    directory.mkdir(exist_ok=True)
    (directory / "creatable_vgpu_types").write_text(f"ID : vGPU Name\n{creatable}")
    (directory / "current_vgpu_type").write_text(f"{number}\n")
    node.host.node("/dev/vfio/1")


async def test_a_vgpu_type_without_a_name_is_unhealthy_until_it_has_one(node: Node) -> None:
    with_vgpu(node, "1147")
    async with node.running("--timing-resync", "1s", listed={UNNAMED: 1}) as (daemon, kubelet):
        await until_health(kubelet, UNNAMED, ONE, "Unhealthy")
        line = await daemon.logged("device-unhealthy", device=ONE)
        assert line["reason"] == "type-name-unknown"
        node.host.write_file(DRIVER_ROOT, CONFIG)
        await until_health(kubelet, NAMED, ONE, "Healthy")
        await kubelet.until(lambda: health(kubelet, UNNAMED) == {}, PATIENCE)
        assert resources(kubelet) == {NAMED}


async def test_the_date_of_the_bundled_copy_is_told(node: Node) -> None:
    data = Path(__file__).parents[2] / "nodeagent/data/pci.ids"
    (dated,) = (line for line in data.read_text().splitlines()[:20] if line.startswith("#\tDate:"))
    date = dated.split()[2]
    version = (await run("--version")).stdout.splitlines()
    names(version[1], "pci.ids", date)
    async with node.running(listed={}):
        names((await node.command("status")).stdout, "pci.ids", date)
