# SPDX-License-Identifier: Apache-2.0
"""Device nodes: where their links lead, and what stands behind them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import devnodes
from nodeagent.sim.host import SimulatedHost
from tests.sim import devnodes as made
from tests.sim import fifos

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
GPU = "0000:3b:00.0"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A GPU on its host driver."""
    host = SimulatedHost(tmp_path)
    host.add_function(GPU, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=1)
    return host


def test_the_function_behind_a_node_is_found_whatever_is_between(host: SimulatedHost, tmp_path: Path) -> None:
    deep = f"{made.real_directory(host, GPU)}/usb1/1-2/1-2:1.0"
    made.add(host, "/dev/video0", (81, 0), deep)
    node = devnodes.read(Root(tmp_path), ["/dev/video*"])["/dev/video0"]
    assert (node.function, node.parent, node.vacant) == (GPU, deep, False)


@pytest.mark.parametrize(("kind", "number"), [("char", (189, 3)), ("block", (8, 1))])
def test_the_function_is_found_behind_what_has_no_device_of_its_own(
    host: SimulatedHost, tmp_path: Path, kind: str, number: tuple[int, int]
) -> None:
    """A USB device is itself on a bus, and a partition is a part of its disk."""
    deep = f"{made.real_directory(host, GPU)}/usb1/1-2"
    host.write_file(f"{deep}/dev", "")
    os.makedirs(host.path(f"/sys/dev/{kind}"))
    host.tree.link(f"/sys/dev/{kind}/{number[0]}:{number[1]}", deep)
    mode = stat.S_IFCHR if kind == "char" else stat.S_IFBLK
    os.mknod(host.path("/dev/thing"), mode | 0o600, os.makedev(*number))
    node = devnodes.read(Root(tmp_path), ["/dev/thing"])["/dev/thing"]
    assert (node.function, node.parent) == (GPU, None)


def test_an_nvme_disk_has_all_its_controllers_behind_it(host: SimulatedHost, tmp_path: Path) -> None:
    """With several paths to it the kernel shows the disk below its subsystem, beside links to these."""
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    host.write_file(f"{subsystem}/nvme0n1/nvme0n1p1/partition", "1")
    host.tree.link(f"{subsystem}/nvme0n1/device", subsystem)
    for name, address in (("nvme0", GPU), ("nvme1", "0000:3c:00.0")):
        place = f"/sys/devices/pci0000:3a/{address}/nvme/{name}"
        host.write_file(f"{place}/address", address)
        host.tree.link(f"{subsystem}/{name}", place)
    os.makedirs(host.path("/sys/dev/block"))
    for minor, place in enumerate(("nvme0n1", "nvme0n1/nvme0n1p1")):
        host.tree.link(f"/sys/dev/block/259:{minor}", f"{subsystem}/{place}")
        os.mknod(host.path(f"/dev/disk{minor}"), stat.S_IFBLK | 0o600, os.makedev(259, minor))
    nodes = devnodes.read(Root(tmp_path), ["/dev/disk0", "/dev/disk1"])
    assert [node.functions for node in nodes.values()] == [(GPU, "0000:3c:00.0")] * 2


def test_a_link_is_the_node_to_which_it_leads(host: SimulatedHost, tmp_path: Path) -> None:
    made.add(host, "/dev/deep/er/kvm", (10, 232))
    os.symlink("../dev/./deep/../deep/er", host.path("/dev/short"))
    os.symlink("deep/er", host.path("/dev/shorter"))
    os.symlink("/dev/shorter/kvm", host.path("/dev/kvm"))
    found = devnodes.read(Root(tmp_path), ["/dev/kvm", "/dev/short/kvm"])
    assert found["/dev/kvm"].real == "/dev/deep/er/kvm"
    assert list(found) == ["/dev/kvm"], "a way through what is above /dev is none"


def test_a_gpu_of_nvidia_s_is_known_by_its_number_and_without_one_nothing_is_there(
    host: SimulatedHost, tmp_path: Path
) -> None:
    for number in (0, 1, 254, 255):
        made.add(host, f"/dev/nvidia{number}", (195, number))
    host.write_file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: Tesla T4\nDevice Minor: \t 1")
    found = devnodes.read(Root(tmp_path), ["/dev/nvidia*"])
    assert [found[f"/dev/nvidia{number}"].function for number in (0, 1, 255)] == [None, GPU, None]
    assert [found[f"/dev/nvidia{number}"].vacant for number in (0, 1, 254, 255)] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("wanted", "watched"),
    [
        ("/dev/kvm", {"/dev"}),
        ("/dev/net/tun", {"/dev/net"}),
        ("/dev/ttyUSB*", {"/dev", "/dev/serial/by-id", "/dev/serial/by-path"}),
        ("/dev/video*", {"/dev", "/dev/v4l/by-id", "/dev/v4l/by-path"}),
        ("/dev/dri/renderD*", {"/dev/dri", "/dev/dri/by-id", "/dev/dri/by-path"}),
        ("/dev/fuse*", {"/dev"}),
    ],
)
def test_only_directories_that_matter_are_watched(wanted: str, watched: set[str]) -> None:
    assert set(devnodes.watched_directories(wanted)) == watched


def numbered(host: SimulatedHost, address: str, number: int) -> None:
    """A GPU that NVIDIA's driver has."""
    host.write_file(f"/proc/driver/nvidia/gpus/{address}/information", f"Device Minor: \t {number}\n")


@pytest.mark.parametrize("text", [None, ""], ids=["it does not answer", "it says nothing"])
def test_a_node_of_nvidia_s_may_be_any_gpu_s_that_tells_no_number_if_it_is_no_other_s(
    host: SimulatedHost, tmp_path: Path, text: str | None
) -> None:
    """A GPU that cannot be woken has an empty file."""
    numbered(host, GPU, 1)
    silent = "/proc/driver/nvidia/gpus/0000:0a:00.0/information"
    host.write_file(silent, text or "")
    if text is None:
        fifos.replace_by_fifo(host.path(silent))
    for number in (1, 2, 255):
        made.add(host, f"/dev/nvidia{number}", (195, number))
    found = devnodes.read(Root(tmp_path), [f"/dev/nvidia{number}" for number in (1, 2, 255)])
    if text is None:
        fifos.replace_fifo(host.path(silent), b"Device Minor: 2")
    assert {path: (node.functions, node.guessed, node.vacant) for path, node in found.items()} == {
        "/dev/nvidia1": ((GPU,), False, False),
        "/dev/nvidia2": (("0000:0a:00.0",), True, False),
        "/dev/nvidia255": ((), False, False),
    }
