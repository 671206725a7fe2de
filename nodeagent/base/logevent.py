# SPDX-License-Identifier: Apache-2.0
"""An event of the log: its stable name, its fields, its text; and how one is said.

Underneath is the standard library's logging. Which events there are is ``log``'s to say, and where the lines
go ``logsinks``'.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.base.errors import InvariantBroken

Value = str | int | tuple[str, ...]
"""What a field has: one value, or several, each of which can be searched for."""

LOGGER = "nodeagent"
MANY = 16  # values of one field in a line
_FIELD = re.compile(r"{(\w+)}")
_ABOUT = ("resource", "device", "action", "subsystem", "pci_address", "what", "source", "path")


class Event(NamedTuple):
    """One kind of line: stable name and MESSAGE_ID, level, text. The text names the fields that it must have.

    ``also`` names those that it may have. A ``hint`` is what a person can do, and ends the line.
    ``most``: lines of it about the same in a minute, where the usual number is too many.
    """

    name: str
    id: str
    level: int
    text: str
    also: tuple[str, ...] = ()
    most: int | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it must have."""
        return tuple(_FIELD.findall(self.text))

    def same(self, fields: Mapping[str, Value]) -> str:
        """What a line is about: two of one kind that are about the same may be too many."""
        named = " ".join(_words(fields[name]) for name in _ABOUT if name in fields)
        return named or _words(fields.get("text", ""))


def event(kind: Event, bug: BaseException | None = None, /, **given: Value | None) -> None:
    """Say an event; with a ``bug``, an error that nobody foresaw, its traceback follows.

    None leaves a field out, and so does (). :raises InvariantBroken: if the fields are not those of its kind.
    """
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    missing = [name for name in kind.fields if name not in fields]
    foreign = [name for name in fields if name not in kind.fields and name not in kind.also]
    if missing or foreign:
        raise InvariantBroken(f"log event {kind.name}: missing {missing}, foreign {foreign}")
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(kind.level):
        hint = f"; {fields['hint']}" if fields.get("hint") else ""
        said = kind.text.format_map({name: _words(value) for name, value in fields.items()})
        extra = {"event": kind, "fields": fields}
        logger.log(kind.level, "%s", f"{said}{hint}", extra=extra, exc_info=bug)


def _words(value: Value) -> str:
    """What stands in a line; of many values the first, for the field has them all."""
    if not isinstance(value, tuple):
        return str(value)
    left_out = len(value) - MANY
    return ",".join(value[:MANY]) + (f" and {left_out} more" if left_out > 0 else "")
