# SPDX-License-Identifier: Apache-2.0
"""Lines for a reader that is slow: written in their order by another, and lost in the end, but counted."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import TextIO

import pytest

from nodeagent.base import log, logqueue, logsinks

ROOM = 10


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until it is set; open at the end, whatever happens."""
    found = threading.Event()
    yield found
    found.set()


def test_lines_are_written_in_their_order_by_a_thread_of_their_own(gate: threading.Event) -> None:
    written: list[tuple[int, str]] = []

    def write(number: int) -> None:
        written.append((number, threading.current_thread().name))

    lines = logqueue.LogQueue()
    lines.put(gate.wait)
    for number in range(100):
        lines.put(partial(write, number))
    assert written == []
    gate.set()
    assert lines.finish(10)
    assert written == [(number, "nodeagent, log") for number in range(100)]


def test_a_line_that_cannot_be_written_is_lost_and_no_other_is() -> None:
    lines, written = logqueue.LogQueue(), list[int]()
    lines.put(partial(os.stat, "no such file"))
    lines.put(partial(written.append, 1))
    assert lines.finish(5)
    assert (written, lines.take_lost()) == ([1], 1)


def test_who_ends_does_not_wait_for_a_reader_that_hangs(gate: threading.Event) -> None:
    lines = logqueue.LogQueue()
    lines.put(gate.wait)
    assert not lines.finish(0.01)
    gate.set()
    assert lines.finish(10)


def test_what_does_not_fit_is_lost_and_counted_once_there_is_room_again(gate: threading.Event) -> None:
    lines, begun = logqueue.LogQueue(ROOM), threading.Event()
    written: list[int] = []

    def hang() -> None:
        begun.set()
        gate.wait()

    lines.put(hang)
    begun.wait(10)
    for number in range(ROOM + 7):
        lines.put(partial(written.append, number))
    assert lines.take_lost() == 0, "it would not fit itself"
    gate.set()
    assert lines.finish(10)
    assert (written, lines.take_lost(), lines.take_lost()) == (list(range(ROOM)), 7, 0)


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    """The end that is read, and the end that is logged to; all of the process's logging as it was."""
    ends = os.pipe()
    root, ours = logging.getLogger(), logging.getLogger(log.LOGGER)
    before = (list(root.handlers), root.level, ours.level)
    with os.fdopen(ends[0]) as reader, os.fdopen(ends[1], "w") as writer:
        yield reader, writer
    root.handlers[:], root.level, ours.level = before


def test_a_log_that_was_not_read_says_how_much_of_it_is_lost(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    lines = logqueue.LogQueue(ROOM)
    logsinks.setup("json", "info", {}, writer, 60.0, lines=lines)
    total = 5000  # more than a pipe holds
    for number in range(total):
        log.event(log.RESOURCE_REGISTERED, resource=f"example.com/{number}", devices=1)
    said: list[str] = []
    while not lines.finish(0):
        said.append(reader.readline())
    logsinks.tell_left_out()
    assert lines.finish(10)
    writer.close()
    found = [json.loads(line) for line in (*said, *reader)]
    lost = [line["count"] for line in found if line["event"] == "lines-lost"]
    assert sum(lost) == total - (len(found) - len(lost)) > 0
