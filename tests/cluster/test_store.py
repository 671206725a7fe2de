# SPDX-License-Identifier: Apache-2.0
"""Lists and events, those that make no sense among them: what is kept then."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster.api import Expired
from nodeagent.cluster.watch import Store, without_managed_fields


def thing(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}} | more


def listed(*things: dict[str, Any], version: str = "5") -> Store:
    store = Store(without_managed_fields)
    store.replace({"metadata": {"resourceVersion": version}, "items": list(things)})
    return store


def test_events_advance_objects_and_version() -> None:
    store = listed(thing("a", "1"))
    store.apply({"type": "ADDED", "object": thing("b", "6")})
    store.apply({"type": "MODIFIED", "object": thing("b", "7", spec=1)})
    store.apply({"type": "DELETED", "object": thing("a", "8")})
    assert (store.objects, store.version) == ({"b": thing("b", "7", spec=1)}, "8")
    store.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "90"}}})
    assert store.version == "90"


def test_two_namespaces_may_have_an_object_of_one_name() -> None:
    store = listed()
    for namespace in ("x", "y"):
        metadata = {"name": "a", "namespace": namespace, "resourceVersion": "6"}
        store.apply({"type": "ADDED", "object": {"metadata": metadata}})
    assert list(store.objects or {}) == ["x/a", "y/a"]


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
    store = listed(thing("b", "1"))
    with pytest.raises(ClusterUnavailable):
        store.apply(event)
    assert (store.objects, store.version) == ({"b": thing("b", "1")}, "5")


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
    store = listed(thing("b", "1"))
    with pytest.raises(ClusterUnavailable):
        store.replace(answer)
    assert (store.objects, store.version) == ({"b": thing("b", "1")}, "5")
