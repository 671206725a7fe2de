# SPDX-License-Identifier: Apache-2.0
"""The quick comparison of a function with what is known of it: each thing that can change is seen alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.base import threads
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import pci
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.sim import hosts

A = PciAddress("0000:01:00.0")
Change = Callable[[Path, Path], None]  # of the function's directory, below the root


def link(name: str, to: str) -> Change:
    """The link leads elsewhere."""

    def change(at: Path, _: Path) -> None:
        (at / name).unlink()
        (at / name).symlink_to(to)

    return change


def without(name: str) -> Change:
    """It is not there any more."""

    def change(at: Path, _: Path) -> None:
        (at / name).rename(at.with_name("elsewhere"))

    return change


def text(name: str, content: str) -> Change:
    """An attribute, or one that was not there."""

    def change(at: Path, _: Path) -> None:
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_text(f"{content}\n")

    return change


def no_node(_: Path, root: Path) -> None:
    """The node of its own goes, what sysfs says of it stays."""
    (root / "dev/vfio/devices/vfio0").unlink()


def another_device(at: Path, _: Path) -> None:
    """Another device in the same place, alike in all that can be read."""
    shutil.copytree(at, at.with_name("aside"), symlinks=True)
    at.rename(at.with_name("before"))
    at.with_name("aside").rename(at)


def unplugged(at: Path, root: Path) -> None:
    """Nothing in its place."""
    (root / "sys/bus/pci/devices" / A).unlink()
    shutil.rmtree(at)


CHANGES: dict[str, tuple[bool, Change]] = {
    "driver": (False, link("driver", "../../../../bus/pci/drivers/nvidia")),
    "no driver": (False, without("driver")),
    "group": (False, link("iommu_group", "../../../../kernel/iommu_groups/2")),
    "no group": (False, without("iommu_group")),
    "opened": (False, text("enable", "1")),
    "let go by vfio": (False, without("vfio-dev")),
    "no node of its own": (True, no_node),
    "sysfs tells of no node": (True, without("vfio-dev/vfio0/dev")),
    "another vGPU type": (False, text("nvidia/current_vgpu_type", "2")),
    "another device": (False, another_device),
    "no device": (False, unplugged),
}


@pytest.mark.parametrize(("cdev", "change"), CHANGES.values(), ids=CHANGES)
def test_each_change_alone_makes_a_function_unlike_what_is_known(
    tmp_path: Path, cdev: bool, change: Change
) -> None:
    host = SimulatedHost(tmp_path, cdev=cdev)
    host.add_function(A, vendor="10de", device="1eb8", pci_class="030200", driver="mlx5_vfio_pci", group=1)
    root, at = Root(tmp_path), (tmp_path / "sys/bus/pci/devices" / A).resolve()
    text("nvidia/current_vgpu_type", "1")(at, tmp_path)
    known = pci.function(root, A)
    assert known is not None
    assert known.cdev is cdev
    assert pci.reads_as_known(root, known)
    change(at, tmp_path)
    assert not pci.reads_as_known(root, known)


def test_a_function_that_vfio_takes_is_unlike_what_is_known(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    host.add_function(A, vendor="10de", device="1eb8", pci_class="030200", driver="mlx5_vfio_pci", group=1)
    root, at = Root(tmp_path), (tmp_path / "sys/bus/pci/devices" / A).resolve()
    shutil.rmtree(at / "vfio-dev")
    known = pci.function(root, A)
    assert known is not None
    assert pci.reads_as_known(root, known)
    (at / "vfio-dev/vfio0").mkdir(parents=True)
    assert not pci.reads_as_known(root, known)


def test_a_vf_tells_of_the_driver_of_its_pf(tmp_path: Path) -> None:
    host, vf = SimulatedHost(tmp_path), PciAddress("0000:01:00.4")
    host.add_function(A, vendor="8086", device="1572", pci_class="020000", driver="i40e", group=1, sriov=4)
    host.add_function(
        vf, vendor="8086", device="154c", pci_class="020000", driver="vfio-pci", group=2, physfn=A
    )
    looks = Looks(Root(tmp_path))
    before = looks.full()
    assert [before.functions[each].pf_driver for each in (A, vf)] == [None, "i40e"]
    host.bind(A, "vfio-pci")
    assert not pci.reads_as_known(Root(tmp_path), before.functions[vf])
    after = looks.refresh(before, frozenset({A}))
    assert after.functions[vf].pf_driver == "vfio-pci"
    host.bind(A, None)
    assert looks.refresh(after, frozenset({A})).functions[vf].pf_driver is None


def test_a_vf_has_its_number_and_the_interfaces_of_its_pf(tmp_path: Path) -> None:
    host, vfs = SimulatedHost(tmp_path), [PciAddress(f"0000:01:00.{number}") for number in (4, 5)]
    nic: dict[str, Any] = {"vendor": "8086", "device": "1572", "pci_class": "020000"}
    host.add_function(A, **nic, driver="i40e", group=1, sriov=4)
    for number, vf in enumerate(vfs):
        host.add_function(vf, **nic, driver="vfio-pci", group=2 + number, physfn=A)
    net = (tmp_path / "sys/bus/pci/devices" / A).resolve() / "net"
    (net / "eth0").mkdir(parents=True)
    looks = Looks(Root(tmp_path))
    before = looks.full()
    assert [before.functions[each].vf_number for each in (A, *vfs)] == [None, 0, 1]
    assert [before.functions[each].pf_interfaces for each in (A, *vfs)] == [("eth0",)] * 3
    (net / "eth0").rename(net / "ens1f0")
    after = looks.refresh(before, frozenset({A}))
    assert [after.functions[each].pf_interfaces for each in vfs] == [("ens1f0",)] * 2
    assert [after.functions[each].vf_number for each in vfs] == [0, 1]
    host.unplug(vfs[0])
    assert looks.full().functions[vfs[1]].vf_number == 1, "it is still virtfn1"


async def test_a_function_that_goes_while_it_is_read_is_not_there(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    host.add_function(A, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=1)
    at = (tmp_path / "sys/bus/pci/devices" / A).resolve()
    (at / "enable").unlink()  # it is read before the links
    os.mkfifo(at / "enable")
    os.link(at / "enable", tmp_path / "enable")
    reading = threads.start(pci.function, Root(tmp_path), A)
    with (tmp_path / "enable").open("w") as answer:  # it opens when the other end is open
        unplugged(at, tmp_path)
        answer.write("0\n")
    assert await reading is None


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 20, "-1", "\u0663", ""])
def test_what_is_no_number_of_the_kernels_is_unknown(tmp_path: Path, number: str) -> None:
    """Python turns no text of more than 4,300 digits into a number, and says so by a ValueError."""
    host = SimulatedHost(tmp_path)
    host.add_function(A, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=1)
    Path(host.path(f"/sys/bus/pci/devices/{A}/numa_node")).write_text(number)
    found = pci.function(Root(tmp_path), A)
    assert found is not None
    assert found.numa_node is None


@pytest.mark.parametrize(
    ("enable", "power_state", "driver", "answers"),
    [
        ("1", "D0", "vfio-pci", False),
        ("0", "D0", "vfio-pci", None),
        ("1", "D3hot", "vfio-pci", None),
        ("1", "unknown", "vfio-pci", None),
        ("1", "D0", "nouveau", None),
    ],
)
def test_the_configuration_space_is_looked_at_only_where_a_device_is_open_and_awake(
    tmp_path: Path, enable: str, power_state: str, driver: str, answers: bool | None
) -> None:
    host = hosts.many(tmp_path, 1)
    address = PciAddress(hosts.address(0))
    host.bind(address, driver)
    host.write(address, "enable", enable)
    host.write(address, "power_state", power_state)
    config = Path(host.path(f"/sys/bus/pci/devices/{address}/config"))
    config.write_bytes(b"\xff" * 256)
    function = pci.function(Root(tmp_path), address)
    assert function is not None
    assert function.answers is answers
    assert pci.has_fallen_off_bus(Root(tmp_path), address)
    config.write_bytes(b"\xff\xff\xff\xff" + bytes(252))
    assert not pci.has_fallen_off_bus(Root(tmp_path), address), "a VF begins like that"
    config.unlink()
    assert not pci.has_fallen_off_bus(Root(tmp_path), address)
