# SPDX-License-Identifier: Apache-2.0
"""The RPCs that one server runs at this moment, and how they are brought to an end.

Each RPC runs in a cancel scope of its own: a scope that is cancelled lets the method return, so that
grpclib still sends the trailers, where a cancelled task would leave the peer waiting. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import anyio
from anyio import CancelScope
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol

from nodeagent.base.latest import Latest

PEER_PATIENCE = 1.0  # seconds for a peer to close its connection after its stream has ended
ANSWER_PATIENCE = 0.05  # seconds for an answer to be read: grpclib's client drops it at a GOAWAY
NO_COMPRESSION = "Compression not implemented"  # grpclib 0.4.9 to a compressed request
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
            scope = CancelScope()
            running.add(scope)
            try:
                with scope:
                    await handler.func(stream)
            except NotImplementedError as error:
                if str(error) != NO_COMPRESSION:
                    raise
                raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported") from error
            finally:
                running.discard(scope)
                self.moved()
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
        """Wake those who wait for something to end: nobody does before the end has begun."""
        if self.closing:
            self._progress.touch()

    async def _until_empty(self, waited: Collection[object], seconds: float) -> None:
        if not waited:
            return
        with anyio.move_on_after(seconds):
            while waited:
                await self._progress.newer(self._progress.version)
