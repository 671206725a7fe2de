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
    from nodeagent.agent.tell.in_force import InForce
    from nodeagent.model.status import Status

HINT = "make its directory writable, or choose another with --status-socket"


async def serve_status(path: str, status: Callable[[], Status]) -> None:
    """Serve the Status until cancelled. :raises KernelRefused: if the socket cannot be had."""
    await jsonserver.serve(path, status, _status_document, HINT)


async def serve_snapshot(status_path: str, in_force: Callable[[], InForce]) -> None:
    """Serve what is in force beside the status socket. Raises as ``serve_status`` does."""
    await jsonserver.serve(paths.snapshot(status_path), in_force, _in_force_document, HINT)


def _status_document(status: Status) -> dict[str, Any]:
    from nodeagent.model import plain

    return plain.dump(status)


def _in_force_document(value: InForce) -> dict[str, Any]:
    from nodeagent.agent.tell import in_force_json

    return in_force_json.dump(value)
