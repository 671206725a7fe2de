# SPDX-License-Identifier: Apache-2.0
"""Where log lines go: to journald with fields, or to stderr as text or JSON lines.

``auto`` asks whether stderr is the journal (``JOURNAL_STREAM``, systemd.exec(5)), else whether it is a
terminal, else takes JSON: a container's log is read by machines. Below systemd a record that journald
does not take goes to stderr with the ``<N>`` prefix of its priority (sd-daemon(3)). Loggers of
libraries come through the same way, from warnings up. The daemon's lines wait for their reader in a queue
(``logqueue``), so that it never has to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from nodeagent.base import log, lograte
from nodeagent.base.journalstream import is_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.base.journald import Journal
    from nodeagent.base.logqueue import LogQueue

JOURNAL = "/run/systemd/journal/socket"
PREFIX = "NODEAGENT_"  # of our own fields in the journal, which many services share

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup(
    style: str,
    level: str,
    environ: Mapping[str, str],
    stream: TextIO,
    repeated_log_lines: float,
    socket: str = JOURNAL,
    clock: Callable[[], float] = time.monotonic,
    lines: LogQueue | None = None,
) -> None:
    """Send all logging of this process to one place; may be called again with other settings.

    ``style`` is auto, journald, json or text; ``level`` debug, info, warning or error; ``stream`` is
    stderr; ``repeated_log_lines``: seconds for which repeated lines are counted; ``socket`` is journald's;
    ``clock`` tells seconds; ``lines`` wait there, else each is written at once. Libraries log from warnings
    up, whatever the level.
    """
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Sink)]:
        root.removeHandler(old)
        old.put(old.close)
    sink = _sink(style, environ, stream, socket)
    sink.guard = _Guard(repeated_log_lines, clock, lines)
    sink.put = _at_once if lines is None else lines.put
    sink.addFilter(sink.guard.admits)
    root.addHandler(sink)
    root.setLevel(max(logging.WARNING, _LEVELS[level]))
    logging.getLogger(log.LOGGER).setLevel(_LEVELS[level])


def chosen(style: str, environ: Mapping[str, str], stream: TextIO) -> str:
    """The style that ``auto`` comes to: journald, text or json; any other is what it is."""
    if style != "auto":
        return style
    if is_journal(environ, stream):
        return "journald"
    return "text" if stream.isatty() else "json"


def _sink(style: str, environ: Mapping[str, str], stream: TextIO, socket: str) -> _Sink:
    picked = chosen(style, environ, stream)
    if picked == "json":
        return _Json(stream)
    plain = _Text(stream, prefixed=is_journal(environ, stream))
    if picked == "text":
        return plain
    from nodeagent.base import journald  # here: a container's log goes elsewhere

    return _Journald(journald.Journal(socket), plain)


def tell_left_out() -> None:
    """Say what was left out in the times that are over; to be called now and then."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Sink):
            handler.guard.tell()


class _Guard:
    """Lets no kind of line flood the log; says how many it has left out, and how many nobody has read."""

    def __init__(self, seconds: float, clock: Callable[[], float], lines: LogQueue | None) -> None:
        self._clock = clock
        self._lines = lines
        self._limiter: lograte.Limiter[tuple[str, str]] = lograte.Limiter(seconds)

    def tell(self) -> None:
        """Say what was lost, and what was left out in the times that are over."""
        if self._lines is not None and (lost := self._lines.take_lost()):
            log.event(log.LINES_LOST, count=lost)
        for (kind, what), count, seconds in self._limiter.over(self._clock()):
            log.event(log.LINES_LEFT_OUT, kind=kind, what=what or kind, count=count, seconds=f"{seconds:g}")

    def admits(self, record: logging.LogRecord) -> bool:
        """True if the record is to be written."""
        kind, fields = _event(record)
        if kind in (log.LINES_LEFT_OUT, log.LINES_LOST):
            return True
        self.tell()
        key = (record.name, str(record.msg)) if kind is None else (kind.name, kind.same(fields))
        return self._limiter.admits(key, self._clock(), None if kind is None else kind.most)


def _at_once(write: Callable[[], None]) -> None:
    write()


class _Sink(logging.Handler, ABC):
    """Marks the handlers that ``setup`` made; ``put`` calls what writes a line, now or in its turn."""

    guard: _Guard
    put: Callable[[Callable[[], None]], None]

    def emit(self, record: logging.LogRecord) -> None:
        """Have the record written."""
        self.put(self.line(record))

    @abstractmethod
    def line(self, record: logging.LogRecord) -> Callable[[], None]:
        """What writes the record; it may block."""


class _Text(_Sink):
    """One line per record; a traceback follows in lines of its own."""

    def __init__(self, stream: TextIO, *, prefixed: bool) -> None:
        super().__init__()
        self._stream = stream
        self._prefixed = prefixed

    def line(self, record: logging.LogRecord) -> Callable[[], None]:
        """What writes the record."""
        return partial(self._write, self._text(record))

    def _text(self, record: logging.LogRecord) -> str:
        head = self._head(record)
        lines = [_one_line(record.getMessage()), *_traceback(record).splitlines()]
        return "".join(f"{head}{line}\n" for line in lines)

    def _head(self, record: logging.LogRecord) -> str:
        if self._prefixed:
            return f"<{_priority(record)}>"
        return f"{_stamp(record)} {record.levelname.lower()}: "

    def _write(self, text: str) -> None:
        """A stream that is gone costs the line, not the program: there is no place left to say it."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


class _Json(_Text):
    """One JSON object per line."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, prefixed=False)

    def _text(self, record: logging.LogRecord) -> str:
        return f"{json.dumps(_as_json(record))}\n"


class _Journald(_Sink):
    """Native records; what journald does not take goes to stderr."""

    def __init__(self, journal: Journal, otherwise: _Text) -> None:
        super().__init__()
        self._journal = journal
        self._otherwise = otherwise

    def line(self, record: logging.LogRecord) -> Callable[[], None]:
        """What sends the record, or writes it to stderr."""
        return partial(self._send, _as_fields(record), self._otherwise.line(record))

    def _send(self, fields: Mapping[str, log.Value], otherwise: Callable[[], None]) -> None:
        if not self._journal.send(fields):
            otherwise()

    def close(self) -> None:
        """Give the socket back."""
        self._journal.close()
        super().close()


def _as_fields(record: logging.LogRecord) -> dict[str, log.Value]:
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


def _as_json(record: logging.LogRecord) -> dict[str, Any]:
    kind, fields = _event(record)
    known = {"time": _stamp(record), "level": record.levelname.lower(), "message": record.getMessage()}
    source = {"logger": record.name} if kind is None else {"event": kind.name}
    trace = _traceback(record)
    return known | source | fields | ({"exception": trace} if trace else {})


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
    if not record.exc_info:
        return ""
    return logging.Formatter().formatException(record.exc_info)


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
