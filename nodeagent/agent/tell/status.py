# SPDX-License-Identifier: Apache-2.0
"""Asks each component for its share of the Status, and joins them: the one value that all faces render.

Beside it, the Snapshot and the settings in force. ``http`` serves both; they are frozen, so that a thread may
write them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints, runtime_checkable

import anyio

from nodeagent import __version__
from nodeagent.agent.core import Core
from nodeagent.base import process
from nodeagent.model.shares import ProcessShare, Shares, SupervisorShare, WatchesShare, joined
from nodeagent.model.status import ProcessStatus, Status

if TYPE_CHECKING:
    from nodeagent.agent.tell.basis import BasisFields


@runtime_checkable
class Speaks(Protocol):
    """A component that has something to tell."""

    def status(self) -> object:
        """Its share: one of those that ``model.shares`` joins."""
        ...


class Teller:
    """Who can be asked how the daemon is. Made on the event loop, when the daemon begins."""

    def __init__(self, core: Core, components: Sequence[object]) -> None:
        """``components`` are asked each time: what is loaded late is asked by who loads it."""
        self._core = core
        self._components = components
        self._began = anyio.current_time()

    def status(self) -> Status:
        """Everything at this moment."""
        places = _places()
        shares: dict[str, Any] = {places[type(share)]: share for share in (*self._own(), *self._told())}
        return joined(Shares(**shares))

    def _told(self) -> Iterator[object]:
        for component in self._components:
            if isinstance(component, Speaks) and (share := component.status()) is not None:
                yield share

    def _own(self) -> Iterator[object]:
        """What those say of whom nobody but the daemon knows."""
        uptime = round(anyio.current_time() - self._began, 1)
        numbers = ProcessStatus(*process.numbers())
        yield ProcessShare(__version__, os.getpid(), uptime, self._core.root.prefix, numbers)
        yield SupervisorShare(dict(self._core.supervisor.failures))
        yield WatchesShare(self._core.watcher.unwatched, self._core.watcher.has_instance)


@cache
def _places() -> Mapping[type, str]:
    """Type of a share → its place among all."""
    types = get_type_hints(Shares)
    return {types[name]: name for name in Shares._fields}


def in_force(core: Core) -> BasisFields:
    """What the newest Decision was made from; its memory goes with it.

    What only changes of the host depend on is the newest as well: no Decision is made for its sake.
    """
    decision, settings, now = core.offering.one_turn(), core.settings.get(), core.snapshots.now
    snapshot = replace(
        decision.snapshot,
        ledger=now.ledger,
        open=now.open,
        failures=now.failures,
        machine_id=now.machine_id,
    )
    return snapshot, decision.matched, settings.values, settings.warnings
