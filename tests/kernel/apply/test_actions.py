# SPDX-License-Identifier: Apache-2.0
"""One change at a time: written once, seen to be made, and refused in words that help."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.change import (
    Action,
    clear_vgpu_type,
    create_mdev,
    remove_mdev,
    set_num_vfs,
    set_vgpu_type,
)
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, MdevKernel, SimulatedCards, Type, add_card, fail_create, simulated_cards
from tests.facts import names
from tests.sim.vfs import SimulatedVfs, vf_addresses

T4, A40 = "0000:3b:00.0", "0000:86:00.0"
VFS = vf_addresses(A40, 2)
UUID = "11111111-2222-5333-8444-555555555555"
OTHER = "11111111-2222-5333-8444-666666666666"
CREATE = create_mdev(T4, T4, "nvidia-228", UUID)
REMOVE = remove_mdev(T4, T4, "nvidia-228", UUID)


@pytest.fixture
async def cards(tmp_path: Path) -> AsyncIterator[SimulatedCards]:
    """A T4 with mdevs and an A40 whose VFs take vGPU types."""
    split = [
        Card(T4, (Type("nvidia-223", 8), Type("nvidia-228", 2, "GRID T4-8A"))),
        Card(A40, (Type("557", 2, "NVIDIA A40-24Q"),), vfs=VFS, vgpu=True),
    ]
    host = SimulatedHost(tmp_path)
    for number, card in enumerate(split):
        add_card(host, card, 10 + 10 * number)
    async with simulated_cards(host, MdevKernel(split)) as made:
        yield made


async def change(cards: SimulatedCards, action: Action, patience: float = 5.0) -> None:
    await threads.call(
        actions.apply, Root(cards.host.directory), action, Timeouts()._replace(write_effect=patience)
    )


async def refusal(cards: SimulatedCards, action: Action, patience: float = 0.05) -> KernelRefused:
    with pytest.raises(KernelRefused) as caught:
        await change(cards, action, patience)
    return caught.value


async def test_an_mdev_is_made_and_removed(cards: SimulatedCards) -> None:
    await change(cards, CREATE)
    assert cards.instances == {UUID: (T4, "nvidia-228")}
    await change(cards, REMOVE)
    assert cards.instances == {}
    assert cards.writes == 2


async def test_what_is_gone_already_is_not_removed_again(cards: SimulatedCards) -> None:
    await change(cards, REMOVE)
    assert cards.writes == 0


async def test_a_uuid_that_exists_is_not_written(cards: SimulatedCards) -> None:
    await change(cards, CREATE)
    error = await refusal(cards, CREATE)
    assert (error.errno, cards.writes) == (errno.EEXIST, 1)
    names(error.hint, "open")


async def test_a_uuid_whose_removal_waits_is_not_written(cards: SimulatedCards) -> None:
    await change(cards, CREATE)
    cards.hold(UUID)
    await change(cards, REMOVE)
    assert (await refusal(cards, CREATE)).errno == errno.EEXIST


async def test_where_no_room_is_said_nothing_is_written(cards: SimulatedCards) -> None:
    await change(cards, CREATE)
    error = await refusal(cards, create_mdev(T4, T4, "nvidia-223", OTHER))
    assert (error.errno, cards.writes) == (errno.ENOSPC, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EINVAL])
async def test_the_errno_and_the_path_of_a_refusal_are_told(cards: SimulatedCards, number: int) -> None:
    fail_create(cards.host, T4, "nvidia-228", number)
    error = await refusal(cards, CREATE)
    assert error.errno == number
    assert error.path == f"/sys/class/mdev_bus/{T4}/mdev_supported_types/nvidia-228/create"
    assert error.path in error.what
    assert error.hint


async def test_a_write_without_error_and_without_effect_is_a_refusal(cards: SimulatedCards) -> None:
    path = Path(cards.host.path(cards.host.tree.real(f"/sys/class/mdev_bus/{T4}")))
    create = path / "mdev_supported_types/nvidia-228/create"
    create.unlink()
    create.symlink_to("/dev/null")
    error = await refusal(cards, CREATE)
    assert error.errno == 0
    names(error.what, "driver", UUID)


async def test_a_parent_that_is_gone_is_told_as_such(cards: SimulatedCards) -> None:
    cards.unload(T4)
    error = await refusal(cards, CREATE)
    assert error.errno == errno.ENOENT
    assert "unloaded" in error.hint


async def test_a_vgpu_type_is_set_once_and_cleared(cards: SimulatedCards) -> None:
    for _ in range(2):
        await change(cards, set_vgpu_type(A40, VFS[0], "557"))
    assert cards.instances == {VFS[0]: (VFS[0], "557")}
    for _ in range(2):
        await change(cards, clear_vgpu_type(A40, VFS[0], "557"))
    assert cards.instances == {}
    assert cards.writes == 2


async def test_a_vgpu_type_that_is_not_creatable_now_is_not_written(cards: SimulatedCards) -> None:
    error = await refusal(cards, set_vgpu_type(A40, VFS[0], "999"))
    assert (error.errno, cards.writes) == (errno.ENOSPC, 0)


async def test_vfs_are_made_and_removed(cards: SimulatedCards) -> None:
    host, pf = cards.host, "0000:af:00.0"
    host.add_function(
        pf, vendor="15b3", device="101d", pci_class="020000", driver="mlx5_core", group=90, sriov=8
    )
    watcher = DirectoryWatcher()
    vfs = SimulatedVfs(host, pf, watcher, group=91)
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        await change(cards, set_num_vfs(pf, 3))
        assert len(vfs.made) == 3
        error = await refusal(cards, set_num_vfs(pf, 5))
        names(error.what, "number of VFs")
        await change(cards, set_num_vfs(pf, 0))
        assert not [*vfs.made]
        await refusal(cards, set_num_vfs(pf, 9))
        assert not [*vfs.made], "it can have 8"
        group.cancel_scope.cancel()
    watcher.close()


async def test_a_function_whose_driver_makes_no_vfs_is_not_said_to_be_gone(cards: SimulatedCards) -> None:
    error = await refusal(cards, set_num_vfs(T4, 3))
    assert error.errno == errno.ENOENT
    assert "vfio-pci" in error.hint


async def test_the_number_of_vfs_is_not_written_where_some_were_left_behind(cards: SimulatedCards) -> None:
    host, pf = cards.host, "0000:af:00.0"
    host.add_function(pf, vendor="8086", device="0010", pci_class="010802", driver="nvme", group=90, sriov=4)
    host.add_function("0000:af:00.1", vendor="8086", device="0010", pci_class="010802", group=91, physfn=pf)
    host.unplug(pf)
    host.plug(pf)
    error = await refusal(cards, set_num_vfs(pf, 2))
    names(error.what, "0000:af:00.1")
    assert "reboot" in error.hint
    assert Root(host.directory).text(f"/sys/bus/pci/devices/{pf}/sriov_numvfs") == "0"
