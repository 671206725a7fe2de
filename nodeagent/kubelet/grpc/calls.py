# SPDX-License-Identifier: Apache-2.0
"""The RPCs that one server runs at this moment, and how they are brought to an end.

Each RPC runs in a cancel scope of its own: a scope that is cancelled lets the method return, so that
grpclib still sends the trailers, where a cancelled task would leave the peer waiting. Knows no socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import anyio
from anyio import CancelScope
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol

from nodeagent.base.latest import Latest

PEER_PATIENCE = 1.0  # seconds for a peer to close its connection after its stream has ended
ANSWER_PATIENCE = 0.05  # seconds for an answer to be read: grpclib's client drops it at a GOAWAY
CLOSE_LIMIT = 1.0  # seconds for cancelled calls to end


class Calls:
    """The RPCs of one server: each runs in a scope of its own, so that it can be ended kindly."""

    def __init__(self) -> None:
        self.unary: set[CancelScope] = set()
        self.streams: set[CancelScope] = set()
        self.connections: set[H2Protocol] = set()
        self.closing = False
        self._streamed = False
        self._progress = Latest(None)

    def guarded(self, handler: Handler) -> Handler:
        """The same method, counted, refused while closing, and ended by ``drain``."""
        streaming = handler.cardinality.server_streaming
        running = self.streams if streaming else self.unary

        async def call(stream: Any) -> None:
            if self.closing:
                raise GRPCError(Status.UNAVAILABLE, "the server is stopping")
            self._streamed |= streaming
            with CancelScope() as scope, self._counted(scope, running), _no_compression():
                await handler.func(stream)
            if scope.cancelled_caught and not streaming:
                raise GRPCError(Status.UNAVAILABLE, "the server has stopped")

        return handler._replace(func=call)

    async def drain(self, grace: float) -> None:
        """Let unary RPCs end, then end all, then let the peers close their connections.

        The kubelet closes the connection when its ListAndWatch stream has ended, and has forgotten
        the old registration by then; a new one that comes earlier may be taken for the old
        (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, 1.36).
        """
        answering = bool(self.unary)
        await self._until_empty(self.unary, grace)
        for scope in (*self.unary, *self.streams):
            scope.cancel()
        await self._until_empty(self.unary, CLOSE_LIMIT)
        await self._until_empty(self.streams, CLOSE_LIMIT)
        if self._streamed or answering:
            patience = PEER_PATIENCE if self._streamed else ANSWER_PATIENCE
            await self._until_empty(self.connections, patience)

    def moved(self) -> None:
        """Wake those who wait for something to end."""
        self._progress.touch()

    @contextlib.contextmanager
    def _counted(self, scope: CancelScope, running: set[CancelScope]) -> Iterator[None]:
        running.add(scope)
        try:
            yield
        finally:
            running.discard(scope)
            self.moved()

    async def _until_empty(self, waited: Collection[object], seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while waited:
                await self._progress.newer(self._progress.version)


@contextlib.contextmanager
def _no_compression() -> Iterator[None]:
    """Turn grpclib's complaint about a compressed request into the answer that gRPC wants."""
    try:
        yield
    except NotImplementedError as error:
        if str(error) != "Compression not implemented":
            raise
        raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported") from error
