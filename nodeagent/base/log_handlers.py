# SPDX-License-Identifier: Apache-2.0
"""Where log lines go: to journald with fields, or to stderr as text or JSON lines.

``auto`` asks whether stderr is the journal (``JOURNAL_STREAM``, systemd.exec(5)), else whether it is a
terminal, else takes JSON: a container's log is read by programs. Below systemd a record that journald does
not take goes to stderr with the ``<N>`` prefix of its priority (sd-daemon(3)). Loggers of libraries come
through the same way, from warnings up.

The daemon's lines wait in a queue for a thread that writes them, so that a slow or dead reader holds up
nothing: lines that do not fit are lost and counted. A filter in front leaves out lines that repeat too often.
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
PREFIX = "NODEAGENT_"  # of our own fields in the journal, which many services share
WAITING = 5000  # lines in the queue; some MiB
REPEATED = 20  # lines of one kind on one subject until they are left out
_LONGEST = 48 * 1024  # bytes of a journal field: a datagram has room for some 200 KB (SO_SNDBUF)

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CONNECTIONS = "something may have too many connections to nodeagent open"


class LogQueue(QueueHandler):
    """The daemon's handler: lines wait here for the thread that writes them."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(waiting)
        self._listener = QueueListener(self._lines)
        self._lost = 0
        super().__init__(self._lines)
        self._listener.start()

    def write_to(self, handler: logging.Handler) -> None:
        """Write lines there from now on."""
        before, self._listener.handlers = self._listener.handlers, (handler,)
        for old in before:
            old.close()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Leave the record as it is: the handler formats it."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the line; it is lost if there is no room, and counted once there is room again."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._lost += 1
        if self._lost and self._lines.qsize() * 2 < self._lines.maxsize:
            lost, self._lost = self._lost, 0
            log.event(log.LINES_LOST, count=lost)

    def finish(self, seconds: float) -> bool:
        """Wait until all lines are written, but no longer than that; True if they are."""
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
    """Send all logging of this process to one place; may be called again with other settings.

    ``style`` is auto, journald, json or text; ``level`` debug, info, warning or error; ``stream`` is
    stderr; ``repeated_log_lines``: seconds for which repeated lines are left out; ``path`` is journald's;
    ``clock`` tells seconds; ``lines`` wait there, else each is written at once. Libraries log from warnings
    up, whatever the level.
    """
    logging.raiseExceptions = False  # what a handler cannot write is lost: no place is left to report it
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
    """The style that ``auto`` comes to: journald, text or json; any other is returned as it is."""
    if style != "auto":
        return style
    if is_journal(environ, stream):
        return "journald"
    return "text" if stream.isatty() else "json"


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop reports (``set_exception_handler``); a connection not accepted is one line.

    asyncio tries 128 times in a row to accept where no descriptor is left, again after a second, and reports
    each time with a traceback (CPython, ``BaseSelectorEventLoop._accept_connection``).
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _SHORTAGES and "socket" in context:
        hint = hints.for_errno(error, "listen", _CONNECTIONS)
        log.event(log.NO_DESCRIPTORS, error=hints.strerror(error), hint=hint)
    else:
        loop.default_exception_handler(context)


class RepeatFilter(logging.Filter):
    """Lets no kind of line flood the log: after ``REPEATED`` on one subject the next ones are left out."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}  # → time of the first line, lines since

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is to be written. The first one that is not is announced by another line."""
        kind, fields = _event(record)
        if kind in (log.LINES_SUPPRESSED, log.LINES_LOST):
            return True
        now = self._clock()
        while self._counts and now - next(iter(self._counts.values()))[0] >= self._seconds:
            del self._counts[next(iter(self._counts))]  # the oldest
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
    """One line per record; a traceback follows in lines of its own."""

    def __init__(self, *, prefixed: bool) -> None:
        super().__init__()
        self._prefixed = prefixed

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        if self._prefixed:
            head = f"<{_priority(record)}>"
        else:
            head = f"{_stamp(record)} {record.levelname.lower()}: "
        lines = [_one_line(record.getMessage()), *_traceback(record).splitlines()]
        return "\n".join(f"{head}{line}" for line in lines)


class _Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        kind, fields = _event(record)
        known = {"time": _stamp(record), "level": record.levelname.lower(), "message": record.getMessage()}
        source = {"logger": record.name} if kind is None else {"event": kind.name}
        trace = _traceback(record)
        return json.dumps(known | source | fields | ({"exception": trace} if trace else {}))


class _Journald(logging.Handler):
    """journald's native protocol: a datagram of fields per record (systemd, JOURNAL_NATIVE_PROTOCOL).

    Never blocks: what journald does not take goes to ``otherwise``. The socket is not connected, so a
    restarted journald is found again by itself.
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
    """The journal fields of a record; ours have a prefix: NODEAGENT_EVENT=, NODEAGENT_RESOURCE=."""
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
    """``KEY=value``, or a length before a value that has lines."""
    data = value.encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def _event(record: logging.LogRecord) -> tuple[log.Event | None, dict[str, log.Value]]:
    return getattr(record, "event", None), getattr(record, "fields", {})


def _priority(record: logging.LogRecord) -> int:
    """The syslog priority of a record's level."""
    below = [level for level in _PRIORITY if level <= record.levelno]
    return _PRIORITY[max(below, default=logging.DEBUG)]


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
