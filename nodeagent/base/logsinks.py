# SPDX-License-Identifier: Apache-2.0
"""Where log lines go: to journald with fields, or to stderr as text or JSON lines.

``auto`` asks whether stderr is the journal (``JOURNAL_STREAM``, systemd.exec(5)), else whether it is a
terminal, else takes JSON: a container's log is read by machines. Below systemd a record that journald
does not take goes to stderr with the ``<N>`` prefix of its priority (sd-daemon(3)). Loggers of
libraries come through the same way, from warnings up.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, TextIO

from nodeagent.base import log, lograte
from nodeagent.base.journalstream import is_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.base.journald import Journal

JOURNAL = "/run/systemd/journal/socket"
PREFIX = "NODEAGENT_"  # of our own fields in the journal, which many services share

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup(
    style: str,
    level: str,
    environ: Mapping[str, str],
    stream: TextIO,
    socket: str = JOURNAL,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send all logging of this process to one place; may be called again with other settings.

    ``style`` is auto, journald, json or text; ``level`` debug, info, warning or error; ``stream`` is
    stderr; ``socket`` is journald's; ``clock`` tells seconds. Libraries log from warnings up, whatever
    the level.
    """
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Sink)]:
        root.removeHandler(old)
        old.close()
    sink = _sink(style, environ, stream, socket)
    sink.guard = _Guard(clock)
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
    """Lets no kind of line flood the log; says how many it has left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limiter: lograte.Limiter[tuple[str, str]] = lograte.Limiter()

    def tell(self) -> None:
        """Say what was left out in the times that are over."""
        for (kind, what), count, seconds in self._limiter.over(self._clock()):
            log.event(log.LINES_LEFT_OUT, kind=kind, what=what or kind, count=count, seconds=f"{seconds:g}")

    def admits(self, record: logging.LogRecord) -> bool:
        """True if the record is to be written."""
        kind, fields = _event(record)
        if kind is log.LINES_LEFT_OUT:
            return True
        self.tell()
        key = (record.name, str(record.msg)) if kind is None else (kind.name, kind.same(fields))
        return self._limiter.admits(key, self._clock())


class _Sink(logging.Handler):
    """Marks the handlers that ``setup`` made."""

    guard: _Guard


class _Text(_Sink):
    """One line per record; a traceback follows in lines of its own."""

    def __init__(self, stream: TextIO, *, prefixed: bool) -> None:
        super().__init__()
        self._stream = stream
        self._prefixed = prefixed

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; a stream that is gone costs the record, not the program."""
        head = self._head(record)
        lines = [_one_line(record.getMessage()), *_traceback(record).splitlines()]
        try:
            self._stream.write("".join(f"{head}{line}\n" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):
            self.handleError(record)

    def _head(self, record: logging.LogRecord) -> str:
        if self._prefixed:
            return f"<{_priority(record)}>"
        return f"{_stamp(record)} {record.levelname.lower()}: "

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Do nothing: there is no place left to say it."""


class _Json(_Text):
    """One JSON object per line."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, prefixed=False)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        try:
            self._stream.write(f"{json.dumps(_as_json(record))}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.handleError(record)


class _Journald(_Sink):
    """Native records; what journald does not take goes to stderr."""

    def __init__(self, journal: Journal, otherwise: _Text) -> None:
        super().__init__()
        self._journal = journal
        self._otherwise = otherwise

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, or write it to stderr."""
        if not self._journal.send(_as_fields(record)):
            self._otherwise.emit(record)

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
