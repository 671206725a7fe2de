# SPDX-License-Identifier: Apache-2.0
"""A saved host is the host: nothing is lost on the way out and back, and what is no saved host is refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.base.errors import ConfigError
from nodeagent.model import host_json
from nodeagent.model.host import Group, Hints, Host, Mdev, MdevType, PciFunction, Recovery

texts = st.none() | st.text("0123456789abcdef", min_size=1, max_size=6)
numbers = st.none() | st.integers(0, 3)
addresses = st.integers(0, 9).map(lambda number: f"0000:0{number}:00.0")
lists = st.lists(addresses, max_size=3, unique=True).map(tuple)
hosts = st.builds(
    Host,
    functions=st.lists(
        st.builds(
            partial(PciFunction),  # of a bare named tuple all fields would be drawn
            addresses,
            vendor=texts,
            driver=texts,
            group=numbers,
            numa_node=numbers,
            enable=numbers,
            vfs=lists,
            vfio=st.booleans(),
            ports=lists,
            inode=numbers,
            recovery=st.none() | st.sampled_from(Recovery),
            hints=st.none() | st.builds(partial(Hints), reset_methods=lists, aer_fatal=numbers),
            unreadable=texts,
            vgpu=st.just(True),
            vgpu_type=st.none() | st.just("1147"),
            vgpu_types=st.lists(st.tuples(addresses, addresses), max_size=2).map(tuple),
        ),
        unique_by=lambda function: function.address,
    ).map(lambda found: {function.address: function for function in found}),
    groups=st.lists(
        st.builds(Group, st.integers(0, 9), lists, texts, texts, st.booleans()),
        unique_by=lambda group: group.number,
    ).map(lambda found: {group.number: group for group in found}),
    mdevs=st.lists(
        st.builds(partial(Mdev), addresses, texts, texts, group=numbers, vendor=texts, cdev=st.booleans()),
        max_size=1,
    ).map(lambda found: {mdev.uuid: mdev for mdev in found}),
    mdev_parents=st.dictionaries(
        addresses,
        st.lists(st.builds(MdevType, addresses, texts, numbers), max_size=2).map(tuple),
        max_size=2,
    ),
    nodes=st.frozensets(addresses),
    numa_nodes=st.frozensets(st.integers(0, 3)),
    iommu=st.booleans(),
    vtd=st.booleans(),
    vfio_loaded=st.booleans(),
    release=texts,
)


@settings(deadline=None, max_examples=100)
@given(hosts)
def test_a_host_comes_back_as_it_was(host: Host) -> None:
    document = json.loads(json.dumps(host_json.dump(host)))
    assert host_json.load(document) == host


def test_what_says_nothing_is_left_out_but_a_zero_is_kept() -> None:
    host = Host(groups={0: Group(0)}, functions={"a": PciFunction("a", group=0, numa_node=0)})  # type: ignore[dict-item, arg-type]
    document = host_json.dump(host)
    assert document["groups"] == [{"number": 0}]
    assert document["functions"] == [{"address": "a", "group": 0, "numaNode": 0}]


@pytest.mark.parametrize(
    ("saved", "known"),
    [
        ({}, (False, None)),
        ({"vgpuType": "0"}, (True, None)),
        ({"vgpuType": "1147"}, (True, "1147")),
        ({"vgpu": True}, (True, None)),
    ],
)
def test_an_older_file_tells_a_vf_without_a_vgpu_type_by_a_zero(saved: Any, known: Any) -> None:
    document = host_json.dump(Host()) | {"functions": [{"address": "a", **saved}]}
    (function,) = host_json.load(document).functions.values()
    assert (function.vgpu, function.vgpu_type) == known


def test_a_newer_file_is_read_as_far_as_it_is_known() -> None:
    document = host_json.dump(Host()) | {"weather": "fine", "groups": [{"number": 1, "colour": "red"}]}
    assert list(host_json.load(document).groups) == [1]


def nested(depth: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "data",
    [
        {**host_json.HEADING, "nodes": nested(100_000)},
        {**host_json.HEADING, "mdevParents": {"a\nb\r\nc": 7}},
        {**host_json.HEADING, "mdevParents": {"a" * 1_000_000: 7}},
    ],
    ids=["deep", "lines", "long"],
)
def test_whatever_is_damaged_is_told_in_two_lines_that_a_person_can_read(data: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        host_json.load(data)
    assert len(caught.value.lines().splitlines()) == 2
    assert len(caught.value.lines()) < 1200


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "text",
        {},
        {"format": "nodeagent-host/v2"},
        {**host_json.HEADING, "apiVersion": "nodeagent/v2"},
        {**host_json.HEADING, "kind": "Status"},
        {**host_json.HEADING, "functions": [{}]},
        {**host_json.HEADING, "functions": ["x"]},
        {**host_json.HEADING, "functions": [{"address": "a", "recovery": "soon"}]},
        {**host_json.HEADING, "groups": 7},
        {**host_json.HEADING, "mdevParents": []},
        {**host_json.HEADING, "mdevParents": {"x": [{"id": "t", "available": "many"}]}},
        {**host_json.HEADING, "nodes": [7]},
        {**host_json.HEADING, "numaNodes": 3},
        {**host_json.HEADING, "release": ["6.12"]},
        {**host_json.HEADING, "groups": [{"number": "7"}]},
        {**host_json.HEADING, "groups": [{"number": 7, "members": "0000:01:00.0"}]},
        {**host_json.HEADING, "functions": [{"address": None}]},
        {**host_json.HEADING, "functions": [{"address": "0000:01:00.0", "enable": True}]},
        {**host_json.HEADING, "functions": [{"address": "0000:01:00.0", "driver": {}}]},
        {**host_json.HEADING, "functions": [{"address": "0000:01:00.0", "vgpuTypes": [["1"]]}]},
    ],
)
def test_what_is_no_saved_host_is_refused_with_a_hint(data: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        host_json.load(data)
    assert "nodeagent scan -o json" in caught.value.hint


def test_a_host_that_was_saved_by_a_former_version_is_read() -> None:
    modern = host_json.dump(Host())
    former = {"format": "nodeagent-host/v1"} | {
        key: value for key, value in modern.items() if key not in host_json.HEADING
    }
    assert host_json.load(former) == host_json.load(modern) == Host()
