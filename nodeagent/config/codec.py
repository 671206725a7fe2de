# SPDX-License-Identifier: Apache-2.0
"""Parses entries into values and reports each error by file, line and key; generates JSON schemas.

An entry is a parsed but untyped part of a YAML file, a JSON text, a variable or a flag. A scalar keeps its
text: the type of the setting, not YAML 1.1, determines whether ``0300`` is a number. A shape describes the
expected type: a word, a list, a map, or a table with fixed keys. ``rules`` derives shapes from the record
types, ``words`` defines the words. If part of an entry is invalid, the result of the whole entry is None.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.config.problems import Invalid, hint_for_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.config.problems import Problems

Schema = dict[str, Any]


class Scalar(NamedTuple):
    """One scalar: its text, whether it was written without quotes, and whether it is null.

    ``place`` is for messages: file and line, variable or flag.
    """

    text: str
    place: str
    plain: bool = True
    null: bool = False


class Items(NamedTuple):
    """A list of entries."""

    entries: tuple[Entry, ...]
    place: str


class Member(NamedTuple):
    """One key of a table with its value; the place is the line of the key."""

    key: str
    place: str
    entry: Entry


class Table(NamedTuple):
    """A table: keys with values, in the order of the file."""

    members: tuple[Member, ...]
    place: str


Entry = Scalar | Items | Table


def is_null(entry: Entry) -> bool:
    """Return True if the value is missing or null."""
    return isinstance(entry, Scalar) and entry.null


def entry_of(data: Any, place: str) -> Entry:
    """Return plain data, such as parsed JSON, as an entry."""
    if isinstance(data, dict):
        return Table(tuple(Member(key, place, entry_of(each, place)) for key, each in data.items()), place)
    if isinstance(data, list):
        return Items(tuple(entry_of(each, place) for each in data), place)
    if isinstance(data, str):
        return Scalar(data, place, plain=False)
    return Scalar("" if data is None else str(data).lower(), place, null=data is None)


def described(entry: Entry) -> str:
    """Return the name of the entry's type for error messages."""
    if isinstance(entry, Items):
        return "a list"
    if isinstance(entry, Table):
        return "a table of keys"
    return "nothing" if entry.null else f'"{entry.text}"'


def _as_is(value: object) -> object:
    return value


class Word(NamedTuple):
    """The type of a scalar.

    ``json`` is the JSON schema of the scalar, None for any text; ``show`` converts a value to plain data.

    :raises Invalid: by ``read``, if the scalar does not have this type.
    """

    words: str
    read: Callable[[Scalar], object]
    json: Mapping[str, object] | None = None
    show: Callable[[Any], object] = _as_is


class ListOf(NamedTuple):
    """The type of a list; the order of its items is kept."""

    of: Shape

    @property
    def words(self) -> str:
        """Return the name of this type for messages."""
        return f"list of {self.of.words}"


class MapOf(NamedTuple):
    """The type of a map from words to words."""

    keys: Word
    of: Word

    @property
    def words(self) -> str:
        """Return the name of this type for messages."""
        return f"map of {self.keys.words} to {self.of.words}"


class Field(NamedTuple):
    """One key of a table, and the record field that it sets; the other fields are those of ``plain.Key``."""

    key: str
    field: str
    shape: Shape
    help: str
    default: Any = MISSING
    at_start: bool = False
    obsolete: bool = False

    @property
    def required(self) -> bool:
        """Return True if the key has no default."""
        return self.default is MISSING


class Record(NamedTuple):
    """The type of a table with fixed keys, and the function that converts it into a record.

    ``make`` is called with the values of the keys that are present, and if ``placed`` is True, with ``place``
    (file and line). ``short``: a single word is accepted as the value of the first key.

    :raises Invalid: by ``check``, which is called with the written keys, if they contradict each other.
    """

    name: str
    fields: tuple[Field, ...]
    make: Callable[..., object]
    check: Callable[[Mapping[str, Any]], None] | None = None
    placed: bool = False
    short: bool = False

    @property
    def words(self) -> str:
        """Return the name of this type for messages."""
        return f"{self.fields[0].shape.words} or {self.name}" if self.short else self.name


Shape = Word | ListOf | MapOf | Record


class Read(NamedTuple):
    """A value in two forms: ``plain`` as in a file (lists, maps, words), and ``value`` as in the records."""

    plain: Any
    value: Any


def read(shape: Shape, entry: Entry, key: str, problems: Problems) -> Read | None:
    """Return the value of an entry; None if it is invalid, after adding the errors to ``problems``."""
    if isinstance(shape, Word):
        return _read_word(shape, entry, key, problems)
    if isinstance(shape, ListOf):
        return _read_list(shape, entry, key, problems)
    if isinstance(shape, MapOf):
        return _read_map(shape, entry, key, problems)
    if shape.short and isinstance(entry, Scalar):
        first = shape.fields[0]
        word = read(first.shape, entry, key, problems)
        return None if word is None else Read(word.plain, shape.make(**{first.field: word.value}))
    return _read_record(shape, entry, key, problems)


def _read_word(word: Word, entry: Entry, key: str, problems: Problems) -> Read | None:
    if not isinstance(entry, Scalar):
        problems.add(entry.place, key, _expected(word.words, entry), "write a single value")
    elif entry.null:
        problems.add(entry.place, key, "has no value", 'write a value ("" is the empty text)')
    else:
        try:
            value = word.read(entry)
            return Read(word.show(value), value)
        except Invalid as invalid:
            problems.add(entry.place, key, invalid.what, invalid.hint)
    return None


def _read_list(shape: ListOf, entry: Entry, key: str, problems: Problems) -> Read | None:
    if is_null(entry):
        return Read([], ())
    if not isinstance(entry, Items):
        problems.add(entry.place, key, _expected(shape.words, entry), "write [a, b], or one '- a' per line")
        return None
    items = [read(shape.of, each, f"{key}[{number}]", problems) for number, each in enumerate(entry.entries)]
    good = [item for item in items if item is not None]
    return None if len(good) < len(items) else Read([i.plain for i in good], tuple(i.value for i in good))


def _read_map(shape: MapOf, entry: Entry, key: str, problems: Problems) -> Read | None:
    if is_null(entry):
        return Read({}, ())
    if not isinstance(entry, Table):
        problems.add(entry.place, key, _expected(shape.words, entry), "write one 'key: value' per line")
        return None
    found, before = dict[Any, Any](), len(problems.errors)
    for member in entry.members:
        path = f"{key}.{member.key}"
        name = _read_word(shape.keys, Scalar(member.key, member.place), path, problems)
        value = _read_word(shape.of, member.entry, path, problems)
        if name is not None and value is not None:
            found[name.value] = value.value
    return None if len(problems.errors) > before else Read(found, tuple(found.items()))


def _read_record(record: Record, entry: Entry, key: str, problems: Problems) -> Read | None:
    if not isinstance(entry, Table):
        problems.add(entry.place, key, _expected(record.name, entry), "write one 'key: value' per line")
        return None
    before = len(problems.errors)
    known = {field.key: field for field in record.fields}
    plain, values = dict[str, Any](), dict[str, Any]()
    for member in entry.members:
        path, field = f"{key}.{member.key}", known.get(member.key)
        if field is None:
            problems.add(member.place, path, "unknown key", hint_for_unknown(member.key, known))
        elif (item := read(field.shape, member.entry, path, problems)) is not None:
            plain[field.key], values[field.field] = item
    written = {member.key for member in entry.members}
    for field in record.fields:
        if field.required and field.key not in written:
            problems.add(entry.place, f"{key}.{field.key}", "is missing", "write it")
    if len(problems.errors) > before:
        return None
    try:
        if record.check is not None:
            record.check(plain)
    except Invalid as invalid:
        problems.add(entry.place, key, invalid.what, invalid.hint)
        return None
    return Read(plain, record.make(**values, **({"place": entry.place} if record.placed else {})))


def _expected(words: str, entry: Entry) -> str:
    return f"expected a {words}, found {described(entry)}"


def from_text(shape: Shape, text: str, place: str) -> Entry:
    """Return the text of a flag or variable as an entry: ``a,b`` for lists, ``a=b,c=d`` for maps.

    :raises Invalid: if a part of a map has no "=", or a key is repeated.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(shape, ListOf):
        return Items(tuple(Scalar(part, place) for part in parts), place)
    if isinstance(shape, MapOf):
        members: dict[str, Member] = {}
        for member in (_pair(part, place) for part in parts):
            if members.setdefault(member.key, member) is not member:
                raise Invalid(f'the key "{member.key}" is written twice', "keep one of them")
        return Table(tuple(members.values()), place)
    return Scalar(text, place)


def _pair(part: str, place: str) -> Member:
    key, equals, value = part.partition("=")
    if not equals:
        raise Invalid(f'"{part}" has no "="', "write key=value; separate several by commas")
    return Member(key.strip(), place, Scalar(value.strip(), place))


def written(shape: Shape, value: Any) -> Any:
    """Return a default in the form that a file uses; defaults never contain records."""
    if isinstance(shape, Word):
        return shape.show(value)
    if isinstance(shape, ListOf):
        return [written(shape.of, item) for item in value]
    return dict(value)


def schema(shape: Shape) -> Schema:
    """Return the JSON schema (draft 2020-12) of a shape."""
    if isinstance(shape, Word):
        return dict(shape.json or {"type": "string"})
    if isinstance(shape, ListOf):
        return {"type": ["array", "null"], "items": schema(shape.of)}
    if isinstance(shape, MapOf):
        return {"type": ["object", "null"], "additionalProperties": schema(shape.of)}
    fields = {field.key: schema(field.shape) | {"description": field.help} for field in shape.fields}
    table = table_schema(fields) | {"required": [field.key for field in shape.fields if field.required]}
    return {"anyOf": [schema(shape.fields[0].shape), table]} if shape.short else table


def table_schema(properties: Mapping[str, Schema]) -> Schema:
    """Return the JSON schema of a table that has these keys and no others."""
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}
