# SPDX-License-Identifier: Apache-2.0
"""Reads entries by their shapes, and notes every problem with file, line and full key path.

An entry is what was written, before anybody knows what it means: made from YAML, variables and flags
alike. A scalar keeps its text: whether ``0300`` is a number is for the setting to say, not for YAML 1.1.
Both live only while settings are read. A record is read to a dict of the keys that were given, plus
``PLACE``: where it stands. What cannot be read is ``BROKEN``, and so is what holds it, so that nothing
half-read goes further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nodeagent.config.problems import Wrong, hint_for_unknown
from nodeagent.config.shapes import Either, ListOf, MapOf, Record, Shape, Word

if TYPE_CHECKING:
    from nodeagent.config.problems import Place, Problems


PLACE: Final = "(place)"
BROKEN: Final = object()


class Scalar(NamedTuple):
    """One word: its text, whether it stood without quotes, and whether it means "nothing"."""

    text: str
    place: Place
    plain: bool = True
    null: bool = False


class Items(NamedTuple):
    """A list."""

    entries: tuple[Entry, ...]
    place: Place


class Member(NamedTuple):
    """One key of a table: its place is the key's line."""

    key: str
    place: Place
    entry: Entry


class Table(NamedTuple):
    """Keys with values, in the order written."""

    members: tuple[Member, ...]
    place: Place


Entry = Scalar | Items | Table


def is_null(entry: Entry) -> bool:
    """True for a key with nothing behind it."""
    return isinstance(entry, Scalar) and entry.null


def described(entry: Entry) -> str:
    """What an entry is, in the words of a person."""
    if isinstance(entry, Items):
        return "a list"
    if isinstance(entry, Table):
        return "a table of keys"
    return "nothing" if entry.null else f'"{entry.text}"'


class Reader:
    """Reads one source after the other into one list of problems."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def read(self, shape: Shape, entry: Entry, key: str) -> Any:
        """The value of an entry, or BROKEN with at least one problem noted."""
        if isinstance(shape, Word):
            return self._word(shape, entry, key)
        if isinstance(shape, ListOf):
            return self._list(shape, entry, key)
        if isinstance(shape, MapOf):
            return self._map(shape, entry, key)
        if isinstance(shape, Either):
            inner = shape.word if isinstance(entry, Scalar) else shape.record
            return self.read(inner, entry, key)
        return self._record(shape, entry, key)

    def _word(self, shape: Word, entry: Entry, key: str) -> Any:
        if not isinstance(entry, Scalar):
            return self._expected(shape, entry, key, "write a single value")
        if entry.null:
            return self._fail(entry.place, key, "has no value", 'write one ("" is the empty text)')
        try:
            return shape.read(entry)
        except Wrong as wrong:
            return self._fail(entry.place, key, wrong.what, wrong.hint)

    def _list(self, shape: ListOf, entry: Entry, key: str) -> Any:
        if is_null(entry):
            return ()
        if not isinstance(entry, Items):
            return self._expected(shape, entry, key, "write [a, b], or one '- a' per line")
        values = [self.read(shape.of, item, f"{key}[{number}]") for number, item in enumerate(entry.entries)]
        return BROKEN if BROKEN in values else tuple(values)

    def _map(self, shape: MapOf, entry: Entry, key: str) -> Any:
        if is_null(entry):
            return {}
        if not isinstance(entry, Table):
            return self._expected(shape, entry, key, "write one 'key: value' per line")
        read = {
            self._word(shape.keys, Scalar(member.key, member.place), f"{key}.{member.key}"): self._word(
                shape.of, member.entry, f"{key}.{member.key}"
            )
            for member in entry.members
        }
        return BROKEN if BROKEN in read or BROKEN in read.values() else read

    def _record(self, shape: Record, entry: Entry, key: str) -> Any:
        if not isinstance(entry, Table):
            return self._expected(shape, entry, key, "write one 'key: value' per line")
        before = len(self._problems.errors)
        values: dict[str, Any] = {}
        for member in entry.members:
            self._member(shape, member, key, values)
        for missing in shape.keys:
            if missing.required and missing.name not in values:
                self._fail(entry.place, f"{key}.{missing.name}", "is missing", "write it")
        if len(self._problems.errors) > before:
            return BROKEN
        return self._checked(shape, values, entry.place, key)

    def _member(self, shape: Record, member: Member, key: str, values: dict[str, Any]) -> None:
        path = f"{key}.{member.key}"
        meant = next((known for known in shape.keys if known.name == member.key), None)
        if meant is None:
            hint = hint_for_unknown(member.key, [known.name for known in shape.keys])
            self._fail(member.place, path, "unknown key", hint)
            return
        values[member.key] = self.read(meant.shape, member.entry, path)

    def _checked(self, shape: Record, values: dict[str, Any], place: Place, key: str) -> Any:
        try:
            if shape.check is not None:
                shape.check(values)
        except Wrong as wrong:
            return self._fail(place, key, wrong.what, wrong.hint)
        return values | {PLACE: place}

    def _expected(self, shape: Shape, entry: Entry, key: str, hint: str) -> Any:
        what = f"expected a {shape.words}, found {described(entry)}"
        return self._fail(entry.place, key, what, hint)

    def _fail(self, place: Place, key: str, what: str, hint: str) -> Any:
        self._problems.add(place, key, what, hint)
        return BROKEN


def from_text(shape: Shape, text: str, place: Place) -> Entry:
    """The entry that a flag or an environment variable holds: ``a,b`` for lists, ``a=b,c=d`` for maps.

    :raises Wrong: if a part of a map has no "=", or a key is there twice.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(shape, ListOf):
        return Items(tuple(Scalar(part, place) for part in parts), place)
    if isinstance(shape, MapOf):
        members: dict[str, Member] = {}
        for member in (_pair(part, place) for part in parts):
            if members.setdefault(member.key, member) is not member:
                raise Wrong(f'the key "{member.key}" is here a second time', "keep one of them")
        return Table(tuple(members.values()), place)
    return Scalar(text, place)


def _pair(part: str, place: Place) -> Member:
    key, equals, value = part.partition("=")
    if not equals:
        raise Wrong(f'"{part}" has no "="', "write key=value, and commas between several")
    return Member(key.strip(), place, Scalar(value.strip(), place))
