# SPDX-License-Identifier: Apache-2.0
"""Who has what open: told by counts and nodes, never by opening; what cannot be seen is in use."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import open_files
from nodeagent.kernel.root import Root
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, MdevKernel, SimulatedCards, Type, add_card, simulated_cards
from tests import exhausted
from tests.sim.vfs import vf_addresses

T4, A40, NIC = "0000:3b:00.0", "0000:86:00.0", "0000:af:00.2"
VFS = vf_addresses(A40, 2)
ONE = "11111111-2222-5333-8444-555555555555"
TWO = "11111111-2222-5333-8444-666666666666"
DRIVER = "/sys/bus/mdev/drivers/nvidia-vgpu-vfio"


@pytest.fixture
async def cards(tmp_path: Path) -> AsyncIterator[SimulatedCards]:
    """Two mdevs on a T4, and a vGPU type on the first VF of an A40."""
    split = [
        Card(T4, (Type("nvidia-228", 2),)),
        Card(A40, (Type("557", 2, "NVIDIA A40-24Q"),), vfs=VFS, vgpu=True),
    ]
    host = SimulatedHost(tmp_path)
    for number, card in enumerate(split):
        add_card(host, card, 10 + 10 * number)
    async with simulated_cards(host, MdevKernel(split)) as made:
        made.create(T4, "nvidia-228", ONE)
        made.create(T4, "nvidia-228", TWO)
        made.kernel.set_vgpu_type(VFS[0], "557")
        made.show()
        yield made


def used(cards: SimulatedCards, *ids: str) -> set[str]:
    return set(open_files.find_in_use(Root(cards.host.directory), ids))


def as_anybody(asked: Callable[[], set[str]]) -> set[str]:
    """The answer of a thread for which file modes count, as they do not for root."""

    def ask() -> set[str]:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
        sets = (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        assert libc.capget(header, sets) == 0
        sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of the effective set
        assert libc.capset(header, sets) == 0
        return asked()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


def nodes(cards: SimulatedCards) -> list[Path]:
    """The nodes of the mdevs' groups."""
    return sorted(Path(cards.host.path("/dev/vfio")).glob("1*"))


async def test_what_nobody_has_open_is_not_in_use(cards: SimulatedCards) -> None:
    assert used(cards, ONE, TWO, *VFS) == set()


async def test_a_process_that_has_the_node_open_is_found(cards: SimulatedCards) -> None:
    cards.hold(TWO)
    cards.hold(VFS[0])
    assert used(cards, ONE, TWO, *VFS) == {TWO, VFS[0]}
    cards.release(TWO)
    assert used(cards, ONE, TWO, *VFS) == {VFS[0]}


async def test_the_name_under_which_a_holder_has_the_node_does_not_matter(cards: SimulatedCards) -> None:
    node = nodes(cards)[0]
    aside = Path(cards.host.path("/mnt/host/dev/vfio/14"))
    aside.parent.mkdir(parents=True)
    os.link(node, aside)
    files.link(cards.host.path("/proc/77/fd/9"), str(aside))
    assert len(used(cards, ONE, TWO)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
async def test_a_block_device_with_the_number_of_the_node_is_another_thing(cards: SimulatedCards) -> None:
    node, aside = nodes(cards)[0], cards.host.path("/dev/sdz")
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(253, 0))
    os.mknod(aside, stat.S_IFBLK | 0o600, os.makedev(253, 0))
    files.link(cards.host.path("/proc/77/fd/9"), aside)
    assert used(cards, ONE, TWO) == set()
    files.link(cards.host.path("/proc/77/fd/10"), str(node))
    assert len(used(cards, ONE, TWO)) == 1


async def test_a_process_that_may_not_be_looked_at_may_have_anything_open(cards: SimulatedCards) -> None:
    closed = cards.host.path("/proc/77/fd")
    files.directory(closed)
    os.chmod(closed, 0)
    assert as_anybody(lambda: used(cards, ONE, TWO)) == {ONE, TWO}
    files.remove_tree(closed)
    assert as_anybody(lambda: used(cards, ONE, TWO)) == set()


async def test_an_instance_that_is_open_through_a_node_of_its_own_is_in_use(cards: SimulatedCards) -> None:
    real = cards.host.tree.real(f"/sys/bus/mdev/devices/{ONE}")
    (name,) = os.listdir(cards.host.path(f"{real}/vfio-dev"))
    cards.host.node(f"/dev/vfio/devices/{name}")
    files.link(cards.host.path("/proc/77/fd/9"), cards.host.path(f"/dev/vfio/devices/{name}"))
    assert used(cards, ONE, TWO) == {ONE}


async def test_a_use_count_of_zero_needs_no_search(cards: SimulatedCards) -> None:
    cards.hold(ONE)
    files.link(cards.host.path(f"{DRIVER}/module"), "../../../../module/nvidia_vgpu_vfio")
    modules = "nvidia_vgpu_vfio 57344 {} - Live 0x0000000000000000\nmdev 20480 1 nvidia_vgpu_vfio, Live 0x0\n"
    files.write(cards.host.path("/proc/modules"), modules.format(0))
    assert used(cards, ONE, TWO) == set()
    files.write(cards.host.path("/proc/modules"), modules.format(1))
    assert used(cards, ONE, TWO) == {ONE}


async def test_an_instance_whose_node_cannot_be_seen_is_in_use(cards: SimulatedCards) -> None:
    for node in nodes(cards):
        node.unlink()
    assert used(cards, ONE) == {ONE}


async def test_what_does_not_exist_is_not_in_use(cards: SimulatedCards) -> None:
    assert used(cards, "99999999-2222-5333-8444-555555555555", "0000:99:00.0") == set()


async def test_a_dead_instance_without_a_node_can_be_open_to_nobody(cards: SimulatedCards) -> None:
    real = cards.host.tree.real(f"/sys/bus/mdev/devices/{ONE}")
    files.remove(cards.host.path(f"{real}/driver"))
    files.remove(cards.host.path(f"{real}/iommu_group"))
    files.remove_tree(cards.host.path(f"{real}/vfio-dev"))
    assert used(cards, ONE) == set()


async def test_a_vf_on_vfio_is_in_use_by_its_count(cards: SimulatedCards) -> None:
    cards.host.add_function(
        NIC, vendor="15b3", device="101e", pci_class="020000", driver="vfio-pci", group=70
    )
    assert used(cards, NIC) == set()
    cards.host.hold(NIC)
    assert used(cards, NIC) == {NIC}


async def test_a_count_that_a_driver_has_left_is_no_open_file(cards: SimulatedCards) -> None:
    """i915 and radeon never call pci_disable_device."""
    cards.host.add_function(NIC, vendor="8086", device="56c0", pci_class="038000", driver="i915", group=70)
    cards.host.bind(NIC, "vfio-pci")
    cards.host.write(NIC, "enable", "1")
    assert used(cards, NIC) == {NIC}, "nobody is seen at all"
    files.directory(cards.host.path("/proc/77/fd"))
    assert used(cards, NIC) == set()
    files.link(cards.host.path("/proc/77/fd/9"), cards.host.path("/dev/vfio/70"))
    assert used(cards, NIC) == {NIC}
    files.remove(cards.host.path("/proc/77/fd/9"))
    assert used(cards, NIC) == set()


async def test_what_has_no_driver_is_open_only_while_its_group_has_a_node(cards: SimulatedCards) -> None:
    """As with ``going_away``: an unbind that waits for the holder leaves the node."""
    cards.host.add_function(NIC, vendor="8086", device="56c0", pci_class="038000", driver="i915", group=70)
    cards.host.bind(NIC, None)
    cards.host.write(NIC, "enable", "1")
    assert used(cards, NIC) == set()
    cards.host.node("/dev/vfio/70")
    assert used(cards, NIC) == {NIC}


async def test_a_vf_with_a_vgpu_type_is_judged_by_its_node_although_it_has_a_vfio_device(
    cards: SimulatedCards,
) -> None:
    for vf in VFS:
        files.directory(cards.host.path(f"/sys/bus/pci/devices/{vf}/vfio-dev/vfio3"))
    assert used(cards, *VFS) == set(), "enable is 1 on a driver of the host, and says nothing"
    cards.hold(VFS[0])
    assert used(cards, *VFS) == {VFS[0]}


async def test_a_vf_on_a_driver_of_the_host_counts_as_used(cards: SimulatedCards) -> None:
    cards.host.add_function(
        NIC, vendor="15b3", device="101e", pci_class="020000", driver="mlx5_core", group=70
    )
    assert used(cards, NIC) == {NIC}


async def test_a_vf_on_nvidias_driver_is_used_by_its_mdevs_and_types_alone(cards: SimulatedCards) -> None:
    vf = "0000:3b:01.0"
    cards.host.add_function(
        vf, vendor="10de", device="20f1", pci_class="030200", driver="nvidia", group=71, physfn=T4
    )
    assert used(cards, vf) == set()
    files.directory(cards.host.path(f"/sys/class/mdev_bus/{vf}/{ONE}"))
    assert used(cards, vf) == {vf}


def openers(cards: SimulatedCards, *ids: str) -> Mapping[str, str]:
    return open_files.find_openers(Root(cards.host.directory), ids).openers


async def test_the_process_that_is_seen_to_have_it_open_is_named(cards: SimulatedCards) -> None:
    assert openers(cards, ONE, TWO, *VFS) == {}
    files.link(cards.host.path("/proc/77/fd/9"), str(nodes(cards)[1]))
    files.write(cards.host.path("/proc/77/comm"), "qemu-system-x86\n")
    assert list(openers(cards, ONE, TWO, *VFS).values()) == ["process 77 (qemu-system-x86)"]


async def test_what_cannot_be_seen_is_nobody_s(cards: SimulatedCards) -> None:
    closed = cards.host.path("/proc/77/fd")
    files.directory(closed)
    os.chmod(closed, 0)
    assert as_anybody(lambda: set(openers(cards, ONE, TWO))) == set()
    for node in nodes(cards):
        node.unlink()
    assert openers(cards, ONE, "0000:00:00.0") == {}


async def test_open_files_that_are_listed_and_not_named_count_as_all(cards: SimulatedCards) -> None:
    cards.hold(ONE)
    listed = Path(cards.host.path("/proc/77/fd"))
    files.directory(str(listed))
    (listed / "3").symlink_to("/dev/null")
    assert as_anybody(lambda: used(cards, ONE, TWO)) == {ONE}
    os.chmod(listed, 0o400)  # without CAP_SYS_PTRACE the kernel lists them, and says of none what it is
    assert as_anybody(lambda: used(cards, ONE, TWO)) == {ONE, TWO}
    os.chmod(listed, 0o500)


async def test_a_file_that_only_its_owner_may_look_at_is_no_device(
    cards: SimulatedCards, tmp_path: Path
) -> None:
    cards.hold(ONE)
    private = tmp_path / "of a FUSE file system"
    private.mkdir()
    os.chmod(private, 0)
    listed = Path(cards.host.path("/proc/77/fd"))
    files.directory(str(listed))
    (listed / "3").symlink_to(private / "file")
    assert as_anybody(lambda: used(cards, ONE, TWO)) == {ONE}


async def test_who_may_open_nothing_does_not_know_what_is_open(cards: SimulatedCards) -> None:
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        used(cards, ONE)


async def test_the_node_of_a_group_is_that_of_all_of_its_functions(cards: SimulatedCards) -> None:
    pair = ("0000:05:00.0", "0000:05:00.1")
    for address in pair:
        cards.host.add_function(
            address, vendor="1002", device="67df", pci_class="030000", driver="vfio-pci", group=5
        )
    files.link(cards.host.path("/proc/77/fd/9"), cards.host.path("/dev/vfio/5"))
    assert set(openers(cards, *pair)) == set(pair)


async def test_by_its_group_a_device_is_open_only_through_the_node_of_that(cards: SimulatedCards) -> None:
    cards.host.add_function(
        NIC, vendor="15b3", device="101e", pci_class="020000", driver="vfio-pci", group=70
    )
    files.directory(cards.host.path(f"/sys/bus/pci/devices/{NIC}/vfio-dev/vfio3"))
    cards.host.node("/dev/vfio/devices/vfio3")
    files.link(cards.host.path("/proc/77/fd/9"), cards.host.path("/dev/vfio/devices/vfio3"))
    root = Root(cards.host.directory)
    assert open_files.find_openers(root, [NIC]).openers.keys() == {NIC}
    assert open_files.find_openers(root, [NIC], {NIC}).openers == {}


def sees_all(options: str) -> bool:
    """What a process without CAP_SYS_PTRACE tells of a real ``/proc`` with these mount options."""
    drop = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    tell = "from nodeagent.kernel import open_files, root; print(open_files.sees_all_processes(root.Root()))"
    mount = f'mount -t proc -o {options} proc /proc && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", *drop, sys.executable, "-c", tell]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"no such /proc can be had here: {done.stderr.strip()[-200:]}")
    return done.stdout.strip() == "True"


def test_where_others_processes_are_hidden_not_all_are_seen() -> None:
    """With ``hidepid=invisible`` of proc(5), for whoever may not trace a process, nor has the group."""
    if not sees_all("hidepid=0"):
        pytest.skip("this is not the host's namespace of processes")
    assert not sees_all("hidepid=2,gid=4242")
