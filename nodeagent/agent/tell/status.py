# SPDX-License-Identifier: Apache-2.0
"""Asks each component for its share of the Status, and joins them: the one value that all faces render.

Two sockets answer each connection with one JSON document, to root and our own user alone: the Status, and
beside it what the daemon decides from; a third takes requests by hand. The values are frozen: they are taken
on the event loop, and written out in a thread, with code that is loaded at the first question.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints, runtime_checkable

import anyio

from nodeagent import __version__
from nodeagent.agent import tell
from nodeagent.agent.core import Core
from nodeagent.agent.desk import Desk
from nodeagent.base import jsonserver, process
from nodeagent.base.supervise import Component, Task
from nodeagent.model.shares import ProcessShare, Shares, SupervisorShare, WatchesShare, joined
from nodeagent.model.status import ProcessStatus, Status

if TYPE_CHECKING:
    from nodeagent.config import Value
    from nodeagent.model.snapshot import Snapshot
    from nodeagent.model.status import Status
    from nodeagent.policy.offer.matches import Match

    Told = tuple[Snapshot, Mapping[str, Match], tuple[Value, ...], tuple[str, ...]]
    """The fields of a Basis."""


HINT = "or choose another place with --status-socket"


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


async def serve_status(path: str, status: Callable[[], Status], limit: float) -> None:
    """Serve the Status until cancelled. ``limit``: seconds for a client to read it.

    :raises KernelRefused: if the socket cannot be had.
    """
    await jsonserver.serve(path, status, _status_document, HINT, limit)


async def serve_snapshot(status_path: str, in_force: Callable[[], Told], limit: float) -> None:
    """Serve what is in force beside the status socket. Raises as ``serve_status`` does."""
    await jsonserver.serve(tell.snapshot_socket(status_path), in_force, _basis_document, HINT, limit)


async def serve_requests(status_path: str, desk: Desk, limit: float) -> None:
    """Serve what is asked for by hand beside the status socket. Raises as ``serve_status`` does."""
    await jsonserver.answer(tell.request_socket(status_path), desk.reply, HINT, limit)


def _status_document(status: Status) -> dict[str, Any]:
    from nodeagent.model import plain

    return plain.dump(status)


def _basis_document(in_force: Told) -> dict[str, Any]:
    from nodeagent.agent.tell import basis

    return basis.dump(basis.Basis(*in_force))


def sockets(core: Core, teller: Teller) -> Sequence[Component]:
    """One component for each socket; both at the path that the settings say at the start."""
    path, limit = core.root.path(core.settings.get().status.socket), core.timeouts.local_socket_answer
    return (
        Task("status socket", partial(serve_status, path, teller.status, limit)),
        Task("snapshot socket", partial(serve_snapshot, path, partial(_in_force, core), limit)),
        Task("request socket", partial(serve_requests, path, core.desk, limit)),
    )


def _in_force(core: Core) -> Told:
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
