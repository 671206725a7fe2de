# SPDX-License-Identifier: Apache-2.0
"""An id is given away or removed, whichever comes first, and never both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodeagent.agent.admission import Admission
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.model.allocation import Holder, PodList, Pods, Reservations, unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot

LATER = 3600.0
A = ResourceName("example.com/a")
NOBODY = PodList({}, {})
POD = Holder("ns", "one", A)


def pods(*ids: str) -> dict[str, Holder]:
    """Somebody has each of them."""
    return {each: unnamed(A, None) for each in ids}


def give(
    reservations: ReservationBook,
    holders: Mapping[str, Holder],
    now: float,
    until: float,
    admission: Admission | None = None,
) -> None:
    """An Allocate of one pod gives these away."""
    reservations.admit(admission or Admission("admission", {}), until)
    reservations.give(holders, now, until)


def test_what_is_being_removed_is_refused_with_the_reason_and_nothing_of_the_request_is_marked() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    assert reservations.withdraw(["b"])
    with pytest.raises(Refused, match="b is being removed"):
        reservations.give(pods("a", "b"), 0.0, LATER)
    assert snapshots.now.reservations.settling == frozenset()


def test_what_was_given_away_a_moment_ago_cannot_be_withdrawn_nor_what_goes_with_it() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    give(reservations, pods("b"), 0.0, 1.0)
    assert not reservations.withdraw(["a", "b"])
    assert snapshots.now.reservations.withdrawn == frozenset()
    reservations.settle(1.0)
    assert not reservations.withdraw(["a", "b"]), "the kubelet has not said that nobody has it"
    reservations.named(NOBODY, asked=1.0)
    assert reservations.withdraw(["a", "b"])


def test_what_comes_with_an_id_is_given_for_as_long_as_somebody_has_that() -> None:
    """The kubelet never names it; its file may be written only after the kubelet has named the id."""
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    given = unnamed(A, None, "admission 1")
    give(reservations, {"a": given, "b": replace(given, brought="a")}, 0.0, 1.0)
    reservations.settle(1.0)
    assert set(reservations.presumed) == {"a"}, "no resource lists what has no id of its own"
    for asked in (2.0, 3.0):
        reservations.named(PodList({"a": POD}, {"ns/one": frozenset({(A, "a")})}), asked)
        assert snapshots.now.reservations.given == {"b": replace(POD, brought="a")}
    assert not reservations.withdraw(["b"])
    reservations.named(NOBODY, asked=4.0)
    assert snapshots.now.reservations.given == {}


def test_an_admission_is_over_though_the_kubelet_s_file_has_nothing_of_what_came_with_an_id() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    given = unnamed(A, None, "admission 1")
    give(reservations, {"a": given, "b": replace(given, brought="a")}, 0.0, 1.0)
    reservations.settle(1.0, entered={(A, "a")})
    assert snapshots.now.reservations.settling == frozenset()


def test_what_was_restored_can_be_given_away_again() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    reservations.withdraw(["a", "b"])
    reservations.restore(["a"])
    give(reservations, pods("a"), 0.0, LATER)
    assert snapshots.now.reservations.settling == frozenset({"a"})
    assert snapshots.now.reservations.withdrawn == frozenset({"b"})


def test_the_group_stays_open_for_as_long_as_the_pod_was_given_something_last() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    one = Admission("one")
    give(reservations, pods("a", "b"), 0.0, 1.0, one)
    give(reservations, pods("b"), 0.5, 3.0, one)
    assert reservations.admissions.settles == 3.0
    reservations.settle(2.9)
    assert snapshots.now.reservations.settling == {"a", "b"}
    reservations.settle(3.0)
    reservations.settle(2.0)
    assert snapshots.now.reservations.settling == frozenset()


def test_what_was_given_is_held_by_somebody_until_the_kubelet_has_named_who_has_it() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    before = {"ns/one": frozenset({(A, "c")})}  # so it is not known to be the one that asks
    give(reservations, pods("a", "b"), 1.0, 2.0, Admission("admission", before, before, done=before))
    assert snapshots.now.reservations.given == pods("a", "b")
    assert reservations.presumed == {}, "it has not settled"
    reservations.named(PodList({"a": POD}, {"ns/one": frozenset({(A, "a")})}), asked=1.5)
    assert snapshots.now.reservations.given == pods("b"), "an answer of ours may still be on its way"
    assert snapshots.now.reservations.settling == {"a", "b"}
    reservations.settle(2.0)
    assert reservations.presumed == pods("b")
    reservations.named(NOBODY, asked=1.9)
    assert reservations.presumed == pods("b"), "asked before it had settled"
    reservations.named(NOBODY, asked=2.0, since=1.1)
    assert reservations.presumed == pods("b"), "this kubelet does not know what was given by the last"
    reservations.named(NOBODY, asked=2.0)
    assert snapshots.now.reservations == Reservations()


def test_an_allocate_of_another_pod_ends_the_admission_and_frees_what_nobody_got_after_all() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    first = reservations.admissions.asker({"ns/one": frozenset()})
    reservations.admit(first, LATER)
    reservations.give(pods("a"), 1.0, LATER)
    named: Pods = {"ns/one": frozenset({(A, "a")})}
    assert reservations.admissions.asker(named) is first
    assert reservations.admissions.asker(None) is not first, "without an answer nobody knows"
    second = reservations.admissions.asker({"ns/two": frozenset()})
    assert second is not first
    reservations.named(PodList({}, {"ns/two": frozenset()}), asked=2.0, asker=second)
    assert snapshots.now.reservations.given == {}
    reservations.admit(second, LATER)
    assert snapshots.now.reservations.settling == frozenset()


def test_what_a_plain_init_container_got_is_not_named_and_stays_the_pod_s_while_it_is_admitted() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    nothing: Pods = {"ns/one": frozenset()}
    reservations.admit(reservations.admissions.asker(nothing), LATER)
    reservations.give({"a": unnamed(A, None, "admission 1")}, 1.0, LATER)
    again = reservations.admissions.asker(nothing)
    reservations.named(PodList({}, nothing), asked=2.0, asker=again)
    reservations.admit(again, LATER)
    assert snapshots.now.reservations.given.keys() == {"a"}
    reservations.give({"b": again.holder(A, None)}, 2.0, LATER)
    shown: Pods = {"ns/one": frozenset({(A, "b")})}
    reservations.named(PodList({"b": POD}, shown), asked=3.0, asker=reservations.admissions.asker(shown))
    assert snapshots.now.reservations.given == {"a": POD}, "what the kubelet says of one says it of both"


def test_what_the_kubelet_s_file_lacks_is_held_until_one_that_is_well_after_it_lacks_it_too() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    nothing: Pods = {"ns/one": frozenset()}
    reservations.admit(reservations.admissions.asker(nothing), 1.5)
    reservations.give(pods("a"), 1.0, 1.5)
    reservations.named(PodList({}, nothing), 1.4)
    assert not reservations.given.overdue
    reservations.settle(1.5)
    empty = (0, 0, 0)
    before, late, later, last = (Checkpoint(empty, by=at, after=at - 0.01) for at in (0.0, 0.9, 1.0, 1.3))
    entered = late._replace(entries=(Entry("uid", A, "a", None),))
    files = (before, before, entered, late, later)
    seconds = []
    for asked, file in enumerate(files, start=2):
        reservations.named(PodList({}, nothing), asked, file=file)
        assert snapshots.now.reservations.given.keys() == {"a"}
        seconds.append(reservations.given.overdue)
    assert seconds == [{(A, "a")}] * 5, "another file is asked for: the entry may be that of the pod before"
    reservations.named(PodList({}, nothing), asked=7.0, file=last)
    assert snapshots.now.reservations.given == {}
    assert not reservations.given.overdue


def test_a_pod_that_has_come_since_ends_the_admission_whoever_asked_the_kubelet() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    reservations.admit(reservations.admissions.asker({"ns/one": frozenset()}), LATER)
    reservations.give(pods("a"), 1.0, LATER)
    shown: Pods = {"ns/one": frozenset({(A, "a")})}
    reservations.named(PodList({"a": POD}, shown), asked=2.0)
    assert snapshots.now.reservations.settling == {"a"}
    reservations.named(PodList({"a": POD}, {**shown, "ns/two": frozenset()}), asked=3.0)
    assert snapshots.now.reservations.settling == frozenset()


def test_each_mark_wakes_who_waits_and_an_equal_one_does_not() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    one = Admission("one")
    give(reservations, pods("a"), 0.0, 1.0, one)
    give(reservations, pods("a"), 0.0, LATER, one)
    assert snapshots.version == 1
    reservations.withdraw(["b"])
    reservations.withdraw([])
    assert snapshots.version == 2


def test_the_first_that_settles_is_announced_and_those_after_it_are_not() -> None:
    reservations = ReservationBook(Snapshots(Snapshot()), timeouts=Timeouts())
    one = Admission("one")
    give(reservations, pods("a"), 0.0, 1.0, one)
    give(reservations, pods("b"), 0.0, 2.0, one)
    assert reservations.began.version == 1
    reservations.settle(2.0)
    give(reservations, pods("c"), 0.0, 3.0)
    assert reservations.began.version == 2


def test_what_settles_at_once_is_presumed_to_be_held_at_the_next_look() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    give(reservations, pods("a"), 0.0, 5.0)
    reservations.settle(5.0)
    assert snapshots.now.reservations.settling == frozenset()
    assert reservations.presumed == pods("a")


def test_what_other_pods_were_given_is_beside_an_admission_until_they_have_let_go_of_it() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    one, two = Admission("one"), Admission("two")
    give(reservations, {"a": POD}, 0.0, LATER, one)
    give(reservations, pods("b"), 1.0, LATER, two)
    assert reservations.given.beside(two) == {"a": POD}
    assert reservations.given.beside(Admission("three")) == {"a": POD, **pods("b")}
    reservations.named(PodList({"a": POD}, {"ns/one": frozenset({(A, "a")})}), asked=2.0)
    assert reservations.given.beside(Admission("three")) == pods("b"), "the kubelet names who has the other"
    reservations.admissions.new_kubelet()
    assert reservations.given.beside(Admission("three")) == {}, "the last kubelet gave it"


def test_what_was_given_since_is_told_with_whoever_is_named_with_it() -> None:
    reservations = ReservationBook(Snapshots(Snapshot()), timeouts=Timeouts())
    give(reservations, pods("a"), 1.0, LATER, Admission("one"))
    give(reservations, pods("b"), 2.0, LATER, Admission("two"))
    assert reservations.given.since(1.0, {}) == pods("b")
    reservations.named(PodList({"b": POD}, {"ns/one": frozenset({(A, "b")})}), asked=3.0)
    assert reservations.given.since(1.0, {"b": POD}) == {"b": POD}
    assert reservations.given.since(2.0, {"b": POD}) == {}


def test_what_was_refused_is_marked_until_somebody_has_it_and_the_file_is_doubted() -> None:
    snapshots = Snapshots(Snapshot())
    reservations = ReservationBook(snapshots, timeouts=Timeouts())
    reservations.refuse(["a", "b"])
    assert snapshots.now.reservations.refused == {"a", "b"}
    assert reservations.doubted.version == 1
    reservations.named(PodList({"a": POD}, {"ns/one": frozenset({(A, "a")})}), asked=1.0)
    assert snapshots.now.reservations.refused == {"b"}
    give(reservations, pods("b"), 2.0, LATER)
    assert snapshots.now.reservations.refused == frozenset()
