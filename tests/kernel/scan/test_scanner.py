# SPDX-License-Identifier: Apache-2.0
"""Scans of simulated hosts: refreshes, sharing, half devices, and what must never be read.

Captured hosts are in test_machines.py, hanging reads in test_runner.py.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, MdevType, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.sim import hosts

A, B = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
NEVER_READ = (
    "uevent", "driver_override", "config", "sriov_numvfs", "sriov_vf_total_msix",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "resource0", "rom",
)  # fmt: skip


def add(host: SimulatedHost, address: str, group: int = 1, driver: str | None = "vfio-pci") -> None:
    host.add_function(address, vendor="10de", device="1eb8", pci_class="030200", driver=driver, group=group)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Two functions in one group."""
    simulated = SimulatedHost(tmp_path)
    add(simulated, A)
    add(simulated, B)
    return simulated


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(Root(tmp_path))


def test_a_function_is_read_as_it_is(host: SimulatedHost, looks: Looks) -> None:
    host.write(A, "numa_node", "1")
    function = looks.full().functions[A]
    assert (function.vendor, function.device, function.pci_class) == ("10de", "1eb8", "030200")
    assert (function.driver, function.vfio, function.vfio_device) == ("vfio-pci", True, "vfio0")
    assert (function.group, function.numa_node, function.enable) == (1, 1, 0)
    assert function.ports == ("pci0000:00", "0000:00:10.0")
    assert function.pcie_root == "pci0000:00/0000:00:10.0"


def test_a_host_without_sysfs_is_empty(tmp_path: Path) -> None:
    found = Looks(Root(tmp_path / "nothing")).full()
    assert replace(found, iommu_missing=None, vfio_missing=None) == Host()


def test_a_scan_reads_no_attribute_that_may_hang_or_wake_the_device(
    host: SimulatedHost, tmp_path: Path
) -> None:
    directory = tmp_path / "sys/bus/pci/devices" / A
    for name in NEVER_READ:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    found: list[Host] = []
    thread = threading.Thread(target=lambda: found.append(Looks(Root(tmp_path)).full()), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert found, "the scan hangs in one of the attributes"
    assert found[0].functions[A].vendor == "10de"


def test_a_refresh_shares_everything_that_did_not_change(host: SimulatedHost, looks: Looks) -> None:
    add(host, "0000:02:00.0", group=2)
    before = looks.full()
    host.hold(A)
    after = looks.refresh(before, frozenset({A}))
    assert after.functions[A].enable == 1
    assert after.functions[B] is before.functions[B]
    assert after.groups is before.groups
    assert after.mdevs is before.mdevs
    assert looks.refresh(after, frozenset({A, B})) is after
    assert looks.full(after) is after


def test_a_full_scan_shares_everything_that_did_not_change(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.hold(A)
    after = looks.full(before)
    assert after.functions[A] is not before.functions[A]
    assert after.functions[B] is before.functions[B]
    assert after.groups is before.groups


def test_a_refresh_reads_only_what_is_named(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.hold(A)
    host.hold(B)
    after = looks.refresh(before, frozenset({B}))
    assert (after.functions[A].enable, after.functions[B].enable) == (0, 1)


@pytest.mark.parametrize("key", [A, "0000:01:00.0", "vfio0", "/dev/vfio/devices/vfio0"])
def test_a_function_has_several_names(host: SimulatedHost, looks: Looks, key: str) -> None:
    before = looks.full()
    host.hold(A)
    assert looks.refresh(before, frozenset({key})).functions[A].enable == 1


@pytest.mark.parametrize("key", ["/dev/vfio/1", "/sys/kernel/iommu_groups/1"])
def test_a_group_has_several_names(host: SimulatedHost, looks: Looks, key: str) -> None:
    before = looks.full()
    host.remove_node("/dev/vfio/1")
    after = looks.refresh(before, frozenset({key}))
    assert not after.groups[GroupNumber(1)].node
    assert after.functions is before.functions


def test_a_key_that_says_nothing_means_everything(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.hold(A)
    assert looks.refresh(before, frozenset({"mtty"})) == looks.full(before)
    assert looks.refresh(before, frozenset({"mtty"})).functions[A].enable == 1


def test_unbinding_the_last_function_of_a_group_takes_its_node(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.bind(A, None)
    after = looks.refresh(before, frozenset({A}))
    assert after.functions[A].driver is None
    assert after.groups[GroupNumber(1)].node
    host.bind(B, "nouveau")
    last = looks.refresh(after, frozenset({B}))
    assert not last.groups[GroupNumber(1)].node


def test_an_unplugged_function_leaves_with_its_group_and_comes_back_in_order(
    host: SimulatedHost, looks: Looks
) -> None:
    add(host, "0000:00:1f.0", group=2)
    before = looks.full()
    host.unplug("0000:00:1f.0")
    gone = looks.refresh(before, frozenset({"0000:00:1f.0"}))
    assert list(gone.functions) == [A, B]
    assert list(gone.groups) == [1]
    host.plug("0000:00:1f.0")
    back = looks.refresh(gone, frozenset({"0000:00:1f.0"}))
    assert list(back.functions) == ["0000:00:1f.0", A, B]
    function = back.functions[PciAddress("0000:00:1f.0")]
    assert (function.driver, function.vfio) == (None, False)
    assert function.inode != before.functions[PciAddress("0000:00:1f.0")].inode
    assert looks.full(back) is back


def test_a_function_that_changes_its_group_is_seen_in_both(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.unplug(B)
    add(host, B, group=7)
    after = looks.refresh(before, frozenset({B}))
    assert after.groups[GroupNumber(1)].members == (A,)
    assert after.groups[GroupNumber(7)].members == (B,)


def test_a_vf_that_comes_or_goes_changes_its_pf(host: SimulatedHost, looks: Looks) -> None:
    host.add_function("0000:06:00.0", vendor="8086", device="1572", pci_class="020000", group=6, sriov=4)
    before = looks.full()
    host.add_function(
        "0000:06:00.1", vendor="8086", device="154c", pci_class="020000", group=8,
        physfn="0000:06:00.0",
    )  # fmt: skip
    with_vf = looks.refresh(before, frozenset({"0000:06:00.1"}))
    pf = PciAddress("0000:06:00.0")
    assert with_vf.functions[pf].vfs == ("0000:06:00.1",)
    host.unplug("0000:06:00.1")
    without = looks.refresh(with_vf, frozenset({"0000:06:00.1"}))
    assert without.functions[pf].vfs == ()


def test_the_pf_alone_names_its_vfs(host: SimulatedHost, looks: Looks) -> None:
    host.add_function("0000:06:00.0", vendor="8086", device="1572", pci_class="020000", group=6, sriov=4)
    before = looks.full()
    host.add_function(
        "0000:06:00.1", vendor="8086", device="154c", pci_class="020000", group=8,
        physfn="0000:06:00.0",
    )  # fmt: skip
    after = looks.refresh(before, frozenset({"0000:06:00.0"}))
    assert "0000:06:00.1" in after.functions
    assert GroupNumber(8) in after.groups


def test_vfs_that_their_pf_left_behind_are_known_from_a_whole_scan_and_from_events(
    host: SimulatedHost, looks: Looks
) -> None:
    pf, vf = PciAddress("0000:06:00.0"), PciAddress("0000:06:00.1")
    host.add_function(pf, vendor="8086", device="1572", pci_class="020000", group=6, sriov=4)
    host.add_function(vf, vendor="8086", device="154c", pci_class="020000", group=8, physfn=pf)
    before = looks.full()
    assert not before.functions[vf].left_behind
    host.unplug(pf)
    gone = looks.refresh(before, frozenset({pf}))
    assert gone.functions[vf].left_behind
    host.plug(pf)
    back = looks.refresh(gone, frozenset({pf}))
    assert back.functions[pf].vfs == ()
    assert [each.address for each in back.functions.values() if each.left_behind] == [vf]
    assert looks.full() == back


def test_a_refresh_of_a_parent_reads_its_types_again(
    host: SimulatedHost, looks: Looks, tmp_path: Path
) -> None:
    before = looks.full()
    assert before.mdev_parents == {}
    kind = tmp_path / "sys/bus/pci/devices" / A / "mdev_supported_types/nvidia-222"
    kind.mkdir(parents=True)
    (kind / "name").write_text("GRID T4-1B\n")
    (kind / "available_instances").write_text("16\n")
    (tmp_path / "sys/class/mdev_bus").mkdir()
    (tmp_path / "sys/class/mdev_bus" / A).symlink_to(f"../../bus/pci/devices/{A}")
    after = looks.refresh(before, frozenset({A}))
    assert after.mdev_parents == {A: (MdevType("nvidia-222", "GRID T4-1B", 16),)}
    (tmp_path / "sys/class/mdev_bus" / A).unlink()
    assert looks.refresh(after, frozenset({A})).mdev_parents == {}


def test_room_that_is_empty_or_senseless_is_unknown_of_that_type_alone(
    host: SimulatedHost, looks: Looks, tmp_path: Path
) -> None:
    for number, room in enumerate(("", "-1", "many", "4")):
        kind = tmp_path / f"sys/bus/pci/devices/{A}/mdev_supported_types/t-{number}"
        kind.mkdir(parents=True)
        (kind / "available_instances").write_text(f"{room}\n")
    (tmp_path / "sys/class/mdev_bus").mkdir()
    (tmp_path / "sys/class/mdev_bus" / A).symlink_to(f"../../bus/pci/devices/{A}")
    found = looks.full().mdev_parents[A]
    assert [kind.available for kind in found] == [None, None, None, 4]


def test_half_a_device_is_kept_and_a_dangling_link_is_left_out(
    host: SimulatedHost, looks: Looks, tmp_path: Path
) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / "0000:09:00.0").symlink_to("../../../devices/pci0000:00/0000:09:00.0")
    (tmp_path / "sys/devices/pci0000:00/0000:0a:00.0").mkdir()
    (devices / "0000:0a:00.0").symlink_to("../../../devices/pci0000:00/0000:0a:00.0")
    (devices / "not-an-address").mkdir()
    (devices / A / "modalias").unlink()
    (devices / A / "vendor").write_bytes(b"\xff\xfe")
    (devices / A / "device").write_text("10de")
    (devices / A / "enable").write_text("many")
    found = looks.full().functions
    assert list(found) == [A, B, "0000:0a:00.0"]
    assert found[PciAddress("0000:0a:00.0")].vendor is None
    assert (found[A].vendor, found[A].device, found[A].enable) == (None, None, None)
    assert found[A].pci_class == "030200"


def test_long_domains_are_kept_behind_short_ones(host: SimulatedHost, looks: Looks) -> None:
    add(host, "10000:e1:00.0", group=3)
    assert list(looks.full().functions) == [A, B, "10000:e1:00.0"]


def test_generic_nodes_are_seen_when_asked_for(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full(nodes=("/dev/kvm",))
    assert before.nodes == {"/dev/vfio/vfio"}
    host.node("/dev/kvm")
    after = looks.refresh(before, frozenset({"/dev/kvm"}), nodes=("/dev/kvm",))
    assert after.nodes == {"/dev/vfio/vfio", "/dev/kvm"}
    assert after.functions is before.functions


def test_the_verdict_of_aer_events_is_part_of_the_function(host: SimulatedHost, looks: Looks) -> None:
    failed = {A: Recovery.FAILED, PciAddress("0000:ff:00.0"): Recovery.RUNNING}
    before = looks.full(recoveries=failed)
    assert before.functions[A].recovery is Recovery.FAILED
    assert before.functions[B].recovery is None
    after = looks.refresh(before, frozenset({A}), recoveries={})
    assert after.functions[A].recovery is None


def test_a_scan_leaves_no_descriptor_open(host: SimulatedHost, looks: Looks) -> None:
    looks.full()
    before = len(os.listdir("/proc/self/fd"))
    looks.full()
    assert len(os.listdir("/proc/self/fd")) == before


def test_this_machine_can_be_scanned() -> None:
    looks = Looks(Root())
    host = looks.full()
    assert host.release
    assert looks.refresh(host, frozenset(host.functions)).functions.keys() == host.functions.keys()


def test_a_refresh_of_many_devices_reads_few_files(tmp_path: Path) -> None:
    """Measured by what changed unseen, not by the clock: only the named one is read again."""
    simulated = hosts.many(tmp_path, 300, 3)
    looks = Looks(Root(tmp_path))
    before = looks.full()
    assert len(before.functions) == 300
    assert len({function.device for function in before.functions.values()}) == 3
    for index in range(300):
        simulated.hold(hosts.address(index))
    after = looks.refresh(before, frozenset({hosts.address(7)}))
    changed = [a for a in after.functions if after.functions[a] is not before.functions[a]]
    assert changed == [hosts.address(7)]


def test_a_recheck_sees_what_differs_and_nothing_else(host: SimulatedHost, looks: Looks) -> None:
    known = looks.full()
    host.hold(B)
    assert looks.recheck([A], known)
    assert not looks.recheck([A, B], known)
    assert not looks.recheck(["0000:09:00.0"], known)


def test_a_recheck_sees_a_new_neighbour_in_the_group(host: SimulatedHost, looks: Looks) -> None:
    known = looks.full()
    add(host, "0000:01:00.2", driver="nouveau")
    assert not looks.recheck([A], known)


@pytest.mark.parametrize("path", ["/dev/vfio/vfio", "/dev/kvm", "/dev/iommu"])
def test_a_recheck_sees_a_node_that_came_or_went(host: SimulatedHost, looks: Looks, path: str) -> None:
    host.node("/dev/kvm")
    known = looks.full(nodes=("/dev/kvm",))
    assert looks.recheck([A, "/dev/kvm"], known)
    host.remove_node(path) if path in known.nodes else host.node(path)
    assert not looks.recheck([A, "/dev/kvm"], known)


def test_a_recheck_needs_no_group(host: SimulatedHost, looks: Looks) -> None:
    host.add_function("0000:05:00.0", vendor="10de", device="1eb8", pci_class="030200", group=None)
    assert looks.recheck(["0000:05:00.0"], looks.full())


@pytest.mark.parametrize("name", ["/dev/vfio/40", UUID])
def test_when_an_mdev_has_left_its_group_the_room_of_all_parents_is_read_again(
    host: SimulatedHost, looks: Looks, tmp_path: Path, name: str
) -> None:
    group = tmp_path / "sys/kernel/iommu_groups/40"
    room = tmp_path / "sys/bus/pci/devices" / A / "mdev_supported_types/nvidia-228/available_instances"
    room.parent.mkdir(parents=True)
    room.write_text("0\n")
    (tmp_path / "sys/class/mdev_bus").mkdir()
    (tmp_path / "sys/class/mdev_bus" / A).symlink_to(f"../../bus/pci/devices/{A}")
    (group / "devices" / UUID).mkdir(parents=True)  # what is left of an instance while its removal waits
    before = looks.full()
    room.write_text("2\n")
    key = frozenset({name})
    assert looks.refresh(before, key) is before, "room alone has no event"
    (group / "devices" / UUID).rmdir()
    (group / "devices").rmdir()
    group.rmdir()
    assert [kind.available for kind in looks.refresh(before, key).mdev_parents[A]] == [2]
