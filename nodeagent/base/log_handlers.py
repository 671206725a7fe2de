# SPDX-License-Identifier: Apache-2.0
"""Writes log lines to journald with fields, or to stderr as text or JSON lines.

``auto`` chooses journald if stderr is the journal (``JOURNAL_STREAM``, systemd.exec(5)), text on a terminal,
and otherwise JSON, which log collectors of containers parse. Under systemd, a line that journald does not
accept goes to stderr with its ``<N>`` priority prefix (sd-daemon(3)). Lines of libraries are written in the
same way, but only from level warning.

The daemon's lines pass through a queue to a writer thread, so that a slow or dead log reader blocks
nothing. Lines that do not fit into the queue are lost and counted. A filter suppresses lines that repeat
too often.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import queue
import socket
import time
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING, Any, TextIO

from nodeagent.base import hints, log
from nodeagent.base.systemd import is_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JOURNAL = "/run/systemd/journal/socket"
PREFIX = "NODEAGENT_"  # prefix of nodeagent's fields in the journal, which many services share
WAITING = 5000  # lines in the queue; some MiB
REPEATED = 20  # lines of one kind and subject before further ones are suppressed
_LONGEST = 48 * 1024  # most bytes of a journal field; a datagram can have some 200 KB (SO_SNDBUF)

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CONNECTIONS = "a client may have too many open connections to nodeagent"


class LogQueue(QueueHandler):
    """The daemon's log handler: a queue whose lines a thread writes."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(waiting)
        self._listener = QueueListener(self._lines)
        self._lost = 0
        super().__init__(self._lines)
        self._listener.start()

    def write_to(self, handler: logging.Handler) -> None:
        """Write the queued and all later lines to this handler."""
        before, self._listener.handlers = self._listener.handlers, (handler,)
        for old in before:
            old.close()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record unchanged: the writing handler formats it."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the line; if the queue is full, drop it, and report the number of lost lines later."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._lost += 1
        if self._lost and self._lines.qsize() * 2 < self._lines.maxsize:
            lost, self._lost = self._lost, 0
            log.event(log.LINES_LOST, count=lost)

    def finish(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until all lines are written; return True if they are."""
        with self._lines.all_tasks_done:
            return self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, seconds)


def setup(
    style: str,
    level: str,
    environ: Mapping[str, str],
    stream: TextIO,
    repeated_log_lines: float,
    path: str = JOURNAL,
    clock: Callable[[], float] = time.monotonic,
    lines: LogQueue | None = None,
) -> None:
    """Configure all logging of this process; may be called again with other settings.

    ``style`` is auto, journald, json or text; ``level`` debug, info, warning or error; ``stream`` is stderr;
    ``repeated_log_lines``: seconds for which repeated lines are suppressed; ``path`` is journald's socket;
    ``clock`` returns seconds; ``lines`` is the queue to use, None to write immediately. Libraries always log
    from level warning, independent of ``level``.
    """
    # a line that a handler cannot write is lost, since there is no other place for the error
    logging.raiseExceptions = False
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.name == log.LOGGER]:
        root.removeHandler(old)
        old.filters.clear()
        if old is not lines:
            old.close()
    output = _output(style, environ, stream, path)
    handler: logging.Handler = output
    if lines is not None:
        lines.write_to(output)
        handler = lines
    handler.name = log.LOGGER
    handler.addFilter(RepeatFilter(repeated_log_lines, clock))
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, _LEVELS[level]))
    logging.getLogger(log.LOGGER).setLevel(_LEVELS[level])


def chosen(style: str, environ: Mapping[str, str], stream: TextIO) -> str:
    """Return the style that ``auto`` selects: journald, text or json; any other style is returned
    unchanged.
    """
    if style != "auto":
        return style
    if is_journal(environ, stream):
        return "journald"
    return "text" if stream.isatty() else "json"


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that an event loop reports (``set_exception_handler``); for a failed accept only one line.

    If no file descriptor is free, asyncio tries 128 times in a row to accept, repeats that after a second,
    and reports each time with a traceback (CPython, ``BaseSelectorEventLoop._accept_connection``).
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _SHORTAGES and "socket" in context:
        hint = hints.for_errno(error, "listen", _CONNECTIONS)
        log.event(log.NO_DESCRIPTORS, error=hints.strerror(error), hint=hint)
    else:
        loop.default_exception_handler(context)


class RepeatFilter(logging.Filter):
    """Suppresses further lines after ``REPEATED`` lines of one kind and subject."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        # → time of the first line, number of lines since
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written; an extra line announces suppression."""
        kind, fields = _event(record)
        if kind in (log.LINES_SUPPRESSED, log.LINES_LOST):
            return True
        now = self._clock()
        while self._counts and now - next(iter(self._counts.values()))[0] >= self._seconds:
            del self._counts[next(iter(self._counts))]  # remove the oldest entry
        name, subject = (record.name, str(record.msg)) if kind is None else (kind.name, kind.subject(fields))
        most = REPEATED if kind is None or kind.most is None else kind.most
        start, count = self._counts.get((name, subject), (now, 0))
        self._counts[name, subject] = (start, count + 1)
        if count == most:
            seconds = f"{self._seconds:g}"
            log.event(log.LINES_SUPPRESSED, kind=name, subject=subject or name, seconds=seconds)
        return count < most


def _output(style: str, environ: Mapping[str, str], stream: TextIO, path: str) -> logging.Handler:
    chosen_style = chosen(style, environ, stream)
    output = logging.StreamHandler(stream)
    output.setFormatter(_Json() if chosen_style == "json" else _Text(prefixed=is_journal(environ, stream)))
    return _Journald(path, output) if chosen_style == "journald" else output


class _Text(logging.Formatter):
    """Formats a record as one line; a traceback follows on lines of its own."""

    def __init__(self, *, prefixed: bool) -> None:
        super().__init__()
        self._prefixed = prefixed

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        if self._prefixed:
            head = f"<{_priority(record)}>"
        else:
            head = f"{_stamp(record)} {record.levelname.lower()}: "
        lines = [_one_line(record.getMessage()), *_traceback(record).splitlines()]
        return "\n".join(f"{head}{line}" for line in lines)


class _Json(logging.Formatter):
    """Formats a record as one line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        kind, fields = _event(record)
        known = {"time": _stamp(record), "level": record.levelname.lower(), "message": record.getMessage()}
        source = {"logger": record.name} if kind is None else {"event": kind.name}
        trace = _traceback(record)
        return json.dumps(known | source | fields | ({"exception": trace} if trace else {}))


class _Journald(logging.Handler):
    """Writes to journald with its native protocol: a datagram of fields per record (JOURNAL_NATIVE_PROTOCOL).

    Never blocks: ``otherwise`` handles a record that journald does not accept. The socket is not connected,
    so a restarted journald receives the next record.
    """

    def __init__(self, path: str, otherwise: logging.Handler) -> None:
        super().__init__()
        self._path = path
        self._otherwise = otherwise
        self._socket: socket.socket | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record."""
        try:
            data = b"".join(
                _journal_field(name, each)
                for name, value in _journal_fields(record).items()
                for each in (value if isinstance(value, tuple) else (str(value),))
            )
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.sendto(data, self._path)
        except OSError:
            self._otherwise.emit(record)
        except Exception:  # noqa: BLE001 - as handlers of the standard library: the program goes on
            self.handleError(record)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        super().close()


def _journal_fields(record: logging.LogRecord) -> dict[str, log.Value]:
    """Return the journal fields of a record; nodeagent's have a prefix: NODEAGENT_EVENT=,
    NODEAGENT_RESOURCE=.
    """
    kind, fields = _event(record)
    message = "\n".join(part for part in (record.getMessage(), _traceback(record)) if part)
    known: dict[str, log.Value] = {
        "MESSAGE": message,
        "PRIORITY": _priority(record),
        "SYSLOG_IDENTIFIER": "nodeagent",
    }
    if kind is None:
        return known | {f"{PREFIX}LOGGER": record.name}
    named = {f"{PREFIX}{name.upper()}": value for name, value in fields.items()}
    return known | {"MESSAGE_ID": kind.id, f"{PREFIX}EVENT": kind.name} | named


def _journal_field(name: str, value: str) -> bytes:
    """Return ``KEY=value``, or for a value with line ends the binary form with a length."""
    data = value.encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def _event(record: logging.LogRecord) -> tuple[log.Event | None, dict[str, log.Value]]:
    return getattr(record, "event", None), getattr(record, "fields", {})


def _priority(record: logging.LogRecord) -> int:
    """Return the syslog priority for a record's level."""
    below = [level for level in _PRIORITY if level <= record.levelno]
    return _PRIORITY[max(below, default=logging.DEBUG)]


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
