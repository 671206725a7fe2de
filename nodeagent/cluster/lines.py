# SPDX-License-Identifier: Apache-2.0
"""Lines out of the pieces of a stream, each up to a limit. Pure: does no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.cluster.refusals import TooLarge


class Lines:
    """What has come of a stream and is no whole line yet; never more than the limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """All lines that end in the piece, without their ends and without empty ones.

        :raises TooLarge: if one is longer than the limit; the stream is of no use after that.
        """
        *ended, rest = piece.split(b"\n")
        for end in ended:
            self._add(end)
            line = b"".join(self._begun)
            self._begun, self._size = [], 0
            if line:
                yield line
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            raise TooLarge("an event of the API server", self._most)
        if part:
            self._begun.append(part)
