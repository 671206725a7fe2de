# SPDX-License-Identifier: Apache-2.0
"""What is written in one turn goes out in one piece, and nothing is lost at the end."""

from __future__ import annotations

import asyncio

import anyio.lowlevel
import pytest

from nodeagent.kubelet.grpc.connection import JoinedWrites


class Wire(asyncio.Transport):
    """A transport that keeps the pieces it is given; an empty one is its end."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.pieces.append(b"")

    def is_closing(self) -> bool:
        return b"" in self.pieces


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def test_what_one_turn_writes_is_one_piece_in_order(wire: Wire) -> None:
    joined = JoinedWrites(wire)
    for part in (b"head ", b"body ", b"tail"):
        joined.write(part)
    assert wire.pieces == []
    await anyio.lowlevel.checkpoint()
    joined.write(b"next")
    await anyio.lowlevel.checkpoint()
    assert wire.pieces == [b"head body tail", b"next"]


async def test_what_was_written_before_the_end_is_sent_before_it(wire: Wire) -> None:
    joined = JoinedWrites(wire)
    joined.write(b"goodbye")
    joined.close()
    assert joined.is_closing()
    await anyio.lowlevel.checkpoint()
    assert wire.pieces == [b"goodbye", b""]


async def test_what_is_written_after_the_end_is_dropped(wire: Wire) -> None:
    joined = JoinedWrites(wire)
    joined.close()
    joined.write(b"too late")
    await anyio.lowlevel.checkpoint()
    assert wire.pieces == [b""]
