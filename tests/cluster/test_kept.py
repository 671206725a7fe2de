# SPDX-License-Identifier: Apache-2.0
"""Lists and events, those that make no sense among them: what is kept then."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster.kept import Kept, whole
from nodeagent.cluster.refusals import Expired


def thing(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}} | more


def listed(*things: dict[str, Any], version: str = "5") -> Kept:
    kept = Kept(whole)
    kept.replace({"metadata": {"resourceVersion": version}, "items": list(things)})
    return kept


def test_events_advance_objects_and_version() -> None:
    kept = listed(thing("a", "1"))
    kept.apply({"type": "ADDED", "object": thing("b", "6")})
    kept.apply({"type": "MODIFIED", "object": thing("b", "7", spec=1)})
    kept.apply({"type": "DELETED", "object": thing("a", "8")})
    assert (kept.objects, kept.version) == ({"b": thing("b", "7", spec=1)}, "8")
    kept.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "90"}}})
    assert kept.version == "90"


def test_two_namespaces_may_have_an_object_of_one_name() -> None:
    kept = listed()
    for namespace in ("x", "y"):
        metadata = {"name": "a", "namespace": namespace, "resourceVersion": "6"}
        kept.apply({"type": "ADDED", "object": {"metadata": metadata}})
    assert list(kept.objects or {}) == ["x/a", "y/a"]


def test_who_wrote_which_field_is_not_kept() -> None:
    given = {"metadata": {"name": "a", "resourceVersion": "6", "managedFields": [{}]}}
    assert listed(given).objects == {"a": thing("a", "6")}


def test_an_error_event_of_410_wants_a_new_list() -> None:
    with pytest.raises(Expired):
        listed().apply({"type": "ERROR", "object": {"code": 410, "message": "too old"}})


SENSELESS = [
    {},
    {"type": "ADDED"},
    {"type": "ADDED", "object": []},
    {"type": "ADDED", "object": {"metadata": None}},
    {"type": "ADDED", "object": {"metadata": {"resourceVersion": 6, "name": "a"}}},
    {"type": "ADDED", "object": {"metadata": {"resourceVersion": "6"}}},
    {"type": "ADDED", "object": {"metadata": {"resourceVersion": "6", "name": ""}}},
    {"type": "ADDED", "object": {"metadata": {"resourceVersion": "6", "name": "a", "namespace": 1}}},
    {"type": "MAYBE", "object": thing("a", "6")},
    {"type": "ERROR", "object": {"code": "410"}},
]


@pytest.mark.parametrize("event", SENSELESS)
def test_an_event_that_makes_no_sense_changes_nothing(event: dict[str, Any]) -> None:
    kept = listed(thing("b", "1"))
    with pytest.raises(ClusterUnavailable):
        kept.apply(event)
    assert (kept.objects, kept.version) == ({"b": thing("b", "1")}, "5")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"items": {}, "metadata": {"resourceVersion": "6"}},
        {"items": [1], "metadata": {"resourceVersion": "6"}},
        {"items": []},
        {"items": [{}], "metadata": {"resourceVersion": "6"}},
    ],
)
def test_a_list_that_makes_no_sense_changes_nothing(answer: dict[str, Any]) -> None:
    kept = listed(thing("b", "1"))
    with pytest.raises(ClusterUnavailable):
        kept.replace(answer)
    assert (kept.objects, kept.version) == ({"b": thing("b", "1")}, "5")
