# SPDX-License-Identifier: Apache-2.0
"""One connection, client's or server's, with as few frames and system calls as it can do with.

grpclib writes headers, message and trailers one by one; each is a system call, and wakes the peer for a part
of an answer with which it can do nothing: what is written in one turn of the event loop goes out in one
piece. And it opens windows of 4 MiB, for which three more frames are exchanged at each start: where what
comes in is small, the windows that HTTP/2 begins with will do. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib.config import Configuration
from grpclib.protocol import H2Protocol

SMALL = Configuration(http2_connection_window_size=65_535, http2_stream_window_size=65_535)
"""For connections on which no more than that comes in at once, as a rule: more costs an acknowledgement."""


class JoinedWrites(asyncio.Transport):
    """In front of a connection's transport. Only what grpclib uses is offered."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send at the end of this turn."""
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._send)
        self._pieces.append(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self._send()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was written may be lost."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """True if it is closed, or is being closed."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the connection's transport knows."""
        return self._transport.get_extra_info(name, default)

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))


class Connection(H2Protocol):
    """grpclib's protocol, whose writes are joined."""

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(JoinedWrites(transport))
