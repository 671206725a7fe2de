# SPDX-License-Identifier: Apache-2.0
"""What is known of one kind of object, and whether the API server still tells: the cell that others read.

The objects of the last good answer stay, whatever comes after. The log gets a line when the server stops and
when it goes on, and one more for each other cause that a person has to remove. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import anyio

from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.cluster.session import Object


@dataclass(frozen=True, slots=True)
class Known:
    """``objects`` by ``namespace/name``; None: there was no answer yet.

    ``answers``: whether they are those of the cluster now; None: nobody has tried yet. It is so ``since``
    (the loop's clock) and ``at`` (seconds since 1970). ``error`` and ``hint`` say why, if they are not.
    """

    objects: Mapping[str, Object] | None = None
    answers: bool | None = None
    since: float = 0.0
    at: float = 0.0
    error: str = ""
    hint: str = ""


class Contact:
    """The one writer of the cell. ``what``: the plural that people read; ``clock``: seconds since 1970."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self.known: Latest[Known] = Latest(Known())
        self._what = what
        self._clock = clock
        self._said: set[str] = set()  # hints, since it has stopped to answer

    def tell(self, objects: Mapping[str, Object] | None) -> None:
        """These are the objects now."""
        self.known.set(replace(self.known.get(), objects=objects))

    def begun(self) -> None:
        """The first list is here; says nothing about a server that has failed since."""
        if self.known.get().answers is None:
            self._turn(answers=True)

    def held(self) -> None:
        """The server goes on telling."""
        if not self.known.get().answers:
            if self._said:
                log.event(log.CLUSTER_BACK, what=self._what)
                self._said.clear()
            self._turn(answers=True)

    def failed(self, error: ClusterUnavailable) -> None:
        """It does not."""
        if error.hint not in self._said and (error.hint or not self._said):
            log.event(log.CLUSTER_AWAY, what=self._what, error=error.what, hint=error.hint)
            self._said.add(error.hint)
        if self.known.get().answers is not False:
            self._turn(answers=False)
        self.known.set(replace(self.known.get(), error=error.what, hint=error.hint))

    def _turn(self, *, answers: bool) -> None:
        known = self.known.get()
        self.known.set(Known(known.objects, answers, anyio.current_time(), self._clock()))
