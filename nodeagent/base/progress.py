# SPDX-License-Identifier: Apache-2.0
"""Whether work goes on: who owes the same step at several looks in a row stands still. Pure.

Looks are counted, and no time is: between two looks the event loop has turned, so whoever could go on had the
chance to. After a pause of the whole process nobody stands still because of it. What is no debt is decided by
those who owe: waiting for the kubelet, for a person or for an event is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

LOOKS = 2  # more, after the first that sees a debt


class Debt(NamedTuple):
    """What is to be done, in words, and the step from which it is: another value means that it goes on."""

    step: object
    what: str


@runtime_checkable
class Owes(Protocol):
    """Who has to go on, and can tell whether it did."""

    def owed(self) -> Mapping[str, Debt]:
        """The debts of now, by the name of who owes; without an entry nothing is to be done."""
        ...


class Progress:
    """Remembers since how many looks each debt is the same."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Debt, int]] = {}

    def look(self, owed: Mapping[str, Debt]) -> Mapping[str, str]:
        """Look once more; who stands still, and what is not done."""
        before, self._seen = self._seen, {}
        for name, debt in owed.items():
            old, looks = before.get(name, (None, 0))
            self._seen[name] = (debt, looks + 1 if old is not None and old.step == debt.step else 0)
        return {name: debt.what for name, (debt, looks) in self._seen.items() if looks >= LOOKS}
