# SPDX-License-Identifier: Apache-2.0
"""An id is given away or removed, whichever comes first, and never both."""

from __future__ import annotations

import pytest

from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Holder, unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot

LATER = 3600.0


def pods(*ids: str) -> dict[str, Holder]:
    """Somebody has each of them."""
    return {each: unnamed(ResourceName("example.com/a"), None) for each in ids}


def test_what_is_being_removed_is_refused_with_the_reason_and_nothing_of_the_request_is_marked() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    assert reservations.withdraw(["b"])
    with pytest.raises(Refused, match="b is being removed"):
        reservations.give(pods("a", "b"), until=LATER)
    assert snapshots.now.reservations.settling == frozenset()


def test_what_was_given_away_a_moment_ago_cannot_be_withdrawn_nor_what_goes_with_it() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    reservations.give(pods("b"), until=1.0)
    assert not reservations.withdraw(["a", "b"])
    assert snapshots.now.reservations.withdrawn == frozenset()
    reservations.settle(1.0)
    assert reservations.withdraw(["a", "b"])


def test_what_was_restored_can_be_given_away_again() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    reservations.withdraw(["a", "b"])
    reservations.restore(["a"])
    reservations.give(pods("a"), until=LATER)
    assert snapshots.now.reservations.settling == frozenset({"a"})
    assert snapshots.now.reservations.withdrawn == frozenset({"b"})


def test_the_last_time_of_an_id_counts_and_the_first_of_all_is_told() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    assert reservations.next_settled() is None
    reservations.give(pods("a", "b"), until=1.0)
    reservations.give(pods("b"), until=3.0)
    assert reservations.next_settled() == 1.0
    reservations.settle(0.9)
    assert snapshots.now.reservations.settling == {"a", "b"}
    reservations.settle(2.0)
    assert snapshots.now.reservations.settling == {"b"}
    assert reservations.next_settled() == 3.0


def test_what_has_settled_is_presumed_to_be_held_until_the_kubelet_has_named_who_had_it() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    reservations.give(pods("a"), until=1.0)
    reservations.give(pods("b"), until=2.0)
    reservations.settle(1.5)
    reservations.settle(0.5)
    assert reservations.presumed == pods("a")
    assert snapshots.now.reservations.settling == {"b"}
    reservations.named(0.9)
    assert reservations.presumed == pods("a")
    reservations.named(1.9)
    assert reservations.presumed == {}
    assert reservations.next_settled() == 2.0


def test_each_mark_wakes_who_waits_and_an_equal_one_does_not() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    reservations.give(pods("a"), until=1.0)
    reservations.give(pods("a"), until=LATER)
    assert snapshots.version == 1
    reservations.withdraw(["b"])
    reservations.withdraw([])
    assert snapshots.version == 2


def test_the_first_that_settles_is_announced_and_those_after_it_are_not() -> None:
    reservations = ReservationBook(Snapshots(Snapshot()))
    reservations.give(pods("a"), until=1.0)
    reservations.give(pods("b"), until=2.0)
    assert reservations.began.version == 1
    reservations.settle(2.0)
    reservations.give(pods("c"), until=3.0)
    assert reservations.began.version == 2


def test_what_settles_at_once_is_presumed_to_be_held_at_the_next_look() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots)
    reservations.settle(5.0)
    reservations.give(pods("a"), until=5.0)
    assert snapshots.now.reservations.settling == frozenset()
    assert reservations.presumed == pods("a")
