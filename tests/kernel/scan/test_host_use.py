# SPDX-License-Identifier: Apache-2.0
"""What a host uses of its own functions: a captured one with a network and a disk, and variants of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import host_use
from nodeagent.model.host import HostUses, UseKind
from nodeagent.model.ids import PciAddress
from tests.facts import each_names
from tests.machines.capture import materialise

BUSY = Path(__file__).parents[2] / "machines/hosts/6.12-busy-host.json"
NIC, IDLE, DISK, EMPTY = map(PciAddress, ("0000:01:00.0", "0000:03:00.0", "0000:06:00.0", "0000:02:00.0"))
DEVICE_MAPPER = "sys/devices/virtual/block/dm-0"
NEWS = ("addresses", "routes", "eth0", "/proc/1/net")


@pytest.fixture
def at(tmp_path: Path) -> Path:
    materialise(BUSY, tmp_path)
    return tmp_path


def look(at: Path, address: PciAddress, *, closely: bool = False) -> HostUses:
    return host_use.find_uses(Root(at), [address], closely=closely)[address]


def found(at: Path, address: PciAddress, *, closely: bool = False) -> list[str]:
    seen = look(at, address, closely=closely)
    assert seen.unseen == ()
    return [str(use) for use in seen.found]


def unseen(at: Path, address: PciAddress) -> tuple[str, ...]:
    seen = look(at, address)
    assert seen.found == ()
    return seen.unseen


def class_entry(at: Path, kind: str, name: str, *above: str) -> Path:
    """A device as ``/sys/class`` shows it; its directory, which is virtual if nothing is above it."""
    real = at.joinpath("sys/devices", *(above or ("virtual", kind)), name)
    real.mkdir(parents=True, exist_ok=True)
    link = at / "sys/class" / kind / name
    link.symlink_to(os.path.relpath(real, link.parent))
    return real


def interface(at: Path, name: str, *above: str, flags: str = "0x1003") -> Path:
    """Another interface, that the network namespace of process 1 has, too."""
    real = class_entry(at, "net", name, *above)
    (real / "flags").write_text(flags)
    with (at / "proc/1/net/dev").open("a") as dev:
        dev.write(f"  {name}: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")
    return real


def net(at: Path, name: str) -> Path:
    return (at / "sys/class/net" / name).resolve()


def without_routes(at: Path) -> None:
    for name in ("route", "ipv6_route", "if_inet6", "fib_trie"):
        (at / "proc/1/net" / name).write_text("")


def test_an_interface_with_the_default_route_is_in_use_without_a_link(at: Path) -> None:
    assert (net(at, "eth0") / "operstate").read_text() == "down\n"
    assert found(at, NIC) == ["eth0, default route"]


def test_what_is_mounted_or_swapped_on_is_in_use(at: Path) -> None:
    assert found(at, DISK) == ["nvme1n1p1, mounted on /mnt/data", "nvme1n1p2, swap"]


@pytest.mark.parametrize("address", [IDLE, EMPTY])
def test_an_interface_that_is_down_and_a_disk_that_nothing_is_on_are_free(at: Path, address: str) -> None:
    assert found(at, PciAddress(address)) == []


def test_a_route_to_any_network_is_named(at: Path) -> None:
    route = at / "proc/1/net/route"
    head, _, connected = route.read_text().splitlines()
    route.write_text(f"{head}\n{connected}\n")
    assert found(at, NIC) == ["eth0, route to 192.0.2.0/24"]


def test_an_ipv6_default_route_counts(at: Path) -> None:
    without_routes(at)
    row = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00000003     eth0\n"
    (at / "proc/1/net/ipv6_route").write_text(row)
    assert found(at, NIC) == ["eth0, default route"]


def test_paths_of_mounts_and_swaps_that_are_no_utf_8_hide_no_others(at: Path) -> None:
    for name, line in (
        ("1/mountinfo", b"50 31 0:61 / /srv/\xfcbung rw - cifs //server/share rw\n"),
        ("swaps", b"/srv/\xfcbung file 8388604 0 -2\n"),
    ):
        path = at / "proc" / name
        path.write_bytes(path.read_bytes() + line)
    assert found(at, DISK) == ["nvme1n1p1, mounted on /mnt/data", "nvme1n1p2, swap"]
    assert look(at, EMPTY).unseen == ()


def test_an_ipv6_address_counts_but_not_the_link_local_one_that_each_interface_has(at: Path) -> None:
    without_routes(at)
    addresses = at / "proc/1/net/if_inet6"
    addresses.write_text("fe80000000000000505400fffe123457 02 40 20 80     eth0\n")
    assert found(at, NIC) == []
    addresses.write_text("20010db8000000000000000000000010 02 40 00 82     eth0\n")
    assert found(at, NIC) == ["eth0, address 2001:db8::10"]


def test_a_port_of_a_bond_is_in_use_by_what_the_bond_carries_whether_up_or_not(at: Path) -> None:
    bond = interface(at, "bond0")
    port = net(at, "eth1")
    for name in ("master", "upper_bond0"):
        (port / name).symlink_to(os.path.relpath(bond, port))
    assert found(at, IDLE) == ["eth1, part of bond0"]
    route = at / "proc/1/net/route"
    route.write_text(route.read_text().replace("eth0", "bond0"))
    assert found(at, IDLE) == ["eth1, part of bond0, default route"]


def test_what_carries_a_vlan_is_in_use(at: Path) -> None:
    vlan = interface(at, "eth1.7")
    (net(at, "eth1") / "upper_eth1.7").symlink_to(vlan)
    assert found(at, IDLE) == ["eth1, part of eth1.7"]


def test_the_interface_of_a_virtio_function_is_found_below_it(at: Path) -> None:
    interface(at, "ens5", "pci0000:00", EMPTY, "virtio3", "net")
    route = at / "proc/1/net/route"
    route.write_text(route.read_text().replace("eth0", "ens5"))
    assert found(at, EMPTY) == ["ens5, default route"]


def test_addresses_of_another_namespace_are_not_taken_for_those_of_the_host(at: Path) -> None:
    with (at / "proc/1/net/dev").open("a") as dev:
        dev.write("  cni0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")
    each_names(unseen(at, NIC), NEWS)
    shutil.rmtree(at / "proc/1")
    each_names(unseen(at, NIC), NEWS)


def test_an_interface_in_another_namespace_than_this_sysfs_is_not_seen(at: Path) -> None:
    real = net(at, "eth0")
    shutil.rmtree(real)
    (at / "sys/class/net/eth0").unlink()
    each_names(unseen(at, NIC), ("network interface", "network namespace"))


def test_an_ipv4_address_that_no_route_explains_may_be_on_any_interface_that_is_up(at: Path) -> None:
    route = at / "proc/1/net/route"
    route.write_text(route.read_text().splitlines()[0] + "\n")
    (at / "proc/1/net/if_inet6").write_text("")
    (at / "proc/1/net/ipv6_route").write_text("")
    each_names(unseen(at, NIC), ("interface", "192.0.2.10"))
    assert look(at, IDLE) == HostUses()


def test_a_line_that_is_none_of_the_kernels_says_nothing(at: Path) -> None:
    for name in ("route", "ipv6_route", "if_inet6"):
        path = at / "proc/1/net" / name
        path.write_text(f"{path.read_text()}eth1 zz\neth1 00000000 0 x x x x x\n\n")
    assert found(at, NIC) == ["eth0, default route"]


def test_a_disk_below_a_mapped_one_that_is_mounted_is_in_use(at: Path) -> None:
    mapped = class_entry(at, "block", "dm-0")
    (mapped / "dev").write_text("254:0\n")
    holders = (at / "sys/class/block/nvme0n1").resolve() / "holders"
    (holders / "dm-0").symlink_to(mapped)
    assert found(at, EMPTY) == ["nvme0n1, part of dm-0"]
    with (at / "proc/1/mountinfo").open("a") as mounts:
        mounts.write("50 31 254:0 / /var\\040x rw - xfs /dev/mapper/vg-var rw\n")
    assert found(at, EMPTY) == ["nvme0n1, part of dm-0, mounted on /var x"]


def test_a_file_system_with_numbers_of_its_own_is_found_by_name(at: Path) -> None:
    with (at / "proc/1/mountinfo").open("a") as mounts:
        mounts.write("51 31 0:61 / /srv rw - btrfs /dev/nvme0n1 rw\n")
    assert found(at, EMPTY) == ["nvme0n1, mounted on /srv"]


def test_a_disk_reached_by_paths_of_its_own_is_the_one_that_is_mounted(at: Path) -> None:
    """With native multipath the disk of an NVMe controller is a virtual one."""
    class_entry(at, "block", "nvme2c2n1", "pci0000:00", EMPTY, "nvme/nvme2")
    head = class_entry(at, "block", "nvme2n1", "virtual/nvme-subsystem/nvme-subsys2")
    class_entry(at, "block", "nvme2n1p1", str(head.relative_to(at / "sys/devices")))
    (head / "nvme2n1p1/dev").write_text("259:9\n")
    with (at / "proc/1/mountinfo").open("a") as mounts:
        mounts.write("52 31 259:9 / / rw - ext4 /dev/nvme2n1p1 rw\n")
    assert found(at, EMPTY) == ["nvme2n1p1, mounted on /"]


def test_without_the_mounts_of_the_host_a_disk_is_not_known_to_be_free(at: Path) -> None:
    (at / "proc/1/mountinfo").unlink()
    each_names(unseen(at, EMPTY), ("mounted", "/proc/1/mountinfo"))
    assert look(at, NIC).unseen == ()


@pytest.mark.parametrize("shown", ["xfs/nvme0n1", "btrfs/0a1b/devices/nvme0n1"])
def test_what_a_file_system_shows_for_all_namespaces_counts_where_mounts_are_hidden(
    at: Path, shown: str
) -> None:
    (at / "proc/1/mountinfo").unlink()
    (at / "sys/fs" / shown).mkdir(parents=True)
    assert found(at, EMPTY) == ["nvme0n1, mounted"]


def test_a_process_that_has_the_disk_open_is_named_on_demand(at: Path) -> None:
    node, process = at / "dev/nvme0n1", at / "proc/4711"
    node.touch()
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("qemu-kvm\n")
    (process / "fd/7").symlink_to(node)
    assert found(at, EMPTY) == []
    assert found(at, EMPTY, closely=True) == ["nvme0n1, open by process 4711 (qemu-kvm)"]


def test_the_display_that_the_firmware_chose_is_in_use(at: Path) -> None:
    (at / f"sys/bus/pci/devices/{EMPTY}/boot_vga").write_text("1\n")
    (use,) = look(at, EMPTY).found
    assert (use.kind, use.what) == (UseKind.DISPLAY, "boot display")
    (at / f"sys/bus/pci/devices/{EMPTY}/boot_vga").write_text("0\n")
    assert found(at, EMPTY) == []
