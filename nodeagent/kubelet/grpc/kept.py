# SPDX-License-Identifier: Apache-2.0
"""One connection for all calls to a unix socket, for as long as the same socket is there.

To connect costs both sides more than a short call does. A peer that was started anew has made its socket
anew, and from then on nobody asks the old one. A connection on which a call has failed gets no more of them,
and one that nobody uses is closed, at once or after a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from nodeagent.kubelet.grpc.channel import SocketChannel, as_unavailable, closed
from nodeagent.kubelet.grpc.connection import SMALL

Socket = tuple[int, int]
"""Inode and time of birth in ns."""


class _Kept(NamedTuple):
    """A channel, and the socket that was there before it was connected."""

    channel: SocketChannel
    socket: Socket


class KeptChannel:
    """Calls to whoever listens at a path."""

    def __init__(self, path: str, idle: float = 0.0) -> None:
        """``idle``: seconds without a call after which the connection is closed."""
        self._path = path
        self._idle = idle
        self._kept: _Kept | None = None
        self._calls: dict[SocketChannel, int] = {}  # under way
        self._closing: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[SocketChannel]:
        """A connected channel for one call.

        :raises KubeletUnavailable: for all that can go wrong, in the calls made inside as well.
        :raises KubeletAway: if nobody listens.
        """
        with as_unavailable():
            channel = self._present()
            self._calls[channel] = self._calls.get(channel, 0) + 1
            try:
                await channel.__connect__()
                yield channel
            except BaseException:
                self._forget(channel)
                raise
            finally:
                if self._ended(channel):
                    await closed(channel)

    def close(self) -> None:
        """Close the connection, unless a call is under way: with its end."""
        if self._kept is not None:
            self._forget(self._kept.channel)

    def _present(self) -> SocketChannel:
        status = Path(self._path).stat()
        socket = status.st_ino, status.st_mtime_ns
        if self._kept is not None and self._kept.socket != socket:
            self.close()
        if self._kept is None:
            self._kept = _Kept(SocketChannel(self._path, config=SMALL), socket)
        if self._closing is not None:
            self._closing.cancel()
        return self._kept.channel

    def _forget(self, channel: SocketChannel) -> None:
        """No call begins on this one any more."""
        if self._kept is not None and self._kept.channel is channel:
            self._kept = None
        if channel not in self._calls:
            channel.close()

    def _ended(self, channel: SocketChannel) -> bool:
        """A call has ended; True if it was the last one of the channel."""
        self._calls[channel] -= 1
        if self._calls[channel]:
            return False
        del self._calls[channel]
        good = self._kept is not None and self._kept.channel is channel
        if good and self._idle:
            self._closing = asyncio.get_running_loop().call_later(self._idle, self.close)
            return False
        if good:
            self._kept = None
        return True
