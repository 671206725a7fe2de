# SPDX-License-Identifier: Apache-2.0
"""What is known of holders: the kubelet's answers over its lives, and its file as a hint that only adds."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.agent.known import Known
from nodeagent.kubelet.alloc_resp import Answer
from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.model.allocation import Allocations, Holder, unnamed
from nodeagent.model.ids import GroupNumber, ResourceName

A, B = ResourceName("example.com/a"), ResourceName("example.com/b")
POD, QOD = Holder("ns", "p", A), Holder("ns", "q", A)


def entry(device_id: str, uid: str = "u1", resource: ResourceName = A) -> Entry:
    return Entry(uid, resource, device_id, 1)


def hinted(uid: str = "u1", resource: ResourceName = A) -> Holder:
    return unnamed(resource, 1, f"uid {uid}")


def checkpoint(*entries: Entry, written: int = 1) -> Checkpoint:
    return Checkpoint((written, 0, 0), entries)


def test_the_file_adds_whom_the_kubelet_does_not_name() -> None:
    assert Known().answered({}, {}, checkpoint(entry("x")), doubtful=False) == {"x": hinted()}
    assert Known().answered({"x": POD}, {}, checkpoint(entry("x")), doubtful=False) == {"x": POD}
    assert Known().silent({"y": POD}, checkpoint(entry("x"))) == {"x": hinted(), "y": POD}


def test_another_device_of_a_pod_tells_the_name_of_an_entry() -> None:
    found = Known().answered({"x": POD}, {}, checkpoint(entry("x"), entry("y", resource=B)), doubtful=False)
    assert found == {"x": POD, "y": Holder("ns", "p", B, 1)}


def test_who_was_named_and_is_named_no_more_has_let_go_whatever_the_file_says() -> None:
    for doubtful in (False, True):
        known = Known()
        assert known.answered({"x": POD}, {}, checkpoint(entry("x")), doubtful=doubtful) == {"x": POD}
        assert known.answered({}, {"x": POD}, checkpoint(entry("x")), doubtful=doubtful) == {}
        assert known.silent({}, checkpoint(entry("x"))) == {}
        new = checkpoint(entry("x", "u2"))
        assert known.silent({}, new) == {"x": hinted("u2")}, "an entry of another pod"


def test_an_entry_without_a_name_counts_if_the_file_was_written_after_an_answer_without_it() -> None:
    """An answer frees what is over, and the next writing leaves it out."""
    known = Known()
    assert known.answered({}, {}, checkpoint(), doubtful=False) == {}
    late = checkpoint(entry("x"), written=2)
    assert known.answered({}, {}, late, doubtful=False) == {}, "its pod may have ended before we asked"
    assert known.hinted
    assert known.answered({}, {}, late, doubtful=True) == {"x": hinted()}
    again = checkpoint(entry("x"), written=3)
    assert known.answered({}, {}, again, doubtful=False) == {"x": hinted()}
    assert known.answered({}, {}, checkpoint(written=4), doubtful=False) == {}
    assert not known.hinted


def test_until_a_kubelet_has_written_after_an_answer_every_entry_counts() -> None:
    known = Known()
    for _ in range(2):
        assert known.answered({}, {}, checkpoint(entry("x")), doubtful=False) == {"x": hinted()}
    known.new_kubelet()
    assert known.answered({}, {}, checkpoint(entry("x")), doubtful=False) == {"x": hinted()}
    assert known.answered({}, {}, checkpoint(written=2), doubtful=False) == {}


def test_a_file_that_cannot_be_read_at_the_first_answer_is_none_that_was_written_after_it() -> None:
    known = Known()
    assert known.answered({}, {}, Checkpoint(), doubtful=False) == {}
    for _ in range(2):
        assert known.answered({}, {}, checkpoint(entry("x")), doubtful=False) == {"x": hinted()}
    assert known.answered({}, {}, checkpoint(written=2), doubtful=False) == {}


def test_a_new_kubelet_that_names_nobody_yet_frees_nothing() -> None:
    known = Known()
    known.answered({"x": POD, "y": POD}, {}, checkpoint(entry("x")), doubtful=False)
    known.new_kubelet()
    before = {"x": POD, "y": POD}
    assert known.answered({}, before, checkpoint(entry("x")), doubtful=True) == before
    assert known.answered({"y": POD}, before, checkpoint(entry("x")), doubtful=True) == before
    assert known.answered({}, before, checkpoint(entry("x")), doubtful=True) == {"x": POD}
    grown = known.answered({}, {"x": POD}, checkpoint(entry("x")), doubtful=False)
    assert grown == {"x": hinted()}, "it has the entry in its checkpoint, and does not say whose it is"


def test_what_a_young_kubelet_has_struck_from_its_checkpoint_is_free() -> None:
    known = Known()
    before = {"x": POD}
    assert known.answered({}, before, checkpoint(entry("x")), doubtful=True) == before
    assert known.answered({}, before, checkpoint(written=2), doubtful=True) == {}


def test_a_checkpoint_that_is_lost_frees_nothing() -> None:
    known = Known()
    for written in (1, 2):
        assert known.answered({}, {"x": POD}, checkpoint(written=written), doubtful=True) == {"x": POD}


def test_what_came_with_an_id_is_its_holder_s_for_as_long_as_the_id_is() -> None:
    known = Known()
    answer = Answer(("x", "companion"), frozenset({GroupNumber(7)}))
    file = checkpoint(entry("x")._replace(answer=answer), entry("y")._replace(answer=answer))
    found = known.with_answers(Allocations({"x": POD}), file)
    assert found.brought == {"companion": replace(POD, brought="x")}
    assert found.groups == {"x": {7}}
    assert found.holder("companion") == found.brought["companion"]
    again = known.with_answers(Allocations({"x": replace(POD)}), file)
    assert again.brought is found.brought
    assert again.groups is found.groups
    assert known.with_answers(Allocations({}), file).brought == {}


def test_what_somebody_has_by_an_id_of_its_own_came_with_nobody_else_s() -> None:
    file = checkpoint(entry("x")._replace(answer=Answer(("x", "y"))))
    assert Known().with_answers(Allocations({"x": POD, "y": QOD}), file).brought == {}
    other = Allocations({"x": Holder("ns", "p", B)})
    assert Known().with_answers(other, file).brought == {}, "the file's entry is of another resource"


def test_whoever_has_an_id_by_which_another_resource_has_somebody_is_known_beside_that() -> None:
    known, other = Known(), Holder("ns", "other", B)
    node = entry("x")._replace(answer=Answer(nodes=("/dev/x",)))
    file = checkpoint(node, entry("x", "u2", B)._replace(answer=Answer(cdi=("b.com/x=0",))))
    holders = known.answered({"x": other}, {}, file, doubtful=False, namesakes={A: {"x": POD}})
    assert not known.hinted
    found = known.with_answers(Allocations(holders), file)
    assert (found.holder_of(A, "x"), found.holder_of(B, "x")) == (POD, other)
    assert (found.answer(A, "x"), found.answer(B, "x")) == (("/dev/x",), ("b.com/x=0",))
    assert known.with_answers(Allocations(holders), file).namesakes is found.namesakes
    gone = known.with_answers(Allocations(known.answered({"x": other}, holders, file, doubtful=True)), file)
    assert (gone.namesakes, gone.nodes) == ({}, {}), "it was named, and is named no more"


def test_the_file_adds_whom_another_holder_of_such_an_id_hides() -> None:
    other, file = Holder("ns", "other", B), checkpoint(entry("x"))
    for known in (Known(), Known()):
        holders = known.answered({"x": other}, {}, file, doubtful=False)
        assert known.with_answers(Allocations(holders), file).namesakes == {A: {"x": hinted()}}
    presumed = Allocations({"x": POD})
    assert known.with_answers(presumed, file).namesakes == {B: {"x": other}}, "which the kubelet names"
    known.new_kubelet()
    silent = known.silent({"x": other}, file)
    assert known.with_answers(Allocations(silent), file).namesakes == {A: {"x": hinted()}}


def test_a_holder_without_a_name_is_not_remembered() -> None:
    """It was presumed, or in the file: both are asked anew each time."""
    assert Known().answered({}, {"x": hinted()}, checkpoint(), doubtful=True) == {}


def test_an_equal_holder_stays_the_same_object() -> None:
    before = {"x": Holder("ns", "p", A)}
    assert Known().answered({"x": POD}, before, checkpoint(), doubtful=False)["x"] is before["x"]


def test_what_is_named_and_in_no_file_yet_may_be_anything() -> None:
    """A number is a group, or a share of another plugin, of which the file says nothing."""
    held = Allocations({"x": POD, "y": POD, "7": POD, "z": hinted()})
    found = Known().with_answers(held, checkpoint(entry("x")))
    assert list(found.unwritten()) == [(A, "y")]
    assert not list(Known().with_answers(held, Checkpoint()).unwritten()), "no file can be read"
    assert not list(Known().with_answers(held, checkpoint(entry("x"), entry("y"))).unwritten())


def answered_with(known: Known, holders: dict[str, Holder], file: Checkpoint) -> Allocations:
    """What is known, with answers, after the kubelet has named these."""
    found = known.answered(holders, {}, file, doubtful=False)
    return known.with_answers(Allocations(found), file)


def test_what_is_left_in_the_file_of_a_pod_that_has_ended_is_no_answer_of_the_next_one() -> None:
    node = Answer(nodes=("/dev/ttyX",))
    old = checkpoint(entry("x")._replace(answer=node))
    for unnamed_between in (True, False):
        known = Known()
        assert answered_with(known, {"x": POD}, old).nodes == {A: {"x": ("/dev/ttyX",)}}
        if unnamed_between:
            answered_with(known, {}, old)
        late = answered_with(known, {"x": QOD}, old)
        assert late.nodes == {}
        assert list(late.unwritten()) == [(A, "x")]
        new = checkpoint(entry("x", "u2")._replace(answer=node), written=2)
        assert answered_with(known, {"x": QOD}, new).nodes == {A: {"x": ("/dev/ttyX",)}}


def test_a_static_pod_that_has_its_device_again_is_in_a_file_that_was_written_since() -> None:
    """It has the uid of before."""
    known, old = Known(), checkpoint(entry("x")._replace(answer=Answer(nodes=("/dev/ttyX",))))
    answered_with(known, {"x": POD}, old)
    answered_with(known, {}, old)
    assert list(answered_with(known, {"x": POD}, old).unwritten()) == [(A, "x")]
    again = old._replace(written=(2, 0, 0))
    assert list(answered_with(known, {"x": POD}, again).unwritten()) == []


def test_who_has_the_same_id_of_another_resource_makes_no_answer_old() -> None:
    known, other = Known(), Holder("ns", "z", B)
    file = checkpoint(entry("x")._replace(answer=Answer(nodes=("/dev/ttyX",))))
    answered_with(known, {"x": POD}, file)
    for holders, namesakes in (({"x": other}, {A: {"x": POD}}), ({"x": POD}, {})):
        found = known.answered(holders, {}, file, doubtful=False, namesakes=namesakes)
        after = known.with_answers(Allocations(found), file)
        assert after.nodes == {A: {"x": ("/dev/ttyX",)}}
        assert list(after.unwritten()) == [(B, "x")] * (holders["x"] is other)
