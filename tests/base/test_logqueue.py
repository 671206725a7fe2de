# SPDX-License-Identifier: Apache-2.0
"""Lines for a reader that is slow: written in their order by a thread, and lost in the end, but counted."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from nodeagent.base import log, log_handlers
from nodeagent.base.log_handlers import LogQueue

ROOM = 10


class Gate(logging.Handler):
    """Writes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.opened = threading.Event(), threading.Event()
        self.written: list[str] = []
        self.threads: set[threading.Thread] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Wait, and note the line."""
        self.begun.set()
        self.opened.wait()
        self.written.append(record.getMessage())
        self.threads.add(threading.current_thread())


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Closed until it is opened; open at the end, whatever happens."""
    found = Gate()
    yield found
    found.opened.set()


def put(lines: LogQueue, text: object) -> None:
    lines.handle(logging.LogRecord("x", logging.INFO, "", 0, str(text), (), None))


def test_lines_are_written_in_their_order_by_a_thread_of_their_own(gate: Gate) -> None:
    lines = LogQueue()
    lines.write_to(gate)
    for number in range(100):
        put(lines, number)
    assert gate.written == []
    gate.opened.set()
    assert lines.finish(10)
    assert gate.written == [str(number) for number in range(100)]
    assert threading.current_thread() not in gate.threads


def test_the_end_does_not_wait_for_a_reader_that_hangs(gate: Gate) -> None:
    lines = LogQueue()
    lines.write_to(gate)
    put(lines, "x")
    assert not lines.finish(0.01)
    gate.opened.set()
    assert lines.finish(10)


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
    lines = LogQueue(ROOM)
    log_handlers.setup("json", "info", {}, writer, 60.0, lines=lines)
    total = 5000  # more than a pipe holds
    for number in range(total):
        log.event(log.RESOURCE_REGISTERED, resource=f"example.com/{number}", devices=1)
    said: list[str] = []
    while not lines.finish(0):
        said.append(reader.readline())
    log.event(log.RESOURCE_REGISTERED, resource="example.com/last", devices=1)
    assert lines.finish(10)
    writer.close()
    found = [json.loads(line) for line in (*said, *reader)]
    lost = [line["count"] for line in found if line["event"] == "lines-lost"]
    assert sum(lost) == total + 1 - (len(found) - len(lost)) > 0
