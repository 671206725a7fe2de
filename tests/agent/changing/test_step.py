# SPDX-License-Identifier: Apache-2.0
"""One step after the other: late writes, refused ones, open devices, and what is on record before a write."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from nodeagent.agent import core as cores
from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.step import ChangeRunner
from nodeagent.base import log, threads
from nodeagent.base.state import BOOT
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.change import Step, clear_vgpu_type, create_mdev, set_num_vfs, set_vgpu_type
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import ResultsStatus
from tests import exhausted
from tests.agent.changing.changing import Changing, node, wanted
from tests.agent.parts import settings
from tests.conftest import Said
from tests.sim import fifos

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop

VF, PF = "0000:86:00.4", "0000:af:00.0"
DEADLINE = 1.0  # seconds: more than a write takes on a busy machine
NEVER = Backoff(first=3600.0, limit=3600.0)
SET = Step(set_vgpu_type("0000:86:00.0", VF, "557"), "it is wanted")
OTHER = Step(set_vgpu_type("0000:86:00.0", VF, "558"), "it is wanted")
CLEAR = Step(clear_vgpu_type("0000:86:00.0", VF, "557"), "it is not wanted any more")
SPLIT = Step(set_num_vfs(PF, 2), "it is wanted")
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
SECOND = "53764d0e-85a0-42b4-af5c-2046b460b1dd"


class Making(NamedTuple):
    """A runner with a short deadline, and a group for its tasks."""

    changing: Changing
    runner: ChangeRunner
    group: TaskGroup

    @property
    def types(self) -> Mapping[str, str]:
        """The vGPU types on record."""
        return self.changing.now.ledger.types

    @property
    def saved(self) -> Mapping[str, str]:
        """Those on disk."""
        return ledger.SECTION.load(self.changing.root.prefix).types

    @property
    def tries(self) -> Mapping[str, int]:
        """How often each attempt was refused in a row."""
        return {attempt: each.count for attempt, each in self.runner.retries.failures.items()}

    def begin(self, step: Step) -> None:
        """Begin to make a step as the only one of its card."""
        self.runner.start(step.action.card, [step], self.changing.now, self.group)

    async def make(self, step: Step) -> None:
        """Make a step, until its card is free again."""
        self.begin(step)
        await self.until_free()

    async def until_free(self) -> None:
        """Wait until no card is worked on."""
        await self.changing.until(lambda: not self.runner.working)

    async def until_ended(self) -> None:
        """Wait until no write is in progress, and the Host shows the effect of all."""
        await self.changing.until(lambda: not (self.runner.in_progress or self.runner.busy))


@asynccontextmanager
async def making(root: Path, deadline: float = DEADLINE) -> AsyncIterator[Making]:
    """On a VF that takes any type, and a PF that takes nothing."""
    async with node(root, []) as changing, anyio.create_task_group() as group:
        nvidia = root / "sys/bus/pci/devices" / VF / "nvidia"
        nvidia.mkdir(parents=True)
        (nvidia / "current_vgpu_type").write_text("0\n")
        (nvidia / "creatable_vgpu_types").write_text("ID    : vGPU Name\n557   : NVIDIA A40-24Q\n")
        (nvidia.parent / "driver").symlink_to("../../drivers/nvidia")
        (nvidia.parent / "iommu_group").symlink_to("../../../../kernel/iommu_groups/80")
        (root / "dev/vfio").mkdir(parents=True, exist_ok=True)
        (root / "dev/vfio/80").touch()
        (root / "sys/bus/pci/devices" / PF).mkdir()
        timeouts = Timeouts()._replace(write_late=deadline, write_retry=NEVER)
        yield Making(changing, ChangeRunner(replace(changing.core, timeouts=timeouts)), group)
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
    tmp_path: Path, said: Said
) -> None:
    async with making(tmp_path) as made:
        path, runner = hanging(tmp_path), made.runner
        await made.make(SPLIT)
        assert [runner.late, runner.in_progress] == [(SPLIT,), (SPLIT,)]
        await made.make(SPLIT)  # no second one beside it
        assert [runner.late, runner.in_progress] == [(SPLIT,), (SPLIT,)]
        vfs(tmp_path, 2)
        assert await threads.call(path.read_text) == "2\n"
        await made.until_ended()
        assert [runner.late, runner.in_progress] == [(), ()]
        assert runner.writes == 1
        assert list(runner.retries.results.values()) == [ResultsStatus("set-num-vfs", 1, 0)]
        assert len(said(log.ACTION_WAITING)) == len(said(log.ACTION_DONE)) == 1


async def test_the_result_of_a_write_that_a_break_has_left_is_noted(tmp_path: Path, said: Said) -> None:
    async with making(tmp_path, deadline=60.0) as made:
        path, runner = hanging(tmp_path), made.runner
        for _ in range(2):
            async with anyio.create_task_group() as group:
                await runner.resume(group)
                if not runner.in_progress:
                    runner.start(PF, [SPLIT], made.changing.now, group)
                await made.changing.until(lambda: runner.in_progress == (SPLIT,))
                group.cancel_scope.cancel()
        assert said(log.ACTION_WAITING) == said(log.ACTION_DONE) == []
        await runner.resume(made.group)
        vfs(tmp_path, 2)
        await threads.call(path.read_text)
        await made.until_ended()
        assert (runner.writes, len(said(log.ACTION_DONE))) == (1, 1)


async def test_a_refusal_is_logged_at_once_and_the_same_once_more_is_not(tmp_path: Path, said: Said) -> None:
    async with making(tmp_path) as made:
        for times in (1, 2):
            await made.make(SPLIT)
            assert made.tries == {SPLIT.action.attempt: times}
            assert len(said(log.ACTION_FAILED)) == 1
            made.changing.publish(failures={})  # its time has come


async def test_what_was_refused_is_not_tried_again_before_its_time(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        await made.make(SPLIT)
        await made.make(SPLIT)
        assert made.runner.writes == 1


@pytest.mark.parametrize(("card", "fields"), [(PF, {"pci_address"}), ("mtty", set())])
async def test_the_log_gives_the_address_of_a_card_that_has_one(
    tmp_path: Path, said: Said, card: str, fields: set[str]
) -> None:
    async with making(tmp_path) as made:
        await made.make(Step(create_mdev(card, PF, "t-1", "any"), "it is wanted"))
        (event,) = said(log.ACTION_FAILED)
        assert event.keys() & {"pci_address"} == fields


async def test_a_vgpu_type_is_on_record_from_before_it_is_set_until_it_is_cleared(tmp_path: Path) -> None:
    async with making(tmp_path, deadline=60.0) as made:
        listed = str(tmp_path / "sys/bus/pci/devices" / VF / "nvidia/creatable_vgpu_types")
        content = fifos.replace_by_fifo(listed)
        made.begin(SET)
        await made.changing.until(lambda: made.runner.writes == 1)
        assert made.saved == {VF: "557"}
        assert (Path(listed).parent / "current_vgpu_type").read_text() == "0\n"
        fifos.replace_fifo(listed, content)
        await made.until_free()
        assert made.types == {VF: "557"}
        await made.make(CLEAR)
        assert made.types == {}
        await made.runner.ledger.save()
        assert made.saved == {}


async def test_a_vgpu_type_that_cannot_be_put_on_record_is_not_set(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        (tmp_path / "run").write_text("in the way")
        await made.make(SET)
        assert made.runner.writes == 0
        (failure,) = made.runner.retries.failures.values()
        assert BOOT.path in failure.error.what


async def test_what_is_not_wanted_any_more_in_the_last_moment_is_not_set(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        made.begin(SET)
        while not made.types:  # on record, and being saved
            await anyio.lowlevel.checkpoint()
        made.changing.publish(spec=wanted("nvidia-228"))
        await made.until_free()
        assert (made.runner.writes, made.types) == (0, {})
        assert made.runner.busy == frozenset()


async def test_what_is_wanted_again_in_the_last_moment_is_not_cleared(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        await made.make(SET)
        made.begin(CLEAR)
        while VF not in made.changing.now.reservations.withdrawn:
            await anyio.lowlevel.checkpoint()
        made.changing.publish(spec=wanted("nvidia-228"))
        await made.until_free()
        assert (made.runner.writes, made.types) == (1, {VF: "557"})
        assert made.changing.now.reservations.withdrawn == frozenset()


async def test_a_vgpu_type_that_the_kernel_refuses_is_off_the_record(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        listed = tmp_path / "sys/bus/pci/devices" / VF / "nvidia/creatable_vgpu_types"
        listed.write_text("ID    : vGPU Name\n")
        await made.make(SET)
        assert (made.runner.writes, made.tries) == (1, {}), "the picture may be old"
        assert made.types == {}
        await made.runner.ledger.save()
        assert made.saved == {}


async def test_a_refused_vgpu_type_leaves_the_one_before_on_record(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        for step, types in ((SET, {VF: "557"}), (OTHER, {VF: "557"}), (CLEAR, {}), (OTHER, {})):
            await made.make(step)
            assert made.types == types


async def test_a_record_that_is_on_disk_already_is_not_written_again(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        await made.runner.ledger.save()
        assert not (tmp_path / BOOT.path.lstrip("/")).exists()


# Who has it open


@pytest.fixture
def probing(tmp_path: Path) -> Iterator[ChangeRunner]:
    """On a host on which nothing is told: its file of modules hangs."""
    driver = tmp_path / "sys/bus/mdev/devices" / UUID / "driver"
    driver.mkdir(parents=True)
    (driver / "module").symlink_to("../../../../../module/mtty")
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/modules")
    core = cores.build(Root(tmp_path), settings(), Timeouts()._replace(open_file_scan=0.2))
    core.snapshots.publish(Snapshot(open=frozenset({SECOND})))
    yield ChangeRunner(core)
    core.watcher.close()


def answer(root: Path) -> None:
    fifos.replace_fifo(str(root / "proc/modules"), b"mtty 20480 0 - Live 0x0\n")


async def test_what_the_kernel_does_not_tell_in_time_is_in_use(probing: ChangeRunner, tmp_path: Path) -> None:
    with anyio.fail_after(2):
        assert await probing.probe([UUID]) == {UUID}
    answer(tmp_path)
    assert await probing.probe([UUID]) == frozenset()


async def test_while_one_question_is_not_answered_no_other_is_asked(
    probing: ChangeRunner, tmp_path: Path
) -> None:
    for _ in range(3):
        assert await probing.probe([UUID]) == {UUID}
    assert [each.name for each in threading.enumerate()].count("nodeagent: find_in_use") == 1
    answer(tmp_path)
    assert await probing.probe([UUID]) == frozenset()


async def test_what_is_open_is_published_until_a_new_question_says_otherwise(
    probing: ChangeRunner, tmp_path: Path
) -> None:
    await probing.probe([UUID])
    assert probing.snapshots.now.open == {UUID, SECOND}, "of the other one nothing new is known"
    answer(tmp_path)
    await probing.refresh([UUID, SECOND, "not open"])
    assert probing.snapshots.now.open == frozenset()


async def test_what_nobody_could_look_at_counts_as_open(probing: ChangeRunner, tmp_path: Path) -> None:
    (tmp_path / "sys/bus/mdev/devices" / SECOND).mkdir()
    with exhausted.no_descriptors():
        assert await probing.probe([SECOND]) == frozenset({SECOND})
    assert await probing.probe([SECOND]) == frozenset()
