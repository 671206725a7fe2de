# SPDX-License-Identifier: Apache-2.0
"""What was written, before anybody knows what it means: scalars, lists and tables with their places.

Made from YAML, from environment variables and from flags alike; lives only while settings are read.
A scalar keeps its text: whether ``0300`` is a number is for the setting to say, not for YAML 1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nodeagent.config.problems import Place


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
