# SPDX-License-Identifier: Apache-2.0
"""One write after the other: late ones, refused ones, and what is remembered of vGPU types."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.executor import Executor
from nodeagent.base import log, threads
from nodeagent.base.backoff import Backoff
from nodeagent.kernel.root import Root
from nodeagent.model.action import ClearVgpuType, CreateMdev, SetNumVfs, SetVgpuType, Step
from tests.conftest import Said
from tests.hearing import Heard

VF, PF = "0000:86:00.4", "0000:af:00.0"
NEVER = Backoff(first=3600.0, limit=3600.0)
SET = Step(SetVgpuType("0000:86:00.0", VF, "557"), "it is wanted")
OTHER = Step(SetVgpuType("0000:86:00.0", VF, "558"), "it is wanted")
CLEAR = Step(ClearVgpuType("0000:86:00.0", VF, "557"), "it is not wanted any more")
SPLIT = Step(SetNumVfs(PF, 2), "it is wanted")


@pytest.fixture
def written() -> Heard[Step]:
    return Heard()


@pytest.fixture
def writer(tmp_path: Path, written: Heard[Step]) -> Executor:
    """A writer whose deadline is short; a VF that takes any type, and a PF that takes nothing."""
    nvidia = tmp_path / "sys/bus/pci/devices" / VF / "nvidia"
    nvidia.mkdir(parents=True)
    (nvidia / "current_vgpu_type").write_text("0\n")
    (nvidia / "creatable_vgpu_types").write_text("ID    : vGPU Name\n557   : NVIDIA A40-24Q\n")
    (tmp_path / "sys/bus/pci/devices" / PF).mkdir()
    return Executor(Root(tmp_path), NEVER, written, deadline=0.05)


@asynccontextmanager
async def waiting() -> AsyncIterator[TaskGroup]:
    """Who waits for late writes; ended with the block."""
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


def vfs(root: Path, count: int) -> None:
    for number in range(count):
        (root / "sys/bus/pci/devices" / PF / f"virtfn{number}").symlink_to(f"../{PF}")


def hanging(root: Path) -> Path:
    """A file whose opening for a write sleeps until somebody reads."""
    path = root / "sys/bus/pci/devices" / PF / "sriov_numvfs"
    os.mkfifo(path)
    return path


async def test_a_write_that_is_late_is_told_and_its_end_counts_as_any_other(
    writer: Executor, written: Heard[Step], tmp_path: Path, said: Said
) -> None:
    path = hanging(tmp_path)
    async with waiting() as group:
        assert not await writer.take(SPLIT, group)
        assert (writer.late, written.all) == ((SPLIT,), [])
        assert not await writer.take(SPLIT, group)  # not a second one beside it
        vfs(tmp_path, 2)
        assert await threads.call(path.read_text) == "2\n"
        await written.until_told(SPLIT)
    assert (writer.late, writer.under_way, writer.writes) == ((), (), 1)
    assert len(said(log.ACTION_WAITING)) == len(said(log.ACTION_DONE)) == 1


async def test_after_a_break_late_writes_are_waited_for_again(
    writer: Executor, written: Heard[Step], tmp_path: Path
) -> None:
    path = hanging(tmp_path)
    async with waiting() as group:
        await writer.take(SPLIT, group)
    async with waiting() as group:
        writer.resume(group)
        vfs(tmp_path, 2)
        await threads.call(path.read_text)
        await written.until_told(SPLIT)
    assert writer.under_way == ()


async def test_a_refusal_is_logged_at_once_and_the_same_once_more_is_not(
    writer: Executor, written: Heard[Step], said: Said
) -> None:
    async with waiting() as group:
        for times in (1, 2):
            assert not await writer.take(SPLIT, group)
            assert writer.retries.failures[SPLIT.action.attempt].count == times
            assert len(said(log.ACTION_FAILED)) == 1
    assert written.all == [SPLIT, SPLIT]


@pytest.mark.parametrize(("card", "fields"), [(PF, {"pci_address"}), ("mtty", set())])
async def test_the_log_gives_the_address_of_a_card_that_has_one(
    writer: Executor, said: Said, card: str, fields: set[str]
) -> None:
    async with waiting() as group:
        assert not await writer.take(Step(CreateMdev(card, PF, "t-1", "any"), "it is wanted"), group)
    (event,) = said(log.ACTION_FAILED)
    assert event.keys() & {"pci_address"} == fields


async def test_a_vgpu_type_is_on_record_from_before_it_is_set_until_it_is_cleared(
    writer: Executor, tmp_path: Path
) -> None:
    path = f"{tmp_path}{ledger.PATH}"

    def allowed() -> bool:
        assert ledger.read(path).types == {VF: "557"}
        return True

    async with waiting() as group:
        assert await writer.take(SET, group, allowed)
        assert writer.ledger.types == {VF: "557"}
        assert not await writer.take(CLEAR, group, lambda: False)
        assert writer.ledger.types == {VF: "557"}
        assert await writer.take(CLEAR, group)
    assert writer.ledger.types == {}
    await writer.save()
    assert ledger.read(path).types == {}


async def test_a_vgpu_type_that_cannot_be_put_on_record_is_not_set(writer: Executor, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    async with waiting() as group:
        assert not await writer.take(SET, group)
    assert writer.writes == 0
    assert "cannot be written" in writer.retries.failures[SET.action.attempt].error.what


async def test_what_is_forbidden_in_the_last_moment_is_not_written(writer: Executor, tmp_path: Path) -> None:
    async with waiting() as group:
        assert not await writer.take(SET, group, lambda: False)
    assert writer.writes == 0
    assert (tmp_path / "sys/bus/pci/devices" / VF / "nvidia/current_vgpu_type").read_text() == "0\n"
    assert writer.ledger.types == {}


async def test_a_vgpu_type_that_the_kernel_refuses_is_off_the_record(
    writer: Executor, tmp_path: Path
) -> None:
    (tmp_path / "sys/bus/pci/devices" / VF / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n")
    async with waiting() as group:
        assert not await writer.take(SET, group)
    assert writer.ledger.types == {}
    await writer.save()
    assert ledger.read(f"{tmp_path}{ledger.PATH}").types == {}


async def test_a_refused_vgpu_type_leaves_the_one_before_on_record(writer: Executor) -> None:
    async with waiting() as group:
        assert await writer.take(SET, group)
        assert not await writer.take(OTHER, group)
        assert writer.ledger.types == {VF: "557"}
        assert await writer.take(CLEAR, group)
        assert not await writer.take(OTHER, group)
        assert writer.ledger.types == {}


async def test_a_record_that_is_on_disk_already_is_not_written_again(
    writer: Executor, tmp_path: Path
) -> None:
    await writer.save()
    assert not (tmp_path / ledger.PATH.lstrip("/")).exists()
