# SPDX-License-Identifier: Apache-2.0
"""What was refused comes again later each time, and is forgotten with its cause."""

from __future__ import annotations

import errno

import anyio
import pytest

from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.model.change import Step, create_mdev, remove_mdev
from nodeagent.model.snapshot import Snapshot

FIRST, SECOND = (
    Step(create_mdev(card, card, "nvidia-222", "any"), "wanted") for card in ("0000:3b:00.0", "0000:5e:00.0")
)
CARD, OTHER = FIRST.action.attempt, SECOND.action.attempt


DEFAULTS = Timeouts()


def made(timeouts: Timeouts = DEFAULTS) -> tuple[Retries, Snapshots]:
    snapshots = Snapshots(Snapshot())
    return Retries(snapshots, timeouts), snapshots


def refused(number: int) -> KernelRefused:
    return KernelRefused("the kernel refused", errno=number)


def test_each_refusal_in_a_row_waits_longer() -> None:
    retries, snapshots = made(Timeouts(write_retry=Backoff(first=1.0, limit=5.0)))
    for now, due in ((0.0, 1.0), (10.0, 12.0), (20.0, 24.0), (30.0, 35.0)):
        assert retries.refused(FIRST, refused(errno.EIO), now)
        assert retries.failures[CARD].due == due
        retries.publish(due - 0.1)
        assert snapshots.now.failures == {CARD: "the kernel refused"}
        assert retries.next_due(now) == due - now
        retries.publish(due)
        assert snapshots.now.failures == {}
    assert retries.failures[CARD].count == 4


def test_an_attempt_that_interrupts_a_working_driver_is_repeated_once_an_hour_at_last() -> None:
    retries, _ = made()
    error = KernelRefused("the driver refused", interrupting=True)
    delays = []
    for _ in range(40):
        retries.refused(FIRST, error, 0.0)
        delays.append(retries.failures[CARD].due)
    assert delays[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert delays[12:] == [3600.0] * 28


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EEXIST])
def test_an_old_picture_is_no_failure_unless_it_stays_so(number: int) -> None:
    retries, _ = made()
    assert not retries.refused(FIRST, refused(number), 0.0)
    assert retries.failures == {}
    assert retries.next_due(0.0) is None
    assert retries.refused(FIRST, refused(number), 0.0)


def test_a_success_ends_the_row() -> None:
    retries, _ = made()
    retries.refused(FIRST, refused(errno.ENOSPC), 0.0)
    retries.refused(FIRST, refused(errno.ENOSPC), 0.0)
    retries.succeeded(FIRST, 0.0)
    assert retries.failures == {}
    assert not retries.refused(FIRST, refused(errno.ENOSPC), 0.0)


def test_a_card_that_is_gone_is_forgotten_and_others_are_not() -> None:
    retries, _ = made()
    retries.refused(FIRST, refused(errno.EIO), 0.0)
    retries.refused(SECOND, refused(errno.EIO), 0.0)
    retries.forget_unplanned([OTHER], [], 0.0)
    assert list(retries.failures) == [OTHER]


def test_a_removal_that_succeeds_says_nothing_of_creating() -> None:
    retries, _ = made()
    retries.refused(FIRST, refused(errno.EIO), 0.0)
    retries.succeeded(
        Step(remove_mdev(FIRST.action.card, FIRST.action.card, "nvidia-222", "any"), "dead"), 0.0
    )
    assert list(retries.failures) == [CARD]


def test_on_a_card_on_its_way_to_a_type_nothing_is_forgotten_of_that_type() -> None:
    retries, _ = made()
    for step in (FIRST, SECOND):
        retries.refused(step, refused(errno.EIO), 0.0)
    retries.forget_unplanned([], [FIRST.place, (SECOND.action.card, "nvidia-223")], 0.0)
    assert list(retries.failures) == [CARD]


async def test_what_has_waited_long_enough_leaves_the_snapshot_by_itself() -> None:
    retries, snapshots = made(Timeouts(write_retry=Backoff(first=0.05, limit=0.05)))
    async with anyio.create_task_group() as group:
        group.start_soon(retries.run)
        retries.refused(FIRST, refused(errno.EIO), anyio.current_time())
        assert snapshots.now.failures
        with anyio.fail_after(5):
            while snapshots.now.failures:
                await snapshots.newer(snapshots.version)
        group.cancel_scope.cancel()
