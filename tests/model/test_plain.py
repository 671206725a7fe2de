# SPDX-License-Identifier: Apache-2.0
"""Frozen values as plain data and back: what is left out, which member of a union, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, NewType

import pytest

from nodeagent.model import plain

Address = NewType("Address", str)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Cat:
    kind: ClassVar[str] = "not a field"

    name: str
    lives: int = 9


class Dog(NamedTuple):
    name: str
    tail: bool = True


@dataclass(frozen=True)
class House:
    street_name: str
    floors: int | None
    ratio: float = 0.5
    open_now: bool = True
    number: int | None = None
    door: Colour | None = None
    cat: Cat | None = None
    guests: tuple[Cat | Dog, ...] = ()
    rooms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    owners: Mapping[Address, Dog | Cat] = field(default_factory=dict)
    pair: tuple[str, int | None] = ("a", None)
    keys: frozenset[str] = frozenset()
    anything: Any = None


@dataclass(frozen=True)
class Street:
    pets: Annotated[Mapping[str, Cat], plain.LISTED] = field(default_factory=dict)
    visits: Annotated[int, plain.UNSAVED] = 0
    houses: tuple[House, ...] = ()


FULL = House(
    "High Street",
    0,
    2.0,
    False,
    0,
    Colour.BLUE,
    Cat("Tom", 1),
    (Dog("Rex"), Cat("Kit")),
    {"up": (1, 2)},
    {Address("x"): Dog("Rex")},
    ("b", 3),
    frozenset({"z", "a"}),
    [1, {"two": None}],
)


@pytest.mark.parametrize("house", [FULL, House("x", None)], ids=["full", "plain"])
def test_what_goes_out_comes_back_the_same(house: House) -> None:
    assert plain.load(House, json.loads(json.dumps(plain.dump(house)))) == house


def test_a_field_that_has_its_default_is_left_out_and_one_without_a_default_never_is() -> None:
    assert plain.dump(House("x", None)) == {"streetName": "x", "floors": None}
    document = plain.dump(House("x", 0, number=0, open_now=False))
    assert document == {"streetName": "x", "floors": 0, "number": 0, "openNow": False}


def test_the_kind_is_told_where_it_may_be_one_of_several_and_only_there() -> None:
    document = plain.dump(FULL)
    assert document["guests"] == [{"kind": "dog", "name": "Rex"}, {"kind": "cat", "name": "Kit"}]
    assert document["owners"] == {"x": {"kind": "dog", "name": "Rex"}}
    assert document["cat"] == {"name": "Tom", "lives": 1}
    assert document["keys"] == ["a", "z"]


def test_keys_that_are_not_known_here_are_passed_over() -> None:
    data = {"streetName": "x", "floors": None, "weather": "fine", "cat": {"name": "Tom", "age": 3}}
    assert plain.load(House, data) == House("x", None, cat=Cat("Tom"))


def test_a_whole_number_will_do_for_a_fraction() -> None:
    ratio = plain.load(House, {"streetName": "x", "floors": None, "ratio": 2}).ratio
    assert (ratio, type(ratio)) == (2.0, float)


@pytest.mark.parametrize(
    "wrong",
    [
        {"streetName": None},
        {"streetName": 7},
        {"floors": "1"},
        {"floors": True},
        {"floors": 1.0},
        {"openNow": 1},
        {"ratio": "1"},
        {"ratio": True},
        {"door": "green"},
        {"door": 1},
        {"cat": "Tom"},
        {"cat": {}},
        {"guests": {"kind": "dog"}},
        {"guests": [{"name": "Rex"}]},
        {"guests": [{"kind": "bird", "name": "Rex"}]},
        {"guests": ["Rex"]},
        {"guests": [None]},
        {"guests": "Rex"},
        {"rooms": [1]},
        {"rooms": {"up": 1}},
        {"rooms": {"up": ["1"]}},
        {"pair": ["a"]},
        {"pair": ["a", 1, 2]},
        {"pair": [1, 1]},
        {"keys": "ab"},
        {"keys": [1]},
    ],
    ids=str,
)
def test_what_is_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        plain.load(House, {"streetName": "x", "floors": None, **wrong})


@pytest.mark.parametrize("data", [None, [], "House", {}, {"floors": 1}], ids=str)
def test_what_is_no_such_thing_at_all_is_refused(data: Any) -> None:
    with pytest.raises(TypeError):
        plain.load(House, data)


def test_a_listed_mapping_is_a_list_and_an_unsaved_field_is_left_out() -> None:
    street = Street({"Tom": Cat("Tom", 1)}, visits=7)
    assert plain.dump(street) == {"pets": [{"name": "Tom", "lives": 1}]}
    assert plain.load(Street, plain.dump(street)) == Street(street.pets)
    assert plain.dump(Street(), whole=True) == {"pets": [], "houses": []}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"pets": [{"name": "Tom"}, {"name": 7}]}, "pets[1].name is no text"),
        ({"pets": [{}]}, "pets[0].name is missing"),
        ({"pets": {}}, "pets is no list"),
        ({"houses": [7]}, "houses[0] is not a mapping of keys to values"),
        ({"houses": [{"streetName": "x", "floors": 1, "door": "green"}]}, "houses[0].door cannot be 'green'"),
        (
            {"houses": [{"streetName": "x", "floors": 1, "rooms": {"up": [1, "2"]}}]},
            "houses[0].rooms.up[1] cannot be '2'",
        ),
    ],
)
def test_an_error_names_the_path_of_the_wrong_value(data: Any, what: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        plain.load(Street, data)
    assert str(caught.value) == what
