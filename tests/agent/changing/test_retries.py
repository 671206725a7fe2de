# SPDX-License-Identifier: Apache-2.0
"""What was refused comes again later each time, and is forgotten with its cause."""

from __future__ import annotations

import errno

import pytest

from nodeagent.agent.changing.retries import Retries
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused
from nodeagent.model.action import CreateMdev, RemoveMdev, Step

FIRST, SECOND = (
    Step(CreateMdev(card, card, "nvidia-222", "any"), "wanted") for card in ("0000:3b:00.0", "0000:5e:00.0")
)
CARD, OTHER = FIRST.action.attempt, SECOND.action.attempt


def refused(number: int) -> KernelRefused:
    return KernelRefused("the kernel refused", errno=number)


@pytest.mark.shows("KV-4", "VG-7")
def test_each_refusal_in_a_row_waits_longer() -> None:
    retries = Retries(Backoff(first=1.0, limit=5.0))
    for now, due in ((0.0, 1.0), (10.0, 12.0), (20.0, 24.0), (30.0, 35.0)):
        assert retries.refused(FIRST, refused(errno.EIO), now)
        assert retries.failures[CARD].due == due
        assert retries.waiting(due - 0.1) == {CARD: "the kernel refused"}
        assert retries.next_due(now) == due - now
        assert retries.waiting(due) == {}
    assert retries.failures[CARD].count == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EEXIST])
def test_an_old_picture_is_no_failure_unless_it_stays_so(number: int) -> None:
    retries = Retries()
    assert not retries.refused(FIRST, refused(number), 0.0)
    assert retries.failures == {}
    assert retries.next_due(0.0) is None
    assert retries.refused(FIRST, refused(number), 0.0)


def test_a_success_ends_the_row() -> None:
    retries = Retries()
    retries.refused(FIRST, refused(errno.ENOSPC), 0.0)
    retries.refused(FIRST, refused(errno.ENOSPC), 0.0)
    retries.succeeded(FIRST)
    assert retries.failures == {}
    assert not retries.refused(FIRST, refused(errno.ENOSPC), 0.0)


def test_a_card_that_is_gone_is_forgotten_and_others_are_not() -> None:
    retries = Retries()
    retries.refused(FIRST, refused(errno.EIO), 0.0)
    retries.refused(SECOND, refused(errno.EIO), 0.0)
    retries.keep([OTHER], [])
    assert list(retries.failures) == [OTHER]


def test_a_removal_that_succeeds_says_nothing_of_creating() -> None:
    retries = Retries()
    retries.refused(FIRST, refused(errno.EIO), 0.0)
    retries.succeeded(Step(RemoveMdev(FIRST.action.card, FIRST.action.card, "nvidia-222", "any"), "dead"))
    assert list(retries.failures) == [CARD]


def test_on_a_card_on_its_way_to_a_type_nothing_is_forgotten_of_that_type() -> None:
    retries = Retries()
    for step in (FIRST, SECOND):
        retries.refused(step, refused(errno.EIO), 0.0)
    retries.keep([], [FIRST.place, (SECOND.action.card, "nvidia-223")])
    assert list(retries.failures) == [CARD]
