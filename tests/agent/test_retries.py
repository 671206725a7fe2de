# SPDX-License-Identifier: Apache-2.0
"""What was refused comes again later each time, and is forgotten with its cause."""

from __future__ import annotations

import errno

import pytest

from nodeagent.agent.retries import Retries
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused

CARD = ("0000:3b:00.0", "nvidia-222")
OTHER = ("0000:5e:00.0", "nvidia-222")


def refused(number: int) -> KernelRefused:
    return KernelRefused("the kernel refused", errno=number)


def test_each_refusal_in_a_row_waits_longer() -> None:
    retries = Retries(Backoff(first=1.0, limit=5.0))
    for now, due in ((0.0, 1.0), (10.0, 12.0), (20.0, 24.0), (30.0, 35.0)):
        assert retries.refused(CARD, refused(errno.EIO), now)
        assert retries.failures[CARD].due == due
        assert retries.waiting(due - 0.1) == {CARD: "the kernel refused"}
        assert retries.next_due(now) == due - now
        assert retries.waiting(due) == {}
    assert retries.failures[CARD].count == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EEXIST])
def test_an_old_picture_is_no_failure_unless_it_stays_so(number: int) -> None:
    retries = Retries()
    assert not retries.refused(CARD, refused(number), 0.0)
    assert retries.failures == {}
    assert retries.next_due(0.0) is None
    assert retries.refused(CARD, refused(number), 0.0)


def test_a_success_ends_the_row() -> None:
    retries = Retries()
    retries.refused(CARD, refused(errno.ENOSPC), 0.0)
    retries.refused(CARD, refused(errno.ENOSPC), 0.0)
    retries.succeeded(CARD)
    assert retries.failures == {}
    assert not retries.refused(CARD, refused(errno.ENOSPC), 0.0)


def test_a_card_that_is_gone_is_forgotten_and_others_are_not() -> None:
    retries = Retries()
    retries.refused(CARD, refused(errno.EIO), 0.0)
    retries.refused(OTHER, refused(errno.EIO), 0.0)
    retries.keep(lambda key: key == OTHER)
    assert list(retries.failures) == [OTHER]
