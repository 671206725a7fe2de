# SPDX-License-Identifier: Apache-2.0
"""The two sockets by which the daemon tells of itself: its Status, and beside that what it decides from.

Both answer each connection with one JSON document, to root and our own user alone. The values are frozen:
they are taken on the event loop, and written out in a thread, with code that is loaded at the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nodeagent.agent import tell
from nodeagent.agent.core import Core
from nodeagent.agent.tell.status import Teller
from nodeagent.base import jsonserver
from nodeagent.base.supervise import Component, Task

if TYPE_CHECKING:
    from nodeagent.config import Value
    from nodeagent.model.snapshot import Snapshot
    from nodeagent.model.status import Status
    from nodeagent.policy.offer.matches import Match

    Told = tuple[Snapshot, Mapping[str, Match], tuple[Value, ...], tuple[str, ...]]
    """The fields of a Basis."""

HINT = "make its directory writable, or choose another with --status-socket"


async def serve_status(path: str, status: Callable[[], Status]) -> None:
    """Serve the Status until cancelled. :raises KernelRefused: if the socket cannot be had."""
    await jsonserver.serve(path, status, _status_document, HINT)


async def serve_snapshot(status_path: str, in_force: Callable[[], Told]) -> None:
    """Serve what is in force beside the status socket. Raises as ``serve_status`` does."""
    await jsonserver.serve(tell.snapshot_socket(status_path), in_force, _basis_document, HINT)


def _status_document(status: Status) -> dict[str, Any]:
    from nodeagent.model import plain

    return plain.dump(status)


def _basis_document(in_force: Told) -> dict[str, Any]:
    from nodeagent.agent.tell import basis

    return basis.dump(basis.Basis(*in_force))


def of(core: Core, teller: Teller) -> Sequence[Component]:
    """One component for each socket; both at the path that the settings say at the start."""
    path = core.root.path(core.settings.get().status.socket)
    return (
        Task("status socket", partial(serve_status, path, teller.status)),
        Task("snapshot socket", partial(serve_snapshot, path, partial(_in_force, core))),
    )


def _in_force(core: Core) -> Told:
    """What the newest Decision was made from; its memory goes with it."""
    decision, settings = core.offering.one_turn(), core.settings.get()
    return decision.snapshot, decision.matched, settings.values, settings.warnings
