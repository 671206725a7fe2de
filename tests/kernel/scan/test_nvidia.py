# SPDX-License-Identifier: Apache-2.0
"""vGPUs of NVIDIA's vendor-specific VFIO framework: how they are read, and named; and mdevs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import nvidia
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.machines.capture import materialise

HOSTS = Path(__file__).parents[2] / "machines/hosts"
VF = PciAddress("0000:01:00.4")
TYPES = "ID    : vGPU Name\n1147  : NVIDIA A40-1B\n1148  : NVIDIA A40-2B \n"
INSTANCE = "00000001-0000-4000-8000-000000000001"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A function on NVIDIA's driver."""
    simulated = SimulatedHost(tmp_path)
    simulated.add_function(VF, vendor="10de", device="2235", pci_class="030200", driver="nvidia", group=1)
    return simulated


def give(host: SimulatedHost, current: str, creatable: str = TYPES) -> Path:
    """Let the function take a vGPU type, as the driver does; return the file with the current one."""
    directory = Path(host.path(f"/sys/bus/pci/devices/{VF}/nvidia"))
    directory.mkdir(exist_ok=True)
    (directory / "creatable_vgpu_types").write_text(creatable)
    (directory / "current_vgpu_type").write_text(current)
    return directory / "current_vgpu_type"


def scanned(host: SimulatedHost) -> Host:
    return Looks(Root(host.directory)).full()


def read(host: SimulatedHost) -> PciFunction:
    return scanned(host).functions[VF]


@pytest.mark.parametrize(
    ("content", "found"),
    [("0\n", None), ("1147\n", "1147"), ("", None), ("\n", None), (" 1148 \n", "1148")],
)
def test_the_current_type_is_read(host: SimulatedHost, content: str, found: str | None) -> None:
    give(host, content)
    assert (read(host).vgpu, read(host).vgpu_type) == (True, found)


def test_a_recheck_sees_a_type_that_was_set_and_one_that_has_gone(host: SimulatedHost) -> None:
    current, looks = give(host, "0\n"), Looks(Root(host.directory))
    before = scanned(host)
    assert looks.recheck([VF], before)
    current.write_text("1147\n")
    assert not looks.recheck([VF], before)
    current.unlink()
    assert not looks.recheck([VF], before)


def test_the_creatable_types_are_read_without_their_headline(host: SimulatedHost) -> None:
    give(host, "0\n")
    assert read(host).vgpu_types == (("1147", "NVIDIA A40-1B"), ("1148", "NVIDIA A40-2B"))
    give(host, "1147\n", "ID    : vGPU Name\n")
    assert read(host).vgpu_types == ()


def test_a_function_without_that_directory_has_no_type(host: SimulatedHost) -> None:
    assert (read(host).vgpu, read(host).vgpu_type, read(host).vgpu_types) == (False, None, ())
    Path(host.path(f"/sys/bus/pci/devices/{VF}/nvidia")).mkdir()
    assert not read(host).vgpu


def test_an_instance_has_the_vendor_and_the_vfio_device_of_the_kernel(tmp_path: Path) -> None:
    materialise(HOSTS / "6.12-iommufd-mdev.json", tmp_path)
    parent = tmp_path / "sys/devices/virtual/mtty/mtty"
    (parent / "vendor").write_text("0x8086\n")
    (parent / "numa_node").write_text("1\n")
    found = Looks(Root(tmp_path)).full().mdevs[INSTANCE]
    assert (found.vendor, found.numa_node, found.vfio_device, found.cdev) == ("8086", 1, "vfio0", True)


def test_an_mdev_that_changed_is_named_among_the_changes(tmp_path: Path) -> None:
    materialise(HOSTS / "6.12-mdev.json", tmp_path)
    looks = Looks(Root(tmp_path))
    before = looks.full()
    assert looks.recheck([INSTANCE], before)
    (tmp_path / f"sys/bus/mdev/devices/{INSTANCE}/driver").unlink()
    assert not looks.recheck([INSTANCE], before)
    now = looks.refresh(before, frozenset({INSTANCE}))
    assert now.changes_since(before).mdevs == {INSTANCE}
    assert Host(mdevs=now.mdevs).changes_since(before).mdevs == {INSTANCE}


def test_an_instance_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    materialise(HOSTS / "6.12-mdev.json", tmp_path)
    loop = tmp_path / f"sys/bus/mdev/devices/{INSTANCE}"
    loop.unlink()
    loop.symlink_to(INSTANCE)
    found = Looks(Root(tmp_path)).full().mdevs[INSTANCE]
    assert found.unreadable is not None


CONFIG = """<?xml version="1.0"?>
<vgpuconfig>
  <vgpuType id="1147" name="NVIDIA A40-1B" class="NVS"><devId vendorId="0x10de"/></vgpuType>
  <vgpuType class="Compute" name="A &amp; B" id="1149">
  <vgpuType id="1150">
"""


def test_names_come_from_vfs_and_from_the_file_of_the_vgpu_manager(host: SimulatedHost) -> None:
    give(host, "1149\n", "ID : vGPU Name\n1147 : as the driver says\n")
    path = Path(host.path(nvidia.FILE))
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    root = Root(host.directory)
    assert nvidia.name_vgpu_types(root, scanned(host)) == {"1149": "A & B", "1147": "as the driver says"}
    give(host, "1150\n", "")
    assert nvidia.name_vgpu_types(root, scanned(host)) == {"1150": ""}
    path.write_text("<vgpuType id=")
    assert nvidia.name_vgpu_types(root, scanned(host)) == {"1150": ""}


def test_names_come_from_the_driver_container_as_well(host: SimulatedHost) -> None:
    give(host, "1149\n", "")
    root = Root(host.directory)
    before = nvidia.read_stamps(root)
    host.write_file(nvidia.FILES[1], CONFIG.replace("A &amp; B", "of the container"))
    assert nvidia.name_vgpu_types(root, scanned(host)) == {"1149": "of the container"}
    assert before != nvidia.read_stamps(root) == nvidia.read_stamps(root)
    host.write_file(nvidia.FILE, CONFIG)
    assert nvidia.name_vgpu_types(root, scanned(host)) == {"1149": "A & B"}


def test_a_host_without_vgpus_reads_no_file(host: SimulatedHost) -> None:
    path = Path(host.path(nvidia.FILE))
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    found: list[dict[str, str]] = []
    here, root = scanned(host), Root(host.directory)
    thread = threading.Thread(target=lambda: found.append(nvidia.name_vgpu_types(root, here)), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert found == [{}]


@pytest.mark.timeout(10)
def test_lists_of_types_that_never_come_to_an_end_of_a_line_cost_no_time(host: SimulatedHost) -> None:
    give(host, "1147", "1:a" + " " * 400_000 + "b\n2 : c\n")
    assert read(host).vgpu_types[-1] == ("2", "c")
    file = Path(host.path(nvidia.FILE))
    file.parent.mkdir(parents=True)
    file.write_text("<vgpuType " * 400_000 + '<vgpuType id="1147" name="NVIDIA A40-1B">')
    assert nvidia.name_vgpu_types(Root(host.directory), scanned(host))["1147"] == "NVIDIA A40-1B"
