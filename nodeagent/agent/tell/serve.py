# SPDX-License-Identifier: Apache-2.0
"""The two sockets by which the daemon tells of itself: its Status, and beside that what it decides from.

Both answer each connection with one JSON document, to root and our own user alone. The values are frozen:
they are taken on the event loop, and written out in a thread, with code that is loaded at the first question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nodeagent.agent.tell import paths
from nodeagent.base import jsonserver

if TYPE_CHECKING:
    from nodeagent.agent.tell.basis import Basis
    from nodeagent.model.status import Status

HINT = "make its directory writable, or choose another with --status-socket"


async def serve_status(path: str, status: Callable[[], Status]) -> None:
    """Serve the Status until cancelled. :raises KernelRefused: if the socket cannot be had."""
    await jsonserver.serve(path, status, _status_document, HINT)


async def serve_snapshot(status_path: str, basis: Callable[[], Basis]) -> None:
    """Serve what is in force beside the status socket. Raises as ``serve_status`` does."""
    await jsonserver.serve(paths.snapshot(status_path), basis, _basis_document, HINT)


def _status_document(status: Status) -> dict[str, Any]:
    from nodeagent.model import plain

    return plain.dump(status)


def _basis_document(value: Basis) -> dict[str, Any]:
    from nodeagent.agent.tell import basis_json

    return basis_json.dump(value)
