# SPDX-License-Identifier: Apache-2.0
"""Queued Events are bounded in number, age and rate, and equal ones are counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent.cluster.events import BURST, EventQueue
from nodeagent.agent.cluster.node_events import DEVICE_REMOVED, NodeEvent
from nodeagent.base.timeouts import Timeouts


def event(number: int = 0) -> NodeEvent:
    return NodeEvent(DEVICE_REMOVED, f"device {number}")


def test_events_leave_in_their_order_and_the_same_is_counted() -> None:
    queue = EventQueue(Timeouts())
    for at, number in enumerate((1, 2, 1)):
        assert queue.add(event(number), 100.0 + at)
    first = queue.next(103.0)
    assert first is not None
    assert (first.event, first.times, first.first, first.last) == (event(1), 2, 100.0, 102.0)
    queue.remove(first)
    second = queue.next(103.0)
    assert second is not None
    assert second.event == event(2)
    queue.remove(second)
    assert queue.next(103.0) is None


def test_an_event_that_occurs_again_while_it_is_sent_stays() -> None:
    queue = EventQueue(Timeouts())
    queue.add(event(), 100.0)
    found = queue.next(100.0)
    assert found is not None
    queue.add(event(), 101.0)
    queue.remove(found)
    again = queue.next(101.0)
    assert again is not None
    assert (again.times, again.first) == (1, 101.0)


def test_an_event_is_not_sent_before_it_is_due() -> None:
    queue = EventQueue(Timeouts())
    queue.add(event(), 100.0, delay=20.0)
    assert (queue.next(119.0), queue.next_due) == (None, 120.0)
    assert queue.next(120.0) is not None


def test_what_is_old_is_dropped_and_counted() -> None:
    queue = EventQueue(Timeouts())
    queue.add(event(1), 100.0)
    queue.add(event(2), 100.0 + Timeouts().event_age)
    found = queue.next(101.0 + Timeouts().event_age)
    assert found is not None
    assert (found.event, queue.left_out) == (event(2), 1)


def test_after_a_burst_one_in_five_minutes_is_taken() -> None:
    queue = EventQueue(Timeouts())
    taken = [queue.add(event(number), 100.0) for number in range(BURST + 5)]
    assert taken == [True] * BURST + [False] * 5
    assert queue.left_out == 5
    assert not queue.add(event(), 99.0 + Timeouts().event_refill)
    assert queue.add(event(), 101.0 + Timeouts().event_refill)
    assert not queue.add(event(), 102.0 + Timeouts().event_refill)


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 400)), max_size=300))
def test_no_event_is_lost_without_being_counted(steps: list[tuple[int, float]]) -> None:
    queue, now, told = EventQueue(Timeouts()), 1000.0, 0
    for number, later in steps:
        now += later
        queue.add(event(number), now)
    waiting = 0
    while (found := queue.next(now)) is not None:
        told += found.times
        waiting += 1
        queue.remove(found)
    assert waiting <= BURST + Timeouts().event_age / Timeouts().event_refill + 1
    assert told + queue.left_out == len(steps)
