# SPDX-License-Identifier: Apache-2.0
"""One write after the other: late ones, refused ones, and what is remembered of vGPU types."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.executor import Executor, Outcome
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.action import Step, clear_vgpu_type, create_mdev, set_num_vfs, set_vgpu_type
from nodeagent.model.snapshot import Snapshot
from tests.conftest import Said

VF, PF = "0000:86:00.4", "0000:af:00.0"
DEADLINE = 1.0  # seconds: more than a write takes on a busy machine
NEVER = Backoff(first=3600.0, limit=3600.0)
SET = Step(set_vgpu_type("0000:86:00.0", VF, "557"), "it is wanted")
OTHER = Step(set_vgpu_type("0000:86:00.0", VF, "558"), "it is wanted")
CLEAR = Step(clear_vgpu_type("0000:86:00.0", VF, "557"), "it is not wanted any more")
SPLIT = Step(set_num_vfs(PF, 2), "it is wanted")


class Writing(NamedTuple):
    """An executor with a short deadline, and what it tells of its work."""

    executor: Executor
    keeper: LedgerKeeper
    retries: Retries
    wakes: Wakes
    snapshots: Snapshots

    @property
    def types(self) -> Mapping[str, str]:
        """The vGPU types on record."""
        return self.snapshots.now.ledger.types

    async def until_woken(self) -> frozenset[str] | None:
        """Wait for a Wake; what is due then."""
        with anyio.fail_after(10):
            while not self.wakes.due:
                await self.wakes.newer(self.wakes.version)
        return self.wakes.take()

    async def take(self, step: Step) -> Outcome:
        """Make the change; nothing is against it."""
        return await self.executor.take(step, lambda: True)


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    """On a VF that takes any type, and a PF that takes nothing."""
    nvidia = tmp_path / "sys/bus/pci/devices" / VF / "nvidia"
    nvidia.mkdir(parents=True)
    (nvidia / "current_vgpu_type").write_text("0\n")
    (nvidia / "creatable_vgpu_types").write_text("ID    : vGPU Name\n557   : NVIDIA A40-24Q\n")
    (tmp_path / "sys/bus/pci/devices" / PF).mkdir()
    root, snapshots, wakes = Root(tmp_path), Snapshots(Snapshot()), Wakes()
    wakes.take()  # everything is due at the start
    keeper, retries = LedgerKeeper(root, snapshots), Retries(snapshots, NEVER)
    write = partial(actions.apply, root, timeouts=Timeouts())
    return Writing(Executor(write, wakes, retries, keeper, DEADLINE), keeper, retries, wakes, snapshots)


@asynccontextmanager
async def noting(executor: Executor) -> AsyncIterator[None]:
    """Who notes the results of late writes; ended with the block."""
    async with anyio.create_task_group() as group:
        group.start_soon(executor.run)
        yield
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
    writing: Writing, tmp_path: Path, said: Said
) -> None:
    path = hanging(tmp_path)
    executor, wakes = writing.executor, writing.wakes
    async with noting(executor):
        assert await writing.take(SPLIT) is Outcome.UNPLANNED
        assert (executor.late, wakes.due) == ((SPLIT,), False)
        assert await writing.take(SPLIT) is Outcome.UNPLANNED  # not a second one beside it
        seen = executor.ended.version
        vfs(tmp_path, 2)
        assert await threads.call(path.read_text) == "2\n"
        with anyio.fail_after(5):
            await executor.ended.newer(seen)
    assert wakes.take() == SPLIT.action.targets
    assert (executor.late, executor.under_way, executor.writes) == ((), (), 1)
    assert len(said(log.ACTION_WAITING)) == len(said(log.ACTION_DONE)) == 1


async def test_after_a_break_late_writes_are_waited_for_again(writing: Writing, tmp_path: Path) -> None:
    path = hanging(tmp_path)
    async with noting(writing.executor):
        await writing.take(SPLIT)
    async with noting(writing.executor):
        vfs(tmp_path, 2)
        await threads.call(path.read_text)
        assert await writing.until_woken() == SPLIT.action.targets
    assert writing.executor.under_way == ()


async def test_the_result_of_a_write_that_a_break_has_left_is_noted(
    writing: Writing, tmp_path: Path, said: Said
) -> None:
    path = hanging(tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(writing.take, SPLIT)
        with anyio.fail_after(5):
            while not writing.executor.under_way:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert (writing.executor.under_way, said(log.ACTION_WAITING)) == ((SPLIT,), [])
    async with noting(writing.executor):
        await threads.call(path.read_text)
        vfs(tmp_path, 2)
        assert await writing.until_woken() == SPLIT.action.targets
    assert (writing.executor.under_way, len(said(log.ACTION_DONE))) == ((), 1)


async def test_a_refusal_is_logged_at_once_and_the_same_once_more_is_not(
    writing: Writing, said: Said
) -> None:
    for times in (1, 2):
        assert await writing.take(SPLIT) is Outcome.REFUSED
        assert writing.retries.failures[SPLIT.action.attempt].count == times
        assert len(said(log.ACTION_FAILED)) == 1
        assert writing.wakes.take() == SPLIT.action.targets


@pytest.mark.parametrize(("card", "fields"), [(PF, {"pci_address"}), ("mtty", set())])
async def test_the_log_gives_the_address_of_a_card_that_has_one(
    writing: Writing, said: Said, card: str, fields: set[str]
) -> None:
    step = Step(create_mdev(card, PF, "t-1", "any"), "it is wanted")
    assert await writing.take(step) is Outcome.REFUSED
    (event,) = said(log.ACTION_FAILED)
    assert event.keys() & {"pci_address"} == fields


async def test_a_vgpu_type_is_on_record_from_before_it_is_set_until_it_is_cleared(
    writing: Writing, tmp_path: Path
) -> None:
    path = f"{tmp_path}{ledger.PATH}"

    def allowed() -> bool:
        assert ledger.FILE.load(path).types == {VF: "557"}
        return True

    assert await writing.executor.take(SET, allowed) is Outcome.MADE
    assert writing.types == {VF: "557"}
    assert await writing.executor.take(CLEAR, lambda: False) is Outcome.UNPLANNED
    assert writing.types == {VF: "557"}
    assert await writing.take(CLEAR) is Outcome.MADE
    assert writing.types == {}
    await writing.keeper.save()
    assert ledger.FILE.load(path).types == {}


async def test_a_vgpu_type_that_cannot_be_put_on_record_is_not_set(writing: Writing, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    assert await writing.take(SET) is Outcome.REFUSED
    assert writing.executor.writes == 0
    assert f"{tmp_path}{ledger.PATH}" in writing.retries.failures[SET.action.attempt].error.what


async def test_what_is_forbidden_in_the_last_moment_is_not_written(writing: Writing, tmp_path: Path) -> None:
    assert await writing.executor.take(SET, lambda: False) is Outcome.UNPLANNED
    assert writing.executor.writes == 0
    assert (tmp_path / "sys/bus/pci/devices" / VF / "nvidia/current_vgpu_type").read_text() == "0\n"
    assert writing.types == {}


async def test_a_vgpu_type_that_the_kernel_refuses_is_off_the_record(
    writing: Writing, tmp_path: Path
) -> None:
    (tmp_path / "sys/bus/pci/devices" / VF / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n")
    assert await writing.take(SET) is Outcome.UNPLANNED, "the picture may be old"
    assert writing.types == {}
    await writing.keeper.save()
    assert ledger.FILE.load(f"{tmp_path}{ledger.PATH}").types == {}


async def test_a_refused_vgpu_type_leaves_the_one_before_on_record(writing: Writing) -> None:
    assert await writing.take(SET) is Outcome.MADE
    assert await writing.take(OTHER) is not Outcome.MADE
    assert writing.types == {VF: "557"}
    assert await writing.take(CLEAR) is Outcome.MADE
    assert await writing.take(OTHER) is not Outcome.MADE
    assert writing.types == {}


async def test_a_record_that_is_on_disk_already_is_not_written_again(
    writing: Writing, tmp_path: Path
) -> None:
    await writing.keeper.save()
    assert not (tmp_path / ledger.PATH.lstrip("/")).exists()
