# SPDX-License-Identifier: Apache-2.0
"""What waits to be told is bounded in number, age and rate, and the same is one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent.cluster import reasons
from nodeagent.agent.cluster.outbox import BURST, Outbox
from nodeagent.agent.cluster.reasons import Notice
from nodeagent.base.timeouts import Timeouts


def notice(number: int = 0) -> Notice:
    return Notice(reasons.DEVICE_GONE, f"device {number}")


def test_letters_leave_in_their_order_and_the_same_is_counted() -> None:
    box = Outbox(Timeouts())
    for at, number in enumerate((1, 2, 1)):
        assert box.add(notice(number), 100.0 + at)
    first = box.due(103.0)
    assert first is not None
    assert (first.notice, first.often, first.first, first.last) == (notice(1), 2, 100.0, 102.0)
    box.sent(first)
    second = box.due(103.0)
    assert second is not None
    assert second.notice == notice(2)
    box.sent(second)
    assert box.due(103.0) is None


def test_what_happens_while_a_letter_is_on_its_way_waits_on() -> None:
    box = Outbox(Timeouts())
    box.add(notice(), 100.0)
    letter = box.due(100.0)
    assert letter is not None
    box.add(notice(), 101.0)
    box.sent(letter)
    again = box.due(101.0)
    assert again is not None
    assert (again.often, again.first) == (1, 101.0)


def test_a_letter_is_not_told_before_it_is_due() -> None:
    box = Outbox(Timeouts())
    box.add(notice(), 100.0, delay=20.0)
    assert (box.due(119.0), box.next) == (None, 120.0)
    assert box.due(120.0) is not None


def test_what_is_old_is_dropped_and_counted() -> None:
    box = Outbox(Timeouts())
    box.add(notice(1), 100.0)
    box.add(notice(2), 100.0 + Timeouts().event_age)
    letter = box.due(101.0 + Timeouts().event_age)
    assert letter is not None
    assert (letter.notice, box.left_out) == (notice(2), 1)


def test_after_a_burst_one_in_five_minutes_is_taken() -> None:
    box = Outbox(Timeouts())
    taken = [box.add(notice(number), 100.0) for number in range(BURST + 5)]
    assert taken == [True] * BURST + [False] * 5
    assert box.left_out == 5
    assert not box.add(notice(), 99.0 + Timeouts().event_refill)
    assert box.add(notice(), 101.0 + Timeouts().event_refill)
    assert not box.add(notice(), 102.0 + Timeouts().event_refill)


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 400)), max_size=300))
def test_no_letter_is_lost_without_being_counted(steps: list[tuple[int, float]]) -> None:
    box, now, told = Outbox(Timeouts()), 1000.0, 0
    for number, later in steps:
        now += later
        box.add(notice(number), now)
    waiting = 0
    while (letter := box.due(now)) is not None:
        told += letter.often
        waiting += 1
        box.sent(letter)
    assert waiting <= BURST + Timeouts().event_age / Timeouts().event_refill + 1
    assert told + box.left_out == len(steps)
