# SPDX-License-Identifier: Apache-2.0
"""An id is given away or removed, whichever comes first, and never both."""

from __future__ import annotations

import pytest

from nodeagent.agent.reservations import Custody
from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Holder, unnamed
from nodeagent.model.ids import ResourceName

LATER = 3600.0


def pods(*ids: str) -> dict[str, Holder]:
    """Somebody has each of them."""
    return {each: unnamed(ResourceName("example.com/a"), None) for each in ids}


def test_what_is_being_removed_is_refused_with_the_reason_and_nothing_of_the_request_is_marked() -> None:
    custody = Custody()
    assert custody.withdraw(["b"])
    with pytest.raises(Refused, match="b is being removed"):
        custody.give(pods("a", "b"), until=LATER)
    assert custody.settling.get() == frozenset()


def test_what_was_given_away_a_moment_ago_cannot_be_withdrawn_nor_what_goes_with_it() -> None:
    custody = Custody()
    custody.give(pods("b"), until=1.0)
    assert not custody.withdraw(["a", "b"])
    assert custody.withdrawn.get() == frozenset()
    custody.settle(1.0)
    assert custody.withdraw(["a", "b"])


def test_what_was_restored_can_be_given_away_again() -> None:
    custody = Custody()
    custody.withdraw(["a", "b"])
    custody.restore(["a"])
    custody.give(pods("a"), until=LATER)
    assert custody.settling.get() == frozenset({"a"})
    assert custody.withdrawn.get() == frozenset({"b"})


def test_the_last_time_of_an_id_counts_and_the_first_of_all_is_told() -> None:
    custody = Custody()
    assert custody.next_settled() is None
    custody.give(pods("a", "b"), until=1.0)
    custody.give(pods("b"), until=3.0)
    assert custody.next_settled() == 1.0
    custody.settle(0.9)
    assert custody.settling.get() == {"a", "b"}
    custody.settle(2.0)
    assert custody.settling.get() == {"b"}
    assert custody.next_settled() == 3.0


def test_what_has_settled_is_presumed_to_be_held_until_the_kubelet_has_named_who_had_it() -> None:
    custody = Custody()
    custody.give(pods("a"), until=1.0)
    custody.give(pods("b"), until=2.0)
    custody.settle(1.5)
    custody.settle(0.5)
    assert custody.presumed == pods("a")
    assert custody.settling.get() == {"b"}
    custody.named(0.9)
    assert custody.presumed == pods("a")
    custody.named(1.9)
    assert custody.presumed == {}
    assert custody.next_settled() == 2.0


def test_each_mark_wakes_who_waits_and_an_equal_one_does_not() -> None:
    wakes: list[None] = []
    custody = Custody(lambda: wakes.append(None))
    custody.give(pods("a"), until=1.0)
    custody.give(pods("a"), until=LATER)
    assert len(wakes) == 1
    custody.withdraw(["b"])
    custody.withdraw([])
    assert len(wakes) == 2
