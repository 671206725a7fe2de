# SPDX-License-Identifier: Apache-2.0
"""Entries of plain data are read as the same words in a file are."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.config import codec, words
from nodeagent.config.codec import ListOf, MapOf, Read, Shape
from nodeagent.config.problems import Problems

LABELS = MapOf(words.WORDS["label"], words.WORDS["label value"])


@pytest.mark.parametrize(
    ("shape", "data", "read"),
    [
        (words.FLAG, True, Read(True, True)),
        (words.integer(0, 9), 3, Read(3, 3)),
        (words.duration(0.0, 9.0), "250ms", Read("250ms", 0.25)),
        (words.WORDS["optional text"], "", Read("", "")),
        (ListOf(words.WORDS["vendor id"]), ["10DE"], Read(["10de"], ("10de",))),
        (ListOf(words.FLAG), None, Read([], ())),
        (LABELS, {"a": "b"}, Read({"a": "b"}, (("a", "b"),))),
    ],
)
def test_plain_data_is_read_as_a_file_is(shape: Shape, data: Any, read: Read) -> None:
    problems = Problems()
    assert codec.read(shape, codec.entry_of(data, "here"), "key", problems) == read
    assert problems.errors == []


@pytest.mark.parametrize(
    ("shape", "data", "what"),
    [
        (words.FLAG, "true", 'here: key: "true" is neither true nor false'),
        (words.integer(0, 9), None, "here: key: has no value"),
        (ListOf(words.FLAG), [True, 3], 'here: key[1]: "3" is neither true nor false'),
        (LABELS, {"a": "b", "/": "c"}, 'here: key./: "/" is no label key'),
        (LABELS, ["a"], "here: key: expected a map of label to label value, found a list"),
    ],
)
def test_an_error_names_the_place_and_the_key(shape: Shape, data: Any, what: str) -> None:
    problems = Problems()
    assert codec.read(shape, codec.entry_of(data, "here"), "key", problems) is None
    assert [error.what for error in problems.errors] == [what]
