# SPDX-License-Identifier: Apache-2.0
"""Preferences: the cases of NVIDIA's plugin, groups kept together, and what holds for every request."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import Reservations
from nodeagent.model.host import PciFunction
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PciRule, PciSelector
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.prefer import NOWHERE, GroupUse, Place, choose, find_places
from tests.policy.samples import GPU, WISH, function, host, reserved, snapshot

SAME, FREE, RELEASED, OTHER = GroupUse.SAME_POD, GroupUse.FREE, GroupUse.RELEASED, GroupUse.OTHER_POD


def place(group: int | None = None, numa: int | None = None, root: str = "", **other: Any) -> Place:
    """A place in a group."""
    return Place(None if group is None else GroupNumber(group), numa, root, **other)


FOUR = {f"g{number}": place(number, number // 2) for number in range(4)}


@pytest.mark.parametrize(
    ("must", "size", "chosen"),
    [
        (["g2"], 2, ("g2", "g3")),
        (["g0", "g2"], 3, ("g0", "g2", "g1")),
        (["g3", "g1"], 2, ("g3", "g1")),
        ([], 2, ("g0", "g1")),
        ([], 4, ("g0", "g1", "g2", "g3")),
    ],
)
def test_cases_of_nvidias_plugin(must: list[str], size: int, chosen: tuple[str, ...]) -> None:
    assert choose(["g0", "g1", "g2", "g3"], must, size, FOUR) == chosen


def test_more_musts_than_the_size_are_refused() -> None:
    with pytest.raises(
        AllocationRefused, match=r"number of MustIncludeDeviceIDs \(2\) exceeds allocation size \(1\)"
    ):
        choose(["g0", "g1"], ["g0", "g1"], 1, FOUR)


def test_a_group_of_which_a_device_is_chosen_is_completed_first() -> None:
    places = {"a": place(1, 0), "b": place(2, 0), "c": place(1, 1)}
    assert choose(["a", "b", "c"], ["a"], 2, places) == ("a", "c")


def test_a_single_device_is_chosen_where_it_splits_no_pair() -> None:
    places = {"a": place(1, 0), "b": place(1, 0), "c": place(2, 0)}
    assert choose(["a", "b", "c"], [], 1, places) == ("c",)


def test_the_lowest_address_is_preferred_whatever_the_order_of_the_kubelets_list() -> None:
    places = {each: place(number, 0) for number, each in enumerate("abc")}
    for available in itertools.permutations("abc"):
        assert choose(available, [], 2, places) == ("a", "b")


def test_groups_are_ranked_by_use_then_siblings_then_release() -> None:
    places = {
        "a": place(1, 0),
        "b": place(2, 0, use=RELEASED),
        "c": place(3, 1, use=RELEASED, siblings=(1,)),
        "d": place(4, 0, use=OTHER, siblings=(1, 1)),
        "e": place(5, 1, siblings=(1,)),
        "f": place(6, 1, use=SAME),
    }
    left = set(places)
    for chosen in "fecabd":
        assert choose([*left], [], 1, places) == (chosen,)
        left.remove(chosen)


def test_a_numa_node_that_has_enough_is_preferred_to_two() -> None:
    places = {"a": place(1, 0), "b": place(2, 1), "c": place(3, 1)}
    assert set(choose(["a", "b", "c"], [], 2, places)) == {"b", "c"}
    assert choose(["a", "b", "c"], [], 1, places) == ("a",)


def test_below_a_numa_node_one_root_port_is_preferred() -> None:
    places = {
        "a": place(1, 0, "pci0000:00/0000:00:01.0"),
        "b": place(2, 0, "pci0000:00/0000:00:02.0"),
        "c": place(3, 0, "pci0000:00/0000:00:02.0"),
    }
    assert set(choose(["a", "b", "c"], [], 2, places)) == {"b", "c"}


def test_devices_without_a_place_are_chosen_in_order() -> None:
    assert choose(["x", "y", "z"], [], 2, {}) == ("x", "y")


def test_all_devices_are_returned_if_there_are_fewer_than_wanted() -> None:
    assert choose(["g0"], [], 3, FOUR) == ("g0",)


def test_siblings_count_no_more_than_are_wanted() -> None:
    """Else a large board would be split for a pod that wants one of each."""
    places = board("a", 2, siblings=(2,)) | board("b", 1, siblings=(1,)) | board("c", 1, siblings=(0,))
    assert choose([*places], [], 1, places) == ("b0",)
    assert set(choose([*places], [], 2, places)) == {"a0", "a1"}


def board(name: str, size: int, **other: Any) -> dict[str, Place]:
    """So many devices of one group."""
    return {f"{name}{each}": place(ord(name), **other) for each in range(size)}


@pytest.mark.parametrize(
    ("places", "wanted", "chosen"),
    [
        pytest.param(board("a", 1) | board("b", 2) | board("c", 2), 4, "bc", id="the largest first"),
        pytest.param(board("a", 1) | board("b", 2), 3, "ab", id="then the one that fits"),
        pytest.param(board("a", 1) | board("b", 3) | board("c", 2), 2, "c", id="the smallest with enough"),
        pytest.param(board("a", 1) | board("b", 1) | board("c", 3), 2, "c", id="one board before two"),
        pytest.param(board("a", 1) | board("b", 2, use=RELEASED), 2, "b", id="also released a moment ago"),
        pytest.param(board("a", 2, use=RELEASED) | board("b", 2), 2, "b", id="unless another one is free"),
        pytest.param(
            board("a", 1) | board("b", 2, use=RELEASED) | board("c", 2, use=RELEASED),
            4,
            "bc",
            id="two of them",
        ),
        pytest.param(
            board("a", 2, siblings=(1,)) | board("b", 2, siblings=(2,), use=RELEASED), 2, "b", id="complete"
        ),
        pytest.param(board("a", 2, use=OTHER) | board("b", 1) | board("c", 1), 2, "bc", id="not in use"),
    ],
)
def test_several_devices_are_chosen_from_as_few_boards_as_possible(
    places: dict[str, Place], wanted: int, chosen: str
) -> None:
    assert {each[0] for each in choose([*places], [], wanted, places)} == set(chosen)


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[str], list[str], int, dict[str, Place]]:
    names = [f"d{number}" for number in range(draw(st.integers(1, 10)))]
    places = {
        name: place(
            draw(st.none() | st.integers(0, 4)),
            draw(st.none() | st.integers(0, 1)),
            draw(st.sampled_from(["", "r0", "r1"])),
            siblings=draw(st.sampled_from([(), (1,), (2, 1)])),
        )
        for name in draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    }
    must = draw(st.lists(st.sampled_from(names), unique=True))
    size = draw(st.integers(len(must), len(names)))
    return draw(st.permutations(names)), must, size, places


@settings(deadline=None, max_examples=150)
@given(requests())
def test_each_answer_has_the_size_and_the_musts_and_only_available_ids(
    request: tuple[list[str], list[str], int, dict[str, Place]],
) -> None:
    available, must, size, places = request
    chosen = choose(available, must, size, places)
    assert len(chosen) == len(set(chosen)) == size
    assert list(chosen[: len(must)]) == must
    assert set(chosen) <= set(available)
    assert choose(available, must, size, places) == chosen


@settings(deadline=None, max_examples=150)
@given(requests())
def test_no_group_is_begun_while_another_one_is_half_chosen(
    request: tuple[list[str], list[str], int, dict[str, Place]],
) -> None:
    available, must, size, places = request
    chosen = choose(available, must, size, places)
    for position in range(len(must), size):
        begun = {places[name].group for name in chosen[:position] if name in places} - {None}
        left = {places[name].group for name in set(available) - set(chosen[:position]) if name in places}
        if begun & left:
            assert places[chosen[position]].group in begun


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_one_device_is_chosen_from_a_group_of_one_if_there_is_any(numas: int, sizes: list[int]) -> None:
    places = {
        f"{group}.{number}": place(group, group % numas)
        for group, size in enumerate(sizes)
        for number in range(size)
    }
    (chosen,) = choose(list(places), [], 1, places)
    group = places[chosen].group
    assert group is not None
    assert sizes[group] == 1 or 1 not in sizes


A, B, C = "0000:65:00.0", "0000:65:00.1", "0000:67:00.0"
USB, AUDIO = "example.com/usb", "example.com/audio"
BOARDS = WISH._replace(
    rules=tuple(
        PciRule(name, (PciSelector(devices=(device,)),))
        for name, device in ((GPU, "1eb8"), (USB, "1ad8"), (AUDIO, "10f8"))
    ),
)


def places_of(
    ids: list[str], now: Snapshot, *released: str, name: str = GPU, same_pod: bool = False
) -> dict[str, Place]:
    """The places of these devices of a resource."""
    decision = turn.decide_first(replace(now, spec=BOARDS))
    resource = decision.resources[ResourceName(name)]
    return find_places(ids, resource, decision, frozenset(released), same_pod=same_pod)


def test_healthy_siblings_of_other_resources_are_counted() -> None:
    def members(number: int, *others: tuple[str, bool]) -> list[PciFunction]:
        found = [function(f"0000:0{number}:00.0", number)]
        for index, (device, healthy) in enumerate(others, 1):
            count = 0 if healthy else 1  # held open by nobody's pod
            address = f"0000:0{number}:00.{index}"
            found.append(function(address, number, device=device, enable=count, idle=0))
        return found

    groups = [
        members(1),
        members(2, ("1ad8", True), ("1ad8", True), ("10f8", True)),
        members(3, ("1eb8", True), ("ffff", True)),
        members(4, ("1ad8", False), ("10f8", True)),
    ]
    now = snapshot(host(*itertools.chain(*groups)))
    found = places_of([group[0].id for group in groups], now)
    assert [sorted(each.siblings) for each in found.values()] == [[], [1, 2], [], []]
    assert [each.use for each in found.values()] == [FREE, FREE, FREE, OTHER]


def test_an_id_that_this_host_does_not_have_is_nowhere() -> None:
    assert places_of([C], snapshot(host())) == {C: NOWHERE}


def test_who_uses_a_part_of_a_group() -> None:
    here = host(function(A), function(B, device="1ad8"), function(C, 2, device="1ad8"))

    def use(reservations: Reservations, *, same_pod: bool = True) -> list[GroupUse]:
        now = snapshot(here, reservations=reservations)
        return [each.use for each in places_of([B, C], now, name=USB, same_pod=same_pod).values()]

    assert use(Reservations()) == [FREE, FREE]
    assert use(reserved([A])) == [SAME, FREE]
    assert use(reserved([A]), same_pod=False) == [OTHER, FREE]
    assert use(reserved([A], admitting=False)) == [OTHER, FREE]


def test_a_pod_under_admission_gets_no_second_device_of_one_resource_from_its_group() -> None:
    here = host(function(A), function(B), function(C, 2))
    now = snapshot(here, reservations=reserved([A]))
    assert [each.use for each in places_of([B, C], now, same_pod=True).values()] == [OTHER, FREE]


def test_a_device_that_turned_unhealthy_comes_last_and_its_board_has_one_less() -> None:
    """The kubelet has it as Healthy still."""
    boards = [function(f"0000:0{board}:00.{each}", board) for board in (1, 2, 3) for each in range(2)]
    ids = [each.id for each in boards]
    lost = boards[0]._replace(driver=None, vfio=False)
    places = places_of(ids, snapshot(host(lost, *boards[1:])))
    assert places[ids[0]].use is OTHER
    for wanted, chosen in ((1, ids[1:2]), (2, ids[2:4]), (4, ids[2:]), (6, [*ids[2:], ids[1], ids[0]])):
        assert sorted(choose(ids, [], wanted, places)) == sorted(chosen)


@pytest.mark.parametrize("released", [A, B, "7"], ids=["its neighbour", "it", "the whole group"])
def test_a_device_released_a_moment_ago_comes_after_what_is_free(released: str) -> None:
    now = snapshot(host(function(A, 7), function(B, 7), function(C, 8)))
    places = places_of([B, C], now, released)
    assert [each.use for each in places.values()] == [RELEASED, FREE]
    assert choose([B, C], [], 1, places) == (C,)
