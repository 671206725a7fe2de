# SPDX-License-Identifier: Apache-2.0
"""What a host uses in ways that do not show on the function itself is not taken from it, by force either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.harness import PATIENCE, Node, eventually
from tests.blackbox.test_bindings import AUDIO, BOUND, GPU, OWN, ROUTES, add_card, below, drivers_of
from tests.facts import names
from tests.sim.drivers import SimulatedDrivers, simulated

FORCED = f'passthrough: [{{match: [{{addresses: ["{GPU}"]}}], force: ["{GPU}"]}}]\n'
RULE = FORCED.replace(f', force: ["{GPU}"]', "")
HEAD = "apiVersion: nodeagent/v1\ndiscovery: {enabled: false}\n"


def mount(node: Node, number: str = "259:0") -> None:
    """The file system on the disk with that number is mounted."""
    node.host.write_file("/proc/1/mountinfo", f"1 0 {number} / /srv rw - ext4 /dev/disk rw")


def add_volume(node: Node, name: str) -> Path:
    """A block device that is no function's; its directory."""
    directory = node.root / "sys/devices/virtual/block" / name
    directory.mkdir(parents=True)
    (directory / "dev").write_text("254:0\n")
    (node.root / "sys/class/block" / name).symlink_to(f"../../devices/virtual/block/{name}")
    return directory


def add_disk(node: Node, below_it: str = "nvme/nvme0/nvme0n1") -> None:
    """A disk of the first function, on which nothing is."""
    name = below_it.rpartition("/")[2]
    below(node, GPU, below_it, f"sys/class/block/{name}", dev="259:0")
    node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")


def add_process(node: Node, path: str) -> None:
    """A process that has that open."""
    node.host.write_file("/proc/4711/comm", "Xorg")
    (node.root / "proc/4711/fd").mkdir()
    (node.root / "proc/4711/fd/7").symlink_to(path)


async def refused(node: Node, drivers: SimulatedDrivers, rule: str = RULE) -> str:
    """What the daemon says, who leaves the group as it is."""
    node.configure(HEAD + rule)
    async with node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: bool(_reasons(told["changes"])))
        assert drivers.writes == []
    return " ".join(_reasons(told["changes"]))


def _reasons(changes: dict[str, Any]) -> list[str]:
    return [each["message"] for each in (*changes["problems"], *changes["failing"])]


async def test_a_controller_with_a_mounted_disk_in_a_pci_domain_of_its_own_is_left(node: Node) -> None:
    """Intel's VMD: the disks behind it have addresses in another domain, and go with its driver."""
    add_card(node)
    add_disk(node, "pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0/nvme0n1")
    mount(node)
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers), "nvme0n1", "/srv")


async def test_force_does_not_hide_a_process_behind_a_use_that_it_answers_for(node: Node) -> None:
    add_card(node)
    add_process(node, "/dev/null")
    node.host.write(GPU, "boot_vga", "1")
    below(node, GPU, "drm/card0", "sys/class/drm/card0", dev="1:3")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers, FORCED), "card0", "4711", "Xorg")


async def test_a_volume_that_a_process_has_open_keeps_the_disk_below_it(node: Node) -> None:
    add_card(node)
    add_disk(node)
    add_volume(node, "dm-0")
    (node.root / "sys/class/block/nvme0n1/holders/dm-0").mkdir(parents=True)
    (node.root / "dev").mkdir(exist_ok=True)
    (node.root / "dev/dm-0").touch()
    add_process(node, str(node.root / "dev/dm-0"))
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers, FORCED), "4711", "Xorg")


async def test_a_disk_below_a_loop_device_that_is_mounted_is_left(node: Node) -> None:
    add_card(node)
    add_disk(node)
    loop = add_volume(node, "loop0")
    (loop / "loop").mkdir()
    (loop / "loop/backing_file").write_text("/dev/nvme0n1\n")
    mount(node, "254:0")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers, FORCED), "nvme0n1", "loop0", "/srv")


async def test_where_there_is_a_pool_of_zfs_a_disk_is_not_known_to_be_free(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.host.write_file("/proc/spl/kstat/zfs/tank/state", "ONLINE")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers), "ZFS", "tank", "nvme0n1")


async def test_the_display_on_which_the_console_is_stays_without_a_firmware_that_says_so(node: Node) -> None:
    add_card(node)
    below(node, GPU, "graphics/fb0", "sys/class/graphics/fb0", dev="29:0")
    node.host.write_file("/sys/class/graphics/fbcon/rotate", "0")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers), "fb0", "console")


async def test_a_serial_port_that_is_the_console_stays(node: Node) -> None:
    add_card(node)
    below(node, GPU, "tty/ttyS4", "sys/class/tty/ttyS4", dev="4:68")
    node.host.write_file("/sys/class/tty/console/active", "tty0 ttyS4")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        names(await refused(node, drivers), "ttyS4", "console")


async def test_a_chipset_bridge_of_another_kind_is_left(node: Node) -> None:
    """Class 0680 is NVIDIA's NVSwitch, and with everybody else whatever a chipset has."""
    node.host.add_function(
        GPU, vendor="8086", device="7113", pci_class="068000", driver="piix4_smbus", group=10
    )
    async with simulated(node.host, GPU) as drivers:
        assert "it is a bridge" in await refused(node, drivers)


async def test_what_is_mounted_while_another_function_of_the_group_is_bound_is_not_taken(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.configure(HEAD + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        drivers.around = lambda number, done: mount(node) if (number, done) == (2, False) else None
        async with node.daemon():
            told = await node.until_told(lambda told: bool(_reasons(told["changes"])))
            assert "mounted on /srv" in " ".join(_reasons(told["changes"]))
            await eventually(lambda: drivers_of(drivers) == OWN, PATIENCE)
        assert drivers.writes[1] == ("unbind", AUDIO)  # the daemon goes on as soon as it sees this
        assert ("unbind", GPU) not in drivers.writes


def add_mount(node: Node) -> Callable[[], None]:
    """A disk of the GPU with a file system that is mounted; returns its umount."""
    add_disk(node)
    mount(node)
    return lambda: node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")


def add_swap(node: Node) -> Callable[[], None]:
    """A disk of the GPU with swap on it; returns its swapoff."""
    add_disk(node)
    head = "Filename Type Size Used Priority\n"
    node.host.write_file("/proc/swaps", f"{head}/dev/nvme0n1 partition 1 0 -2\n")
    return lambda: node.host.write_file("/proc/swaps", head)


def add_interface(node: Node) -> Callable[[], None]:
    """An interface of the GPU that is up and has a route; the returned call takes it down."""
    below(node, GPU, "net/eth0", "sys/class/net/eth0", flags="0x1003")
    node.host.write_file("/proc/1/net/dev", "Inter-| Receive\n face |bytes\n eth0: 0\n")
    node.host.write_file("/proc/1/net/route", f"{ROUTES}eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n")

    def take_down() -> None:
        node.host.write_file("/proc/1/net/route", ROUTES)
        below_gpu = Path(node.host.path(f"/sys/bus/pci/devices/{GPU}")) / "net/eth0/flags"
        below_gpu.write_text("0x1002\n")

    return take_down


@pytest.mark.parametrize("use", [add_mount, add_swap, add_interface])
async def test_a_rule_goes_on_within_seconds_of_the_end_of_the_use_by_the_host(
    node: Node, use: Callable[[Node], Callable[[], None]]
) -> None:
    """The kernel sends no uevent for an umount, a swapoff, or an interface that goes down."""
    add_card(node)
    end_use = use(node)
    add_process(node, "/dev/zero")
    async with simulated(node.host, GPU, AUDIO) as drivers:
        node.configure(HEAD + RULE)
        async with node.kubelet(), node.daemon():
            await node.until_told(lambda told: bool(_reasons(told["changes"])))
            assert drivers.writes == []
            end_use()
            await eventually(lambda: drivers_of(drivers) == BOUND, 3)
