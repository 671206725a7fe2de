# SPDX-License-Identifier: Apache-2.0
"""Fields of objects that the API server sent: strict on types, lenient on unknown keys, no text is trusted.

A writer of such an object need not be the operator of this node. So a text is let through only if it is
printable and of a length that a name may have; what is quoted in a message is cut and escaped. What is wrong
is noted and left out, and the rest is read on: no input raises. A list or an entry of a wrong type is noted
apart: it is unknown then what is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeagent.base.errors import on_one_line
from nodeagent.model.problem import Problem, misconfigured

LONGEST = 317  # characters: 253 of a domain, "/" and 63 of a name; types and labels are shorter
_SHOWN = 60  # characters of a foreign text in a message
_WORDS = {dict: "a table", list: "a list", bool: "a truth value", int: "a number", float: "a number"}
_CONTROLS = "remove blanks at line ends and signs that cannot be printed"


class Notes:
    """What was refused so far, in the order in which it was found; ``mistyped``: lists and entries of it."""

    def __init__(self) -> None:
        self.findings: list[Problem] = []
        self.mistyped: list[Problem] = []

    def add(self, place: str, what: str, hint: str) -> None:
        """Note one refusal."""
        self.findings.append(misconfigured(place, what, hint))

    def add_mistyped(self, place: str, value: Any, wanted: str, hint: str) -> None:
        """Note a list or an entry that is of another type than the wanted one."""
        self.add(place, f"it is {shown(value)}, not {wanted}", hint)
        self.mistyped.append(self.findings[-1])


def shown(value: Any) -> str:
    """A foreign value as a message may quote it: cut, on one line, and nothing that a terminal obeys."""
    if not isinstance(value, str):
        return _WORDS.get(type(value), "something else")
    cut = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return f'"{on_one_line(cut)}"' + (f" ({len(value)} characters)" if cut is not value else "")


def table(value: Any) -> dict[Any, Any]:
    """The value, if it is a table; else an empty one."""
    return value if isinstance(value, dict) else {}


def text(entry: dict[Any, Any], key: str, wanted: str, place: str, notes: Notes) -> str | None:
    """Return a required text; None, with a note, if there is none that can be used.

    ``wanted`` names the text for hints.
    """
    value = entry.get(key)
    if value is None or value == "":
        notes.add(place, f"{key} is {'empty' if value == '' else 'missing'}", f"write {wanted}")
    elif not isinstance(value, str):
        notes.add(place, f"{key} is {shown(value)}, not a text", f"write {wanted}, in quotes")
    elif len(value) > LONGEST:
        notes.add(place, f"{key} is too long: {shown(value)}", f"use at most {LONGEST} characters")
    elif not value.isprintable():
        notes.add(place, f"{key} holds signs that cannot be printed: {shown(value)}", _CONTROLS)
    else:
        return value
    return None


def flag(entry: dict[Any, Any], key: str, place: str, notes: Notes) -> tuple[bool, bool | None]:
    """Whether the field can be used, and its value; None if it is not given."""
    value = entry.get(key)
    if value is None or isinstance(value, bool):
        return True, value
    notes.add(place, f"{key} is {shown(value)}, not true or false", "write true or false without quotes")
    return False, None


def items(entry: dict[Any, Any], key: str, place: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    """The members of a list with their places; nothing, with a note, if it is none."""
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
    """The tables in a list with their places; what is none is noted and left out."""
    for where, item in items(entry, key, place, notes):
        if isinstance(item, dict):
            yield where, item
        else:
            notes.add_mistyped(where, item, "a table", "write the keys of the entry")


def texts(entry: dict[Any, Any], key: str, wanted: str, place: str, notes: Notes) -> tuple[str, ...]:
    """The texts in a list; what is none is noted and left out."""
    found: list[str] = []
    for where, item in items(entry, key, place, notes):
        if not isinstance(item, str):
            notes.add_mistyped(where, item, "a text", f"write {wanted}, in quotes")
        elif usable := text({"it": item}, "it", wanted, where, notes):
            found.append(usable)
    return tuple(found)
