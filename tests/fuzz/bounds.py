# SPDX-License-Identifier: Apache-2.0
"""What may be spent on one input, and what may not be said meanwhile.

Time is that of the processor, so a machine that others load changes nothing: some for anything, and then so
much for each byte. In what is asynchronous both ends run on one loop, so it bounds for how long that stands
still. What asyncio and grpclib log as an error was raised where nobody caught it.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ANYTHING = 0.5  # seconds
A_BYTE = 30e-6  # seconds; PyYAML's scanner in Python is the slowest of all
HANGING = 20  # seconds of any clock, after which an input is given up
MEMORY = 48 * 1024  # KiB by which the process may grow at its highest: what is read may be 1 MiB
_FOREIGN = ("asyncio", "grpclib")  # what they log as an error nobody has caught


class Unbounded(Exception):
    """Raised when an input costs more than it may."""


class Escaped(Exception):
    """Raised when an error came out where nobody caught it, or is none of those that are declared."""


class _Errors(logging.Handler):
    """Keeps what foreign libraries log as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        self.said.append(logging.Formatter().format(record))


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """The handling of an input of so many bytes. :raises Unbounded, Escaped: if it is not as it must be."""
    errors = _Errors()
    loggers = [logging.getLogger(name) for name in _FOREIGN]
    for logger in loggers:
        logger.addHandler(errors)
        logger.propagate = False
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(HANGING)
    began, small = time.process_time(), _mark()
    try:
        yield
        spent, allowed = time.process_time() - began, ANYTHING + size * A_BYTE
        grown = _size("VmHWM") - small
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for logger in loggers:
            logger.removeHandler(errors)
    if errors.said:
        raise Escaped("\n".join(errors.said))
    if spent > allowed:
        raise Unbounded(f"{spent:.1f} s for {size} bytes, of {allowed:.1f} s")
    if grown > MEMORY:
        raise Unbounded(f"{grown / 1024:.0f} MiB for {size} bytes")


def _give_up(number: int, frame: FrameType | None) -> None:
    raise Unbounded(f"not done after {HANGING} s")


def _mark() -> int:
    """The highest point begins anew (proc_pid_clear_refs(5)); how large the process is, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _size("VmRSS")


def _size(what: str) -> int:
    """KiB."""
    found = re.search(rf"^{what}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
