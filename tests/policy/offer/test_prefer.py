# SPDX-License-Identifier: Apache-2.0
"""Preferences: the cases of NVIDIA's plugin, groups kept together, and what holds for every question."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.base.errors import Refused
from nodeagent.policy.offer import prefer
from nodeagent.policy.offer.topology import Topology, Whose

FOUR = {f"g{number}": Topology(number, number // 2) for number in range(4)}


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
def test_the_cases_of_nvidias_plugin(must: list[str], size: int, chosen: tuple[str, ...]) -> None:
    assert prefer.choose(["g0", "g1", "g2", "g3"], must, size, FOUR) == chosen


def test_more_musts_than_the_size_is_an_error_of_the_caller() -> None:
    with pytest.raises(Refused, match=r"number of MustIncludeDeviceIDs \(2\) exceeds allocation size \(1\)"):
        prefer.choose(["g0", "g1"], ["g0", "g1"], 1, FOUR)


def test_a_group_that_is_begun_is_completed_before_anything_else() -> None:
    topologies = {"a": Topology(1, 0), "b": Topology(2, 0), "c": Topology(1, 1)}
    assert prefer.choose(["a", "b", "c"], ["a"], 2, topologies) == ("a", "c")


def test_a_single_device_is_taken_where_it_breaks_no_pair() -> None:
    topologies = {"a": Topology(1, 0), "b": Topology(1, 0), "c": Topology(2, 0)}
    assert prefer.choose(["a", "b", "c"], [], 1, topologies) == ("c",)


def test_ties_go_by_address_whatever_the_order_of_the_kubelet_s_list() -> None:
    topologies = {each: Topology(number, 0) for number, each in enumerate("abc")}
    for available in itertools.permutations("abc"):
        assert prefer.choose(available, [], 2, topologies) == ("a", "b")


def test_a_group_that_lacks_something_of_another_resource_comes_after_the_whole_ones() -> None:
    topologies = {
        "a": Topology(1, 0, lacks=1),
        "b": Topology(1, 0, lacks=1),
        "c": Topology(2, 1),
        "d": Topology(3, 0, whose=Whose.ANOTHER),
    }
    for must, chosen in {"": "c", "c": "a", "a": "b", "ca": "b"}.items():
        assert prefer.choose("abcd", must, len(must) + 1, topologies)[-1] == chosen


def test_a_whole_board_that_was_left_comes_before_one_that_lacks_something_unless_it_may_be_open() -> None:
    """A virtual machine is started anew: it had the only whole board."""
    topologies = {
        "a": Topology(1, 0, lacks=1),
        "b": Topology(2, 0, whose=Whose.LEFT, lacks=1),
        "c": Topology(3, 1, whose=Whose.LEFT),
        "d": Topology(4, 0, whose=Whose.LEAVING),
        "e": Topology(5, 1),
        "f": Topology(6, 1, whose=Whose.ASKER, lacks=1),
    }
    left = set(topologies)
    for chosen in "feca":
        assert prefer.choose([*left], [], 1, topologies) == (chosen,)
        left.remove(chosen)


def test_the_asker_s_group_comes_first_and_another_pod_s_last() -> None:
    topologies = {
        "a": Topology(1, 0, whose=Whose.ANOTHER),
        "b": Topology(2, 0),
        "c": Topology(3, 1, whose=Whose.ASKER),
    }
    assert prefer.choose(["a", "b", "c"], [], 1, topologies) == ("c",)
    assert prefer.choose(["a", "b"], [], 1, topologies) == ("b",)
    assert prefer.choose(["a"], [], 1, topologies) == ("a",)


def test_one_numa_node_that_has_enough_is_preferred_to_two() -> None:
    topologies = {"a": Topology(1, 0), "b": Topology(2, 1), "c": Topology(3, 1)}
    assert set(prefer.choose(["a", "b", "c"], [], 2, topologies)) == {"b", "c"}
    assert prefer.choose(["a", "b", "c"], [], 1, topologies) == ("a",)


def test_below_one_numa_node_one_root_port_is_preferred() -> None:
    topologies = {
        "a": Topology(1, 0, "pci0000:00/0000:00:01.0"),
        "b": Topology(2, 0, "pci0000:00/0000:00:02.0"),
        "c": Topology(3, 0, "pci0000:00/0000:00:02.0"),
    }
    assert set(prefer.choose(["a", "b", "c"], [], 2, topologies)) == {"b", "c"}


def test_devices_without_a_place_are_taken_in_order() -> None:
    assert prefer.choose(["x", "y", "z"], [], 2, {}) == ("x", "y")


def test_a_shortage_gives_what_there_is() -> None:
    assert prefer.choose(["g0"], [], 3, FOUR) == ("g0",)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[str], list[str], int, dict[str, Topology]]:
    names = [f"d{number}" for number in range(draw(st.integers(1, 10)))]
    topologies = {
        name: Topology(
            draw(st.none() | st.integers(0, 4)),
            draw(st.none() | st.integers(0, 1)),
            draw(st.sampled_from(["", "r0", "r1"])),
        )
        for name in draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    }
    must = draw(st.lists(st.sampled_from(names), unique=True))
    size = draw(st.integers(len(must), len(names)))
    return draw(st.permutations(names)), must, size, topologies


@settings(deadline=None, max_examples=150)
@given(questions())
def test_every_answer_has_the_size_holds_the_musts_and_invents_nothing(
    question: tuple[list[str], list[str], int, dict[str, Topology]],
) -> None:
    available, must, size, topologies = question
    chosen = prefer.choose(available, must, size, topologies)
    assert len(chosen) == len(set(chosen)) == size
    assert list(chosen[: len(must)]) == must
    assert set(chosen) <= set(available)
    assert prefer.choose(available, must, size, topologies) == chosen


@settings(deadline=None, max_examples=150)
@given(questions())
def test_no_group_is_begun_while_another_one_is_half_taken(
    question: tuple[list[str], list[str], int, dict[str, Topology]],
) -> None:
    available, must, size, topologies = question
    chosen = prefer.choose(available, must, size, topologies)
    for position in range(len(must), size):
        begun = {topologies[name].group for name in chosen[:position] if name in topologies} - {None}
        left = {
            topologies[name].group for name in set(available) - set(chosen[:position]) if name in topologies
        }
        if begun & left:
            assert topologies[chosen[position]].group in begun


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_one_device_is_taken_from_a_group_of_one_if_there_is_any(numas: int, sizes: list[int]) -> None:
    topologies = {
        f"{group}.{number}": Topology(group, group % numas)
        for group, size in enumerate(sizes)
        for number in range(size)
    }
    (chosen,) = prefer.choose(list(topologies), [], 1, topologies)
    group = topologies[chosen].group
    assert isinstance(group, int)
    assert sizes[group] == 1 or 1 not in sizes


def test_where_what_is_free_is_too_little_a_board_that_was_left_a_moment_ago_is_not_torn() -> None:
    topologies = {
        "a": Topology(1, 0, "r1"),
        "b": Topology(2, 1, "r2", Whose.LEAVING),
        "c": Topology(2, 1, "r2", Whose.LEAVING),
    }
    assert set(prefer.choose(["a", "b", "c"], [], 2, topologies)) == {"b", "c"}
    assert prefer.choose(["a", "b", "c"], [], 1, topologies) == ("a",)


def test_where_boards_that_were_left_are_needed_a_closed_one_comes_first() -> None:
    topologies = {
        "a": Topology(1, 0, whose=Whose.LEAVING),
        "b": Topology(2, 0, whose=Whose.LEFT),
        "c": Topology(3, 1),
        "d": Topology(4, 1, whose=Whose.ANOTHER),
    }
    for size, chosen in enumerate(("c", "cb", "cba"), 1):
        assert set(prefer.choose("abcd", [], size, topologies)) == set(chosen)
    assert prefer.choose(["a", "b", "d"], [], 1, topologies) == ("b",)


def test_a_group_that_has_all_that_is_wanted_is_taken_though_it_lacks_something_if_whole_ones_have_less() -> (
    None
):
    pair = {"a": Topology(1, 0, lacks=1), "b": Topology(1, 0, lacks=1)}
    single = {"c": Topology(2, 0), "d": Topology(3, 0)}
    assert set(prefer.choose("abc", [], 2, pair | single)) == {"a", "b"}
    assert set(prefer.choose("abcd", [], 2, pair | single)) == {"c", "d"}
    assert prefer.choose("abcd", [], 1, pair | single) == ("c",)


WIDE = {
    "a": Topology(1, 0, "r1", lacks=1),
    "b": Topology(1, 0, "r1", lacks=1),
    "c": Topology(2, 1, "r2"),
    "d": Topology(2, 1, "r2"),
    "e": Topology(3, 1, "r2"),
    "f": Topology(3, 1, "r2"),
}


@pytest.mark.parametrize("whose", [Whose.NOBODY, Whose.LEFT])
def test_a_whole_group_that_has_all_that_is_wanted_is_taken_wherever_it_is(whose: Whose) -> None:
    places = {name: spot if spot.lacks else spot._replace(whose=whose) for name, spot in WIDE.items()}
    assert set(prefer.choose("abcdef", [], 2, places)) == {"c", "d"}
    assert set(prefer.choose("abcd", [], 2, places)) == {"c", "d"}
    assert set(prefer.choose("abc", [], 2, places)) == {"a", "b"}


def test_of_groups_that_lack_something_the_one_that_lacks_less_comes_first() -> None:
    for wanted in (1, 2):
        less = {name: spot if spot.lacks == 0 else spot._replace(lacks=3) for name, spot in WIDE.items()}
        less |= {name: spot._replace(lacks=2) for name, spot in WIDE.items() if not spot.lacks}
        assert set(prefer.choose("abcd", [], wanted, less)) == set("cd"[:wanted])


def boards(**sizes: tuple[int, Whose, int]) -> dict[str, Topology]:
    """Boards by name: how many devices each has, whose it is, and what it lacks."""
    return {
        f"{name}{each}": Topology(name, whose=whose, lacks=lacks)
        for name, (size, whose, lacks) in sizes.items()
        for each in range(size)
    }


FREE, LEFT, OPEN = Whose.NOBODY, Whose.LEFT, Whose.LEAVING


@pytest.mark.parametrize(
    ("places", "wanted", "chosen"),
    [
        pytest.param(boards(a=(1, FREE, 0), b=(2, FREE, 0), c=(2, FREE, 0)), 4, "bc", id="the largest first"),
        pytest.param(boards(a=(1, FREE, 0), b=(2, FREE, 0)), 3, "ab", id="what is just left next"),
        pytest.param(boards(a=(1, FREE, 0), b=(1, FREE, 0), c=(2, LEFT, 0)), 2, "c", id="just what was left"),
        pytest.param(boards(a=(1, FREE, 0), b=(1, FREE, 0), c=(2, OPEN, 0)), 2, "ab", id="it may be open"),
        pytest.param(boards(a=(2, LEFT, 0), b=(2, FREE, 0)), 2, "b", id="one is free that is just that"),
        pytest.param(boards(a=(1, FREE, 0), b=(2, FREE, 1), c=(2, LEFT, 0)), 2, "c", id="and whole"),
        pytest.param(
            boards(a=(2, LEFT, 0), b=(1, FREE, 1), c=(1, FREE, 0)), 2, "a", id="beside one that lacks"
        ),
        pytest.param(boards(a=(1, FREE, 0), b=(3, FREE, 1)), 2, "b", id="whole ones are too few"),
        pytest.param(boards(a=(1, FREE, 0), b=(1, FREE, 0), c=(3, FREE, 1)), 2, "ab", id="they are enough"),
        pytest.param(
            boards(a=(3, FREE, 1), b=(2, LEFT, 1)), 2, "b", id="just that, though it lacks something"
        ),
        pytest.param(
            boards(a=(1, FREE, 1), b=(1, LEFT, 0), c=(1, LEFT, 0)), 2, "bc", id="whole ones were left"
        ),
    ],
)
def test_who_wants_several_gets_them_of_as_few_boards_as_can_be_and_of_whole_ones(
    places: dict[str, Topology], wanted: int, chosen: str
) -> None:
    assert {each[0] for each in prefer.choose([*places], [], wanted, places)} == set(chosen)
