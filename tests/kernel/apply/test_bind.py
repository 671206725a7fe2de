# SPDX-License-Identifier: Apache-2.0
"""All functions of a group change their drivers, or none; what the host uses by now is not taken from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.change import Action, Move, bind_drivers, restore_drivers
from nodeagent.sim.host import SimulatedHost
from tests.facts import names
from tests.sim.drivers import SimulatedDrivers, simulated

A, B = "0000:01:00.0", "0000:01:00.1"
FORTH = tuple(Move(address, "nvme", "vfio-pci", "nvme") for address in (B, A))
BIND = bind_drivers(A, FORTH)
SIZE = 6  # writes that bind both


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[SimulatedDrivers]:
    """Two disks in one group, on a driver of the host."""
    host = SimulatedHost(tmp_path)
    for address in (A, B):
        host.add_function(address, vendor="144d", device="a808", pci_class="010802", driver="nvme", group=5)
    async with simulated(host, A, B) as made:
        yield made


async def change(drivers: SimulatedDrivers, action: Action, patience: float = 5.0) -> None:
    await threads.call(
        actions.apply,
        Root(drivers.host.directory),
        action,
        Timeouts()._replace(write_effect=patience),
    )


def state(drivers: SimulatedDrivers) -> list[tuple[str | None, str]]:
    return [(drivers.driver(address), drivers.override(address)) for address in (A, B)]


def mount(drivers: SimulatedDrivers, address: str) -> None:
    """A file system on the disk is mounted."""
    here = Path(drivers.host.path("/sys/class/block"))
    here.mkdir(parents=True)
    disk = Path(drivers.host.path(f"/sys/bus/pci/devices/{address}")).resolve() / "nvme/nvme0/nvme0n1"
    disk.mkdir(parents=True)
    (disk / "dev").write_text("259:0\n")
    (here / "nvme0n1").symlink_to(disk)
    drivers.host.write_file("/proc/1/mountinfo", "1 0 259:0 / /srv rw - ext4 /dev/nvme0n1 rw")


async def test_a_group_is_bound_and_gets_its_own_drivers_back(drivers: SimulatedDrivers) -> None:
    await change(drivers, BIND)
    assert state(drivers) == [("vfio-pci", "vfio-pci")] * 2
    back = [Move(move.address, "vfio-pci", move.back, move.back) for move in reversed(FORTH)]
    await change(drivers, restore_drivers(A, back))
    assert state(drivers) == [("nvme", "")] * 2


async def test_what_is_bound_already_is_not_written_to(drivers: SimulatedDrivers) -> None:
    await change(drivers, BIND)
    await change(drivers, BIND)
    assert len(drivers.writes) == SIZE


async def test_what_the_second_function_is_refused_the_first_one_gives_back(
    drivers: SimulatedDrivers,
) -> None:
    drivers.faults.set(f"probe:{A}", "lost")
    with pytest.raises(KernelRefused) as caught:
        await change(drivers, BIND, 0.2)
    names(caught.value.what, "vfio-pci", A)
    assert caught.value.interrupting
    assert state(drivers) == [("nvme", "")] * 2


async def test_what_cannot_be_taken_back_is_named(drivers: SimulatedDrivers) -> None:
    drivers.faults.set(f"probe:{A}", "lost")
    drivers.faults.set(f"reprobe:{B}", "lost")
    with pytest.raises(KernelRefused) as caught:
        await change(drivers, BIND, 0.2)
    names(caught.value.what, A, B)
    assert state(drivers) == [("nvme", ""), (None, "")]


async def test_what_the_host_has_taken_into_use_meanwhile_is_not_touched(drivers: SimulatedDrivers) -> None:
    mount(drivers, B)
    for action in (BIND, bind_drivers(A, FORTH, forced=(A, B))):
        with pytest.raises(KernelRefused, match=r"nvme0n1, mounted on /srv") as caught:
            await change(drivers, action)
        assert not caught.value.interrupting
    assert drivers.writes == []


async def test_an_override_of_somebody_else_is_not_lost(drivers: SimulatedDrivers) -> None:
    drivers.host.write(A, "driver_override", "nvme")
    with pytest.raises(KernelRefused) as caught:
        await change(drivers, BIND)
    names(caught.value.what, "driver_override", "nvme")
    assert "driverctl" in caught.value.hint
    assert drivers.driver(B) == "nvme"


async def test_a_driver_that_is_not_loaded_is_named_before_anything_is_written(
    drivers: SimulatedDrivers,
) -> None:
    moves = tuple(move._replace(to="mlx5_vfio_pci") for move in FORTH)
    with pytest.raises(KernelRefused, match="mlx5_vfio_pci") as caught:
        await change(drivers, bind_drivers(A, moves))
    assert "modprobe mlx5_vfio_pci" in caught.value.hint
    assert drivers.writes == []


async def test_a_function_on_another_driver_than_was_planned_for_is_left_alone(
    drivers: SimulatedDrivers,
) -> None:
    drivers.host.bind(B, None)
    with pytest.raises(KernelRefused) as caught:
        await change(drivers, BIND)
    names(caught.value.what, B, "nvme", "no driver")
    assert drivers.writes == []


async def test_vfs_that_came_meanwhile_keep_their_pf(drivers: SimulatedDrivers) -> None:
    drivers.host.tree.link(f"/sys/bus/pci/devices/{A}/virtfn0", f"/sys/bus/pci/devices/{B}")
    with pytest.raises(KernelRefused, match="VFs or mdevs"):
        await change(drivers, BIND)
    assert drivers.writes == []


async def test_a_vgpu_that_came_meanwhile_is_not_taken(drivers: SimulatedDrivers) -> None:
    drivers.host.write_file(f"/sys/bus/pci/devices/{A}/nvidia/current_vgpu_type", "557")
    with pytest.raises(KernelRefused, match="vGPU type 557"):
        await change(drivers, BIND)
    assert drivers.writes == []
