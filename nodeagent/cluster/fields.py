# SPDX-License-Identifier: Apache-2.0
"""Reads fields of untrusted Kubernetes objects: strict about types, lenient about unknown keys.

The author of a Kubernetes object may be another user than the operator of this node. Therefore a text is
accepted only if it is printable and not too long for a name; messages quote it shortened and escaped. An
invalid field is noted and ignored, and the other fields are read; no input raises an exception. Lists and
entries of the wrong type are noted separately, because the content of such a list is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeagent.base.errors import on_one_line
from nodeagent.model.problem import Problem, misconfigured

LONGEST = 317  # characters: 253 of a domain, "/" and 63 of a name; types and labels are shorter
_SHOWN = 60  # characters of an untrusted value in a message
_WORDS = {dict: "a table", list: "a list", bool: "a truth value", int: "a number", float: "a number"}
_CONTROLS = "remove trailing blanks and unprintable characters"


class Notes:
    """The invalid fields in the order of their discovery; ``mistyped`` has the lists and entries of wrong
    type.
    """

    def __init__(self) -> None:
        self.findings: list[Problem] = []
        self.mistyped: list[Problem] = []

    def add(self, place: str, what: str, hint: str) -> None:
        """Note an invalid field."""
        self.findings.append(misconfigured(place, what, hint))

    def add_mistyped(self, place: str, value: Any, wanted: str, hint: str) -> None:
        """Note a list or an entry of another type than expected."""
        self.add(place, f"it is {shown(value)}, not {wanted}", hint)
        self.mistyped.append(self.findings[-1])


def shown(value: Any) -> str:
    """Return an untrusted value for a message: shortened, on one line, without terminal control sequences."""
    if not isinstance(value, str):
        return _WORDS.get(type(value), "something else")
    cut = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return f'"{on_one_line(cut)}"' + (f" ({len(value)} characters)" if cut is not value else "")


def table(value: Any) -> dict[Any, Any]:
    """Return the value if it is a table; else an empty table."""
    return value if isinstance(value, dict) else {}


def text(entry: dict[Any, Any], key: str, wanted: str, place: str, notes: Notes) -> str | None:
    """Return a required text; None, after noting the error, if it is missing or invalid.

    ``wanted`` describes the text in hints.
    """
    value = entry.get(key)
    if value is None or value == "":
        notes.add(place, f"{key} is {'empty' if value == '' else 'missing'}", f"write {wanted}")
    elif not isinstance(value, str):
        notes.add(place, f"{key} is {shown(value)}, not a text", f"write {wanted}, in quotes")
    elif len(value) > LONGEST:
        notes.add(place, f"{key} is too long: {shown(value)}", f"use at most {LONGEST} characters")
    elif not value.isprintable():
        notes.add(place, f"{key} contains unprintable characters: {shown(value)}", _CONTROLS)
    else:
        return value
    return None


def flag(entry: dict[Any, Any], key: str, place: str, notes: Notes) -> tuple[bool, bool | None]:
    """Return True if the field is valid, and its value; the value of a missing field is None."""
    value = entry.get(key)
    if value is None or isinstance(value, bool):
        return True, value
    notes.add(place, f"{key} is {shown(value)}, not true or false", "write true or false without quotes")
    return False, None


def items(entry: dict[Any, Any], key: str, place: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list with their places; note another type, and yield nothing."""
    value = entry.get(key)
    where = f"{place}.{key}" if place else key
    if value is None:
        return
    if not isinstance(value, list):
        notes.add_mistyped(where, value, "a list", "write a list, or remove it")
        return
    for index, item in enumerate(value):
        yield f"{where}[{index}]", item


def tables(entry: dict[Any, Any], key: str, place: str, notes: Notes) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yield the tables in a list with their places; note and skip all other items."""
    for where, item in items(entry, key, place, notes):
        if isinstance(item, dict):
            yield where, item
        else:
            notes.add_mistyped(where, item, "a table", "write the keys of the entry")


def texts(entry: dict[Any, Any], key: str, wanted: str, place: str, notes: Notes) -> tuple[str, ...]:
    """Return the texts in a list; note and skip all other items."""
    found: list[str] = []
    for where, item in items(entry, key, place, notes):
        if not isinstance(item, str):
            notes.add_mistyped(where, item, "a text", f"write {wanted}, in quotes")
        elif usable := text({"it": item}, "it", wanted, where, notes):
            found.append(usable)
    return tuple(found)
