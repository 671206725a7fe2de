# SPDX-License-Identifier: Apache-2.0
"""Who wins: the strongest value of each setting, and where it comes from.

Tables of words (aliases, labels) are merged key by key; everything else, lists too, is replaced. A mistake
counts even where another source overrides it. Values are as read: what is made of them is ``loading``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.config import table
from nodeagent.config.problems import Place
from nodeagent.config.reader.reading import BROKEN, Reader, Table
from nodeagent.config.records import Value
from nodeagent.config.shapes import MapOf

if TYPE_CHECKING:
    from nodeagent.config.problems import Problems
    from nodeagent.config.reader.sources import Given

DEFAULT = Place("default", "default")


class Effective:
    """The values so far; sources are taken weakest first."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._reader = Reader(problems)
        self._values: dict[str, Any] = {setting.key: setting.default for setting in table.SETTINGS}
        self._origins: dict[str, tuple[Place, ...]] = {}
        self._members: dict[tuple[str, str], Place] = {}

    def take(self, given: Given) -> None:
        """Read one setting of one source; what is broken leaves the weaker value."""
        setting, key = given.setting, given.setting.key
        value = self._reader.read(setting.shape, given.entry, key)
        if value is BROKEN:
            return
        if isinstance(setting.shape, MapOf):
            self._values[key] = self._values[key] | value
            self._origins[key] = (*self._origins.get(key, ()), given.place)
            if isinstance(given.entry, Table):
                self._members |= {(key, member.key): member.place for member in given.entry.members}
        else:
            self._values[key] = value
            self._origins[key] = (given.place,)

    def value(self, setting: table.Setting) -> Any:
        """The strongest value of a setting, as read."""
        return self._values[setting.key]

    def place(self, key: str) -> Place | None:
        """Where the strongest value of a setting was written; None for a default, or no key of a setting."""
        return self._origins[key][-1] if key in self._origins else None

    def member_place(self, key: str, member: str) -> Place:
        """Where one key of a table of words was written."""
        return self._members[key, member]

    def given(self) -> tuple[Value, ...]:
        """The values that some source has given until now, in table order."""
        return tuple(value for value in self.shown() if value.key in self._origins)

    def shown(self) -> tuple[Value, ...]:
        """All values for people, in table order."""
        return tuple(
            Value(
                setting.key,
                table.shown(setting.shape, self._values[setting.key]),
                ", ".join(place.short for place in self._origins.get(setting.key, (DEFAULT,))),
            )
            for setting in table.SETTINGS
        )
