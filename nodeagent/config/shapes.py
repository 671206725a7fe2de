# SPDX-License-Identifier: Apache-2.0
"""The shapes that settings may have: a word, a list, a map, a table with fixed keys.

A shape knows how a person calls it, how one word is read, which record a table of keys makes, and its JSON
schema. It knows no places and reads no entries: that is ``reading``. A word is read by its setting alone,
so ``1200`` is a class where a class is wanted and a number where a number is wanted.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.config.reading import Scalar

Schema = dict[str, Any]


def _as_is(value: object) -> object:
    return value


class Word(NamedTuple):
    """One scalar. ``json`` None is any text; ``show`` gives the word of a value.

    :raises Wrong: by ``read``, if a scalar is no such word.
    """

    words: str
    read: Callable[[Scalar], object]
    json: Mapping[str, object] | None = None
    show: Callable[[Any], object] = _as_is


class ListOf(NamedTuple):
    """A list; order is kept."""

    of: Shape

    @property
    def words(self) -> str:
        """What a person calls it."""
        return f"list of {self.of.words}"


class MapOf(NamedTuple):
    """A map from words to words."""

    keys: Word
    of: Word

    @property
    def words(self) -> str:
        """What a person calls it."""
        return f"map of {self.keys.words} to {self.of.words}"


class Key(NamedTuple):
    """One key of a record. ``field`` "": the field that it fills is named as the key is (``snake``)."""

    name: str
    shape: Shape
    help: str
    required: bool = False
    field: str = ""


class Record(NamedTuple):
    """A table with fixed keys, and what is made of it.

    ``make`` is called with the fields that were given; if ``placed``, also with ``place``, where it was
    written.

    :raises Wrong: by ``check``, if keys do not go together.
    """

    words: str
    keys: tuple[Key, ...]
    make: Callable[..., object]
    check: Callable[[Mapping[str, object]], None] | None = None
    placed: bool = False


class Either(NamedTuple):
    """A word for the first key of a record, or the record for those who want to say more."""

    word: Word
    record: Record

    @property
    def words(self) -> str:
        """What a person calls it."""
        return f"{self.word.words} or {self.record.words}"


Shape = Word | ListOf | MapOf | Record | Either


def kebab(name: str) -> str:
    """``devicePluginDir`` → ``device-plugin-dir``."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"-\1", name).lower()


@cache
def snake(name: str) -> str:
    """``devicePluginDir`` → ``device_plugin_dir``: the field for a key. Asked for each key of each rule."""
    return kebab(name).replace("-", "_")


def schema(shape: Shape) -> Schema:
    """The JSON schema (draft 2020-12) of a shape."""
    if isinstance(shape, Word):
        return dict(shape.json or {"type": "string"})
    if isinstance(shape, ListOf):
        return {"type": ["array", "null"], "items": schema(shape.of)}
    if isinstance(shape, MapOf):
        return {"type": ["object", "null"], "additionalProperties": schema(shape.of)}
    if isinstance(shape, Either):
        return {"anyOf": [schema(shape.word), schema(shape.record)]}
    return table_schema({key.name: described(schema(key.shape), key.help) for key in shape.keys}) | {
        "required": [key.name for key in shape.keys if key.required]
    }


def table_schema(properties: Mapping[str, Schema]) -> Schema:
    """The schema of a table that has these keys and no others."""
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def described(plain: Schema, text: str, default: object = None) -> Schema:
    """A schema with a text for people, and the default if there is one."""
    return plain | {"description": text} | ({} if default is None else {"default": default})
