# SPDX-License-Identifier: Apache-2.0
"""Schemas of records accept what ``plain.dump`` makes of them, and nothing of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, NewType

import jsonschema
import pytest

from nodeagent.model import plain
from tests.reference import schemas

Address = NewType("Address", str)
HEADING = {"apiVersion": "v1", "kind": "Sample"}


class Colour(StrEnum):
    RED = "red"


class Inner(NamedTuple):
    """A part."""

    number: int
    others: tuple[Any, ...] = ()


class Sample(NamedTuple):
    """A sample of ``all``
    shapes.

    More.
    """

    an_address: Address
    inner: Inner
    pair: tuple[str, int]
    maybe: float | None
    by_name: Mapping[str, Inner]
    colour: Colour = Colour.RED
    quiet: bool = True
    names: frozenset[str] = frozenset()
    many: tuple[Inner, ...] = ()


SCHEMA = schemas.of(Sample, HEADING)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def data(**changes: Any) -> dict[str, Any]:
    sample = Sample(Address("a"), Inner(1), ("x", 2), None, {"k": Inner(3)}, names=frozenset("ab"))
    return {**HEADING, **plain.dump(sample), **changes}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["description"] == "A sample of all shapes. More."
    assert SCHEMA["$defs"]["Inner"]["description"] == "A part."


def test_what_a_record_dumps_is_valid() -> None:
    VALIDATOR.validate(data())
    VALIDATOR.validate(data(maybe=1.5, many=[{"number": 1, "others": ["x", None]}], somethingNew=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "Other"},
        {"anAddress": 7},
        {"inner": {}},
        {"inner": {"number": "1"}},
        {"pair": ["x"]},
        {"pair": ["x", "y"]},
        {"maybe": "1"},
        {"byName": {"k": 3}},
        {"colour": "blue"},
        {"quiet": "no"},
        {"names": [1]},
        {"many": [3]},
    ],
    ids=str,
)
def test_what_has_another_shape_is_not(changes: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(data(**changes))


def test_what_has_no_default_is_required_and_defaults_are_told() -> None:
    assert SCHEMA["required"] == ["apiVersion", "kind", "anAddress", "inner", "pair", "maybe", "byName"]
    assert SCHEMA["properties"]["quiet"] == {"type": "boolean", "default": True}
    for key in SCHEMA["required"]:
        without = data()
        del without[key]
        assert not VALIDATOR.is_valid(without), key
