# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the configuration: gathered, so that a person sees all of it at once.

Every problem is two lines: where and what, then what to do. ``Wrong`` is raised by a check that knows
the value but not where it stands; who knows the place turns it into a ``ConfigError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nodeagent.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Place(NamedTuple):
    """Where a person wrote a thing: ``full`` for errors, ``short`` for tables ("config.yaml:12")."""

    full: str
    short: str


class Wrong(Exception):
    """Raised by a check of one value; never leaves this package."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class ConfigErrors(ConfigError):
    """Raised when several things are wrong: ``what`` and ``hint`` are the first's, ``errors`` all."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors[0].what, self.errors[0].hint)

    def lines(self) -> str:
        """Two lines for each error."""
        return "\n".join(error.lines() for error in self.errors)


def more(error: ConfigError) -> str:
    """How many errors a line that has room for one leaves out, and who shows them."""
    count = len(error.errors) - 1 if isinstance(error, ConfigErrors) else 0
    return f"; {count} more: nodeagent status lists all" if count else ""


class Problems:
    """The problems found so far, in the order in which they were found."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def add(self, place: Place | str, key: str, what: str, hint: str) -> None:
        """Note a problem with ``key`` at a place; both may be empty."""
        where = place if isinstance(place, str) else place.full
        words = [part for part in (where, key, what) if part]
        self.errors.append(ConfigError(": ".join(words), hint))

    def add_error(self, error: ConfigError) -> None:
        """Note a problem that already has its two lines."""
        self.errors.append(error)

    def raise_any(self) -> None:
        """Raise what was gathered: nothing, a ConfigError, or ConfigErrors."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ConfigErrors(self.errors)
