# SPDX-License-Identifier: Apache-2.0
"""What is known of holders: the kubelet's answers over its lives, and its file as a hint that only adds."""

from __future__ import annotations

from nodeagent.agent.known import Known
from nodeagent.kubelet.checkpoint import Entry
from nodeagent.model.allocation import Holder, unnamed
from nodeagent.model.ids import ResourceName

A, B = ResourceName("example.com/a"), ResourceName("example.com/b")
POD, QOD = Holder("ns", "p", A), Holder("ns", "q", A)


def entry(device_id: str, uid: str = "u1", resource: ResourceName = A) -> Entry:
    return Entry(uid, resource, device_id, 1)


def hinted(uid: str = "u1", resource: ResourceName = A) -> Holder:
    return unnamed(resource, 1, f"uid {uid}")


def test_the_file_adds_whom_the_kubelet_does_not_name() -> None:
    assert Known().answered({}, {}, [entry("x")], doubtful=False) == {"x": hinted()}
    assert Known().answered({"x": POD}, {}, [entry("x")], doubtful=False) == {"x": POD}
    assert Known().silent({"y": POD}, [entry("x")]) == {"x": hinted(), "y": POD}
    assert Known().silent({}, [entry("12")]) == {}, "numbers are shares of somebody's device"


def test_another_device_of_a_pod_tells_the_name_of_an_entry() -> None:
    found = Known().answered({"x": POD}, {}, [entry("x"), entry("y", resource=B)], doubtful=False)
    assert found == {"x": POD, "y": Holder("ns", "p", B, 1)}


def test_who_was_named_and_is_named_no_more_has_let_go_whatever_the_file_says() -> None:
    known = Known()
    for doubtful in (False, True):
        assert known.answered({"x": POD}, {}, [entry("x")], doubtful=doubtful) == {"x": POD}
        assert known.answered({}, {"x": POD}, [entry("x")], doubtful=doubtful) == {}
        assert known.silent({}, [entry("x")]) == {}
    new = known.answered({}, {}, [entry("x", "u2")], doubtful=False)
    assert new == {"x": hinted("u2")}, "an entry of another pod"


def test_a_new_kubelet_that_names_nobody_yet_frees_nothing() -> None:
    known = Known()
    known.answered({"x": POD, "y": POD}, {}, [entry("x")], doubtful=False)
    known.new_kubelet()
    before = {"x": POD, "y": POD}
    assert known.answered({}, before, [entry("x")], doubtful=True) == before
    assert known.answered({"y": POD}, before, [entry("x")], doubtful=True) == before
    assert known.answered({}, before, [entry("x")], doubtful=True) == {"x": POD}
    grown = known.answered({}, {"x": POD}, [entry("x")], doubtful=False)
    assert grown == {"x": hinted()}, "it has the entry in its books, and does not say whose it is"


def test_a_holder_without_a_name_is_not_remembered() -> None:
    """It was presumed, or in the file: both are asked anew each time."""
    assert Known().answered({}, {"x": hinted()}, [], doubtful=True) == {}


def test_an_equal_holder_stays_the_same_object() -> None:
    before = {"x": Holder("ns", "p", A)}
    assert Known().answered({"x": POD}, before, [], doubtful=False)["x"] is before["x"]
