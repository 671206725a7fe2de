# SPDX-License-Identifier: Apache-2.0
"""A transport that sends in one piece what is written in one turn of the event loop.

grpclib writes headers, message and trailers one by one; each is a system call, and wakes the peer for a part
of an answer with which it can do nothing. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Gathering(asyncio.Transport):
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
