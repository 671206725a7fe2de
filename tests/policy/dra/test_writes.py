# SPDX-License-Identifier: Apache-2.0
"""Requests for ResourceSlices: a small stand-in of the API server carries them out."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.policy.dra.slices import COUNTERS, TAINTS, Content
from nodeagent.policy.dra.writes import (
    Create,
    Delete,
    Owner,
    Update,
    Write,
    dropped_fields,
    plan_writes,
    pool_name,
)
from tests.policy.dra.samples import DRIVER, alone, build
from tests.policy.samples import function, host

OWNER = Owner(DRIVER, "node-1", "uid-1")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Server:
    """Stores slices as the API server does: it adds versions, and times to taints."""

    def __init__(self, dropped: Sequence[str] = ()) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.dropped = dropped

    def apply(self, write: Write) -> None:
        """Carry out one request; a wrong one fails the test."""
        if isinstance(write, Delete):
            assert self.slices.pop(write.name)["metadata"]["resourceVersion"] == write.resource_version
            return
        stored = copy.deepcopy(write.slice)
        name = stored["metadata"]["name"]
        if isinstance(write, Update):
            before = self.slices[name]
            assert before["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
            for field in ("driver", "nodeName"):
                assert before["spec"][field] == stored["spec"][field]
            assert before["spec"]["pool"]["name"] == stored["spec"]["pool"]["name"]
        else:
            assert isinstance(write, Create)
            assert name not in self.slices
            assert "resourceVersion" not in stored["metadata"]
        self.version += 1
        stored["metadata"] |= {"resourceVersion": str(self.version), "uid": f"uid-{self.version}"}
        for device in stored["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint["timeAdded"] = f"2026-11-28T21:00:{self.version % 60:02}Z"
            for field in self.dropped:
                device.pop({TAINTS: "taints", COUNTERS: "consumesCounters"}[field], None)
        if COUNTERS in self.dropped:
            stored["spec"].pop("sharedCounters", None)
        self.slices[name] = stored

    def write(
        self, contents: Sequence[Content], owner: Owner = OWNER, generation: int = 0
    ) -> tuple[Write, ...]:
        """Carry out the planned requests, and check the result."""
        writes = plan_writes([*self.slices.values()], contents, owner, generation)
        before = self.generation
        for write in writes:
            self.apply(write)
            self.check_generations()
        self.check(contents, owner)
        assert self.generation >= (before if before else generation)
        assert plan_writes([*self.slices.values()], contents, owner, generation) == ()
        return writes

    @property
    def generation(self) -> int:
        """The highest generation; 0 without slices."""
        return max((each["spec"]["pool"]["generation"] for each in self.slices.values()), default=0)

    def check_generations(self) -> None:
        """A complete pool of the highest generation has one count."""
        newest = [
            each["spec"]["pool"]
            for each in self.slices.values()
            if each["spec"]["pool"]["generation"] == self.generation
        ]
        counts = {pool["resourceSliceCount"] for pool in newest}
        assert not counts or len(newest) <= max(counts)

    def check(self, contents: Sequence[Content], owner: Owner) -> None:
        """The stored slices are the desired ones, in the order of their names."""
        stored = [self.slices[name] for name in sorted(self.slices)]
        pools = {tuple(sorted(each["spec"]["pool"].items())) for each in stored}
        assert len(pools) == 1
        assert stored[0]["spec"]["pool"]["resourceSliceCount"] == len(stored)
        assert stored[0]["spec"]["pool"]["name"] == pool_name(owner.driver, owner.node)
        for each in stored:
            (reference,) = each["metadata"]["ownerReferences"]
            assert (reference["kind"], reference["uid"]) == ("Node", owner.node_uid)
        expected = {"driver", "nodeName", "pool"}
        assert all(each["spec"].keys() - {"devices", "sharedCounters"} == expected for each in stored)
        if not self.dropped:
            assert [_content(each) for each in stored] == [dict(each) for each in contents]


def _content(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a stored slice, without times."""
    found = copy.deepcopy(
        {key: stored["spec"][key] for key in ("devices", "sharedCounters") if key in stored["spec"]}
    )
    for device in found.get("devices", ()):
        for taint in device.get("taints", ()):
            taint.pop("timeAdded")
    return found


def content(*names: str, tainted: str = "") -> Content:
    """A slice with these devices."""
    taints = {"taints": [{"key": f"{DRIVER}/unusable", "value": "x", "effect": "NoSchedule"}]}
    return {"devices": [{"name": each} | (taints if each == tainted else {}) for each in names]}


def generations(server: Server) -> list[int]:
    """The generations of all slices."""
    return [each["spec"]["pool"]["generation"] for each in server.slices.values()]


# Case 9: sizes and generations


@pytest.mark.parametrize(("count", "slices"), [(1, 1), (64, 1), (65, 2), (129, 3), (1000, 16)])
def test_one_taint_is_one_update_with_the_same_generation(count: int, slices: int) -> None:
    devices = alone(count)
    server = Server()
    assert [type(each) for each in server.write(build(host(*devices)))] == [Create] * slices
    assert all(len(each["spec"]["devices"]) <= 64 for each in server.slices.values())
    last = devices[-1]
    devices[-1] = function(last.id, last.group, driver="e1000e")
    (update,) = server.write(build(host(*devices)))
    assert isinstance(update, Update)
    assert generations(server) == [1] * slices


def test_another_number_of_slices_is_the_next_generation_in_all() -> None:
    server = Server()
    server.write([content("a"), content("b")])
    assert [type(each) for each in server.write([content("a"), content("b"), content("c")])] == [
        Update,
        Update,
        Create,
    ]
    assert generations(server) == [2, 2, 2]
    assert [type(each) for each in server.write([content("a")])] == [Delete, Delete, Update]
    assert generations(server) == [3]


def test_two_changed_slices_are_the_next_generation_in_all() -> None:
    server = Server()
    server.write([content("a"), content("b"), content("c")])
    assert len(server.write([content("x"), content("y"), content("c")])) == 3
    assert generations(server) == [2, 2, 2]


def test_nothing_is_written_for_the_times_that_the_server_adds() -> None:
    server = Server()
    server.write([content("a", tainted="a")])
    assert server.write([content("a", tainted="a")]) == ()


# Repairs


def test_all_deleted_slices_are_created_with_the_last_generation() -> None:
    server = Server()
    server.write([content("a"), content("b")])
    server.write([content("x"), content("y")])
    server.slices.clear()
    server.write([content("x"), content("y")], generation=2)
    assert generations(server) == [2, 2]


def test_one_deleted_slice_is_created_again_alone() -> None:
    server = Server()
    server.write([content("a"), content("b"), content("c")])
    server.slices.pop(sorted(server.slices)[1])
    (create,) = server.write([content("a"), content("b"), content("c")])
    assert isinstance(create, Create)
    assert generations(server) == [1, 1, 1]


def test_a_new_node_uid_is_written_to_all_slices() -> None:
    server = Server()
    server.write([content("a"), content("b")])
    server.write([content("a"), content("b")], OWNER._replace(node_uid="uid-2"))


def test_a_slice_of_another_pool_is_deleted() -> None:
    server = Server()
    server.write([content("a")])
    stray = copy.deepcopy(next(iter(server.slices.values())))
    stray["metadata"]["name"] = "other"
    stray["spec"]["pool"]["name"] = "node-1"
    server.slices["other"] = stray
    (delete,) = server.write([content("a")])
    assert isinstance(delete, Delete)


def test_a_slice_with_a_wrong_pool_under_our_name_is_replaced() -> None:
    server = Server()
    server.write([content("a")])
    next(iter(server.slices.values()))["spec"]["pool"]["name"] = "node-1"
    assert [type(each) for each in server.write([content("a")])] == [Delete, Create]


# Properties

device_slices = st.lists(st.sampled_from("abcd"), unique=True).flatmap(
    lambda names: st.builds(content, *map(st.just, names), tainted=st.sampled_from(["", *names]))
)
counter_slices = st.sampled_from(["1", "2"]).map(
    lambda value: {"sharedCounters": [{"name": "groups-0", "counters": {"a": {"value": value}}}]}
)
contents = st.lists(st.one_of(device_slices, counter_slices), min_size=1, max_size=4)


def _edit(stored: dict[str, Any], field: str) -> None:
    """Change a stored slice as another client of the API could."""
    spec = stored["spec"]
    edits: dict[str, tuple[dict[str, Any], str, Any]] = {
        "generation": (spec["pool"], "generation", 9),
        "lower": (spec["pool"], "generation", 0),
        "count": (spec["pool"], "resourceSliceCount", 7),
        "devices": (spec, "devices", [{"name": "foreign"}]),
        "owner": (stored["metadata"], "ownerReferences", []),
        "all": (spec, "allNodes", True),
    }
    target, key, value = edits[field]
    target[key] = value


_events = st.one_of(
    contents,
    st.tuples(
        st.sampled_from(["delete", "generation", "lower", "count", "devices", "owner", "all"]),
        st.integers(0, 3),
    ),
    st.just("wipe"),
    st.just("node"),
)


@given(st.lists(_events, max_size=8))
def test_any_sequence_of_changes_and_edits_ends_in_the_desired_pool(events: list[Any]) -> None:
    server, wanted, owner = Server(), [content("a")], OWNER
    server.write(wanted)
    for event in events:
        seen = server.generation
        if isinstance(event, list):
            wanted = event
        elif event == "wipe":
            server.slices.clear()
        elif event == "node":
            owner = owner._replace(node_uid=f"{owner.node_uid}x")
        elif event[1] < len(server.slices):
            name = sorted(server.slices)[event[1]]
            if event[0] == "delete":
                del server.slices[name]
            else:
                _edit(server.slices[name], event[0])
        server.write(wanted, owner, seen)


@given(contents, contents)
def test_a_change_in_place_is_one_request(before: list[Content], after: list[Content]) -> None:
    server = Server()
    server.write(before)
    writes = server.write(after)
    differing = sum(one != two for one, two in zip(before, after, strict=False))
    if len(before) == len(after) and differing <= 1:
        assert len(writes) == differing
        assert server.generation == 1
    else:
        assert server.generation == 2


# Names (case 13)


@pytest.mark.parametrize(
    "node", ["n", "node.example.com", "a." * 126 + "a", "a" * 63 + "." + "b-" * 94 + "b"]
)
@pytest.mark.parametrize("driver", [DRIVER, ".".join(["d" * 20] * 3)])
def test_names_are_valid_for_any_node_name(node: str, driver: str) -> None:
    server, owner = Server(), Owner(driver, node, "uid")
    server.write([content("a"), content("b")], owner)
    assert len(pool_name(driver, node)) <= 253
    names = [*server.slices, *pool_name(driver, node).split("/")]
    assert all(SUBDOMAIN.fullmatch(name) and len(name) <= 253 for name in names)


def test_nodes_with_long_or_similar_names_never_share_a_name() -> None:
    long = "a." * 125
    nodes = [f"{long}aa", f"{long}ab", f"{long}a", "a.b", "a-b", "ab"]
    assert len({pool_name(DRIVER, node) for node in nodes}) == len(nodes)
    names: set[str] = set()
    for driver in ("a.b", "a"):
        for node in (*nodes, "b-a.b"):
            (create,) = plan_writes([], [content("a")], Owner(driver, node, "uid"))
            assert isinstance(create, Create)
            names.add(create.slice["metadata"]["name"])
    assert len(names) == 2 * (len(nodes) + 1)


def test_a_pool_never_has_the_name_of_the_node() -> None:
    assert pool_name(DRIVER, "node-1") == f"{DRIVER}/node-1"


# Fields behind feature gates


@pytest.mark.parametrize("dropped", [(), (TAINTS,), (COUNTERS,), (TAINTS, COUNTERS)])
def test_dropped_fields_are_found(dropped: tuple[str, ...]) -> None:
    server = Server(dropped)
    device = {
        **content("a", tainted="a")["devices"][0],
        "consumesCounters": [{"counterSet": "s", "counters": {}}],
    }
    (create,) = plan_writes([], [{"devices": [device]}], OWNER)
    server.apply(create)
    assert isinstance(create, Create)
    (stored,) = server.slices.values()
    assert dropped_fields(create.slice, stored) == set(dropped)
    server = Server(dropped)
    (create,) = plan_writes([], [{"sharedCounters": [{"name": "s", "counters": {}}]}], OWNER)
    server.apply(create)
    assert isinstance(create, Create)
    (stored,) = server.slices.values()
    assert dropped_fields(create.slice, stored) == {COUNTERS} & set(dropped)
