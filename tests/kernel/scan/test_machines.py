# SPDX-License-Identifier: Apache-2.0
"""Captured hosts: what a scan sees of each, against the table and the states in tests/machines/README.md.

Left out: whether groups are viable and devices healthy; that is decided in ``policy``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import aer
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Hints, Host
from nodeagent.model.ids import GroupNumber, PciAddress
from tests.looking import Looks
from tests.machines.capture import materialise

MACHINES = Path(__file__).parents[2] / "machines"
HOSTS = sorted(path.stem for path in (MACHINES / "hosts").glob("*.json"))


def table() -> dict[str, list[int]]:
    """File → counts, from the README."""
    rows: dict[str, list[int]] = {}
    for line in (MACHINES / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 11 and cells[1].isdecimal():
            rows[cells[0]] = [int(cell) for cell in cells[1:10]]
    return rows


def scanned(name: str, directory: Path) -> Host:
    materialise(MACHINES / "hosts" / f"{name}.json", directory)
    return Looks(Root(directory)).full()


def test_the_table_names_every_captured_host() -> None:
    assert sorted(table()) == HOSTS
    assert len(HOSTS) == 24


@pytest.mark.parametrize("name", HOSTS)
def test_a_scan_of_a_captured_host_counts_what_the_table_says(name: str, tmp_path: Path) -> None:
    host = scanned(name, tmp_path)
    functions, groups = host.functions.values(), host.groups.values()
    nodes = (
        [name for name in os.listdir(tmp_path / "dev/vfio") if re.search(r"\d", name)]
        if (tmp_path / "dev/vfio").is_dir()
        else []
    )
    counts = [
        len(json.loads((MACHINES / "hosts" / f"{name}.json").read_text())["tree"]),
        len(functions),
        sum(function.driver == "vfio-pci" for function in functions),
        len(groups),
        sum(len(group.members) > 1 for group in groups),
        len(host.mdev_parents),
        len(host.mdevs),
        sum(group.node for group in groups),
        table()[name][8],
    ]
    assert counts == table()[name]
    assert len(nodes) == sum(group.node for group in groups)
    assert all(function.vfio == (function.driver == "vfio-pci") for function in functions)
    assert all(function.vendor and function.device and function.pci_class for function in functions)
    assert all(function.unreadable is None and function.inode for function in functions)


@pytest.mark.parametrize("name", HOSTS)
def test_a_second_scan_of_a_captured_host_is_the_same_object(name: str, tmp_path: Path) -> None:
    host = scanned(name, tmp_path)
    looks = Looks(Root(tmp_path))
    assert looks.full(host) is host
    everything = frozenset({*host.functions, *host.mdevs})
    assert looks.refresh(host, everything) is host


@pytest.mark.parametrize("name", ["6.12-vfio", "6.12-iommufd-vfio", "6.1-vfio", "7.2-vfio"])
def test_a_host_with_vfio_devices_shows_them(name: str, tmp_path: Path) -> None:
    host = scanned(name, tmp_path)
    bound = {function.address for function in host.functions.values() if function.vfio}
    assert bound == {
        "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:05:01.0", "0000:06:00.1",
    }  # fmt: skip
    pf = host.functions[PciAddress("0000:06:00.0")]
    vf = host.functions[PciAddress("0000:06:00.1")]
    assert pf.vfs == ("0000:06:00.1", "0000:06:00.2", "0000:06:00.3")
    assert (pf.sriov_capable, vf.sriov_capable) == (True, False)
    assert (pf.total_vfs, vf.total_vfs) == (4, None)
    assert (vf.physfn, pf.physfn) == ("0000:06:00.0", None)
    assert vf.ports == ("pci0000:00", "0000:00:14.0")
    assert (vf.vendor, vf.device, vf.pci_class, vf.enable) == ("1b36", "0010", "010802", 0)
    assert host.functions[PciAddress("0000:03:00.1")].driver == "e1000e"
    assert host.functions[PciAddress("0000:81:00.0")].numa_node == 1
    assert pf.numa_node is None
    assert host.numa_nodes == {0, 1}
    assert host.iommu
    assert host.vfio_loaded
    group = host.functions[PciAddress("0000:01:00.0")].group
    assert group is not None
    assert host.groups[group].members == ("0000:01:00.0",)
    assert (host.groups[group].kind, host.groups[group].node) == ("DMA", True)


def test_iommufd_shows_in_the_nodes_and_the_devices(tmp_path: Path) -> None:
    with_cdev = scanned("6.12-iommufd-vfio", tmp_path / "a")
    without = scanned("6.12-vfio", tmp_path / "b")
    assert with_cdev.nodes == {"/dev/vfio/vfio", "/dev/iommu"}
    assert without.nodes == {"/dev/vfio/vfio"}
    assert sum(function.cdev for function in with_cdev.functions.values()) == 5
    assert not any(function.cdev for function in without.functions.values())
    assert with_cdev.functions[PciAddress("0000:06:00.1")].vfio_device == "vfio4"


@pytest.mark.parametrize("name", ["6.12-held", "6.12-iommufd-held"])
def test_a_held_device_shows_in_enable(name: str, tmp_path: Path) -> None:
    host = scanned(name, tmp_path)
    held = {f.address for f in host.functions.values() if f.vfio and f.enable}
    assert held == {"0000:01:00.0", "0000:03:00.0"}
    assert host.functions[PciAddress("0000:01:00.0")].power_state == "D0"


@pytest.mark.parametrize(
    ("name", "leaving"),
    [
        ("6.12-unbind-blocked", {"0000:01:00.0", "0000:03:00.0"}),
        ("6.12-iommufd-unbind-blocked", {"0000:01:00.0", "0000:03:00.0"}),
        ("6.1-unbind-blocked", {"0000:01:00.0", "0000:03:00.0"}),
        ("7.2-unbind-blocked", {"0000:01:00.0", "0000:03:00.0"}),
        ("6.12-unplug-blocked", {"0000:01:00.0"}),
    ],
)
def test_a_device_that_is_going_away_has_a_node_but_no_driver(
    name: str, leaving: set[str], tmp_path: Path
) -> None:
    host = scanned(name, tmp_path)
    found = {
        f.address
        for f in host.functions.values()
        if f.driver is None and f.enable and f.group is not None and host.groups[f.group].node
    }
    assert found == leaving
    assert not any(host.functions[PciAddress(address)].cdev for address in leaving)


async def test_attributes_that_hang_cost_a_scan_nothing(tmp_path: Path) -> None:
    materialise(MACHINES / "hosts" / "6.1-unbind-blocked.json", tmp_path)
    runner = Scanner(Root(tmp_path), ScanRequests(), deadline=1, timeouts=Timeouts())
    host = await runner.scan(None, Host(), (), {})
    assert not runner.stuck
    assert all(function.unreadable is None for function in host.functions.values())


def test_mdevs_and_their_parents_are_seen(tmp_path: Path) -> None:
    host = scanned("6.12-mdev", tmp_path)
    one = host.mdevs["00000001-0000-4000-8000-000000000001"]
    assert (one.parent, one.type_id, one.type_name) == ("mtty", "mtty-1", "Single port serial")
    assert one.driver == "mtty"
    assert one.group is not None
    assert host.groups[one.group].members == (one.uuid,)
    assert (host.groups[one.group].kind, host.groups[one.group].node) == ("unknown", True)
    types = {kind.type_id: kind for kind in host.mdev_parents["mtty"]}
    assert list(host.mdev_parents) == ["mbochs", "mdpy", "mtty"]
    assert types["mtty-2"].name == "Dual port serial"
    assert types["mtty-1"].available == 20


def test_a_dead_mdev_and_one_whose_removal_is_blocked_are_told_apart(tmp_path: Path) -> None:
    dead = scanned("6.12-mdev-unbound", tmp_path / "a")
    assert dead.mdevs["00000002-0000-4000-8000-000000000002"].driver is None
    blocked = scanned("6.12-mdev-remove-blocked", tmp_path / "b")
    uuid = "00000003-0000-4000-8000-000000000003"
    assert uuid not in blocked.mdevs
    assert blocked.groups[GroupNumber(19)].members == (uuid,)
    assert blocked.groups[GroupNumber(19)].node


def test_a_host_without_iommu_has_no_groups(tmp_path: Path) -> None:
    host = scanned("6.12-no-iommu", tmp_path)
    assert not host.iommu
    assert {function.group for function in host.functions.values()} == {None}


def test_a_group_without_an_iommu_is_known_by_its_name(tmp_path: Path) -> None:
    host = scanned("6.12-iommufd-no-iommu-unsafe", tmp_path)
    group = host.groups[GroupNumber(0)]
    assert group.no_iommu
    assert group.node
    assert group.members == ("0000:01:00.0",)
    assert not host.iommu


def test_the_hints_of_a_failed_device_show_its_errors(tmp_path: Path) -> None:
    scanned("6.12-aer-failed", tmp_path)
    found = aer.read_hints(Root(tmp_path), PciAddress("0000:01:00.0"))
    assert (found.aer_nonfatal, found.aer_fatal) == (1, 0)
    assert found.reset_methods
    assert found.runtime_status is not None
    absent = aer.read_hints(Root(tmp_path), PciAddress("0000:ff:00.0"))
    assert absent == Hints()
