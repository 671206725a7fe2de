# SPDX-License-Identifier: Apache-2.0
"""The simulated host keeps to what real kernels show; the captured hosts are the measure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.sim import fifos, hosts

A, B = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")


def add(host: SimulatedHost, address: str, driver: str | None = "vfio-pci", group: int = 5) -> None:
    host.add_function(address, vendor="8086", device="10d3", pci_class="020000", driver=driver, group=group)


def scan(directory: Path) -> Host:
    return Looks(Root(directory)).full()


def test_every_link_is_relative_and_leads_somewhere(tmp_path: Path) -> None:
    nodes.demo_node(tmp_path)
    for directory, names, files in os.walk(tmp_path):
        for name in (*names, *files):
            path = Path(directory, name)
            if path.is_symlink() and name != "dmar0":
                assert not os.readlink(path).startswith("/")
                assert path.exists(), path


def test_links_look_like_the_kernels(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    add(host, A)
    device = tmp_path / "sys/bus/pci/devices" / A
    assert os.readlink(device) == f"../../../devices/pci0000:00/0000:00:10.0/{A}"
    assert os.readlink(device / "driver") == "../../../../bus/pci/drivers/vfio-pci"
    assert os.readlink(device / "iommu_group") == "../../../../kernel/iommu_groups/5"
    assert os.readlink(tmp_path / "sys/bus/pci/drivers/vfio-pci" / A) == (
        f"../../../../devices/pci0000:00/0000:00:10.0/{A}"
    )


def test_the_groups_node_is_there_from_the_first_to_the_last(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path, cdev=True)
    add(host, A, driver="e1000e")
    add(host, B, driver=None)
    node = tmp_path / "dev/vfio/5"
    assert not node.exists()
    for address in (A, B):
        host.bind(address, "vfio-pci")
        assert node.exists()
    assert sorted(os.listdir(tmp_path / "dev/vfio/devices")) == ["vfio0", "vfio1"]
    host.bind(A, None)
    assert node.exists()
    add(host, "0000:02:00.0", group=6)
    assert scan(tmp_path).functions[PciAddress("0000:02:00.0")].vfio_device == "vfio0"
    host.bind(B, "e1000e")
    assert not node.exists()
    assert scan(tmp_path).functions[B].enable == 1


def test_a_function_that_goes_away_while_held_keeps_the_node(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    add(host, A)
    host.begin_going_away(A)
    function = scan(tmp_path).functions[A]
    assert (function.driver, function.vfio, function.enable) == (None, False, 1)
    assert scan(tmp_path).groups[GroupNumber(5)].node
    host.finish_going_away(A)
    assert not scan(tmp_path).groups[GroupNumber(5)].node
    assert scan(tmp_path).functions[A].enable == 0


def test_unplugging_leaves_no_trace_and_plugging_makes_a_new_device(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    empty = scan(tmp_path)
    add(host, A)
    first = scan(tmp_path).functions[A]
    host.unplug(A)
    assert scan(tmp_path) == empty
    assert not (tmp_path / "dev/vfio/5").exists()
    host.plug(A)
    second = scan(tmp_path).functions[A]
    assert (second.driver, second.group) == (None, 5)
    assert second.inode != first.inode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_device_nodes_are_real_when_asked_for(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path, mknod=True)
    try:
        host.node("/dev/kvm")
    except PermissionError:
        pytest.skip("this container makes no device nodes")
    assert stat.S_ISCHR((tmp_path / "dev/kvm").stat().st_mode)


def test_a_hanging_attribute_gets_its_content_back(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    add(host, A)
    fifos.hang(host, A, "enable")
    path = tmp_path / "sys/bus/pci/devices" / A / "enable"
    assert path.is_fifo()
    fifos.unhang(host, A, "enable")
    assert path.read_text() == "0\n"


def test_the_documentations_node_is_complete(tmp_path: Path) -> None:
    nodes.demo_node(tmp_path)
    host = scan(tmp_path)
    gpus = [f for f in host.functions.values() if f.device == "1f08"]
    assert [f.address for f in gpus] == [
        "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0",
    ]  # fmt: skip
    assert [f.numa_node for f in gpus] == [0, 0, 1, 1]
    for gpu in gpus:
        assert gpu.group is not None
        members = host.members(gpu.group)
        assert [m.device for m in members] == ["1f08", "10f9", "1ada", "1adb"]
        assert all(m.vfio for m in members)
        assert host.groups[gpu.group].node
    tesla = host.functions[PciAddress("0000:d8:00.0")]
    assert [m.driver for m in host.members(tesla.group)] == ["vfio-pci", "e1000e"]
    assert host.functions[PciAddress("0000:02:00.0")].driver == "nvme"
    assert host.numa_nodes == {0, 1}
    assert (tmp_path / "dev/kvm").exists()


def test_a_function_of_many_is_below_a_port_of_its_own_domain(tmp_path: Path) -> None:
    for index in (0, 255, 256, 8159, 8160, 20_000):
        assert hosts.port(index)[:4] == hosts.address(index)[:4]
        assert int(hosts.port(index)[8:10], 16) < 32
    host = hosts.many(tmp_path, 257)
    for index in (0, 256):
        found = Path(host.path(f"/sys/bus/pci/devices/{hosts.address(index)}")).resolve()
        assert found.parent.name == hosts.port(index)


def test_many_functions_have_many_addresses() -> None:
    addresses = [hosts.address(index) for index in range(20_000)]
    assert len(set(addresses)) == 20_000
    assert addresses == sorted(addresses)
    assert (addresses[0], addresses[-1]) == ("0000:01:00.0", "0002:73:1f.0")


def test_the_host_may_have_its_own_pci_ids(tmp_path: Path) -> None:
    SimulatedHost(tmp_path).write_file("/usr/share/hwdata/pci.ids", "10de  NVIDIA")
    assert (tmp_path / "usr/share/hwdata/pci.ids").read_text() == "10de  NVIDIA\n"
