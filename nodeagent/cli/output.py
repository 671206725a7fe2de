# SPDX-License-Identifier: Apache-2.0
"""How answers leave the process: exit codes, the answer on stdout, what there is to say of it on stderr.

Nothing is said before the answer is known: so the error that comes instead of one is two lines alone. A text
for people is folded where a terminal shows it; in a pipe each line stays one, for whoever searches it. What
is asked for as "wide" is folded nowhere.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from nodeagent.base import hints, terminal
from nodeagent.base.errors import NodeagentError

FINE, FAILED, USAGE, WRONG = 0, 1, 2, 3
TEXT, WIDE, NAME = "text", "wide", "name"
FORMS = (TEXT, "json", "yaml")


def answer(text: str, *messages: str) -> int:
    """Print the messages that say anything, then the answer; return the exit code.

    :raises NodeagentError: if standard output is closed, or takes no more.
    :raises BrokenPipeError: if its reader has gone.
    """
    for message in filter(None, messages):
        say(f"nodeagent: {message}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without our signs gets escapes
    _write(text)
    return FINE


def say(message: str, prefix: str = "") -> None:
    """Print lines on stderr, each behind the prefix."""
    for line in people(message, sys.stderr).splitlines():
        print(f"{prefix}{line}", file=sys.stderr)


def people(text: str, stream: TextIO | None = None, *, wide: bool = False) -> str:
    """The text as it goes to people on the stream, which is stdout if none is given."""
    if not wide:
        text = terminal.folded(text, terminal.columns(stream or sys.stdout, os.environ))
    return text.encode("ascii", "backslashreplace").decode() if _is_plain() else text


def _is_plain() -> bool:
    """True in the locale C, which has ASCII alone: Python takes UTF-8 for it (PEP 538 and 540)."""
    named = os.environ.get("LC_ALL") or os.environ.get("LANG") or ""
    return bool(sys.flags.utf8_mode) and "utf" not in named.lower()


def _write(text: str) -> None:
    if (stream := sys.stdout) is None:
        raise NodeagentError("standard output is closed", "send the answer to a file or to /dev/null")
    try:
        print(text, flush=True)  # what goes wrong is noticed here, not when Python exits
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python tries once more at its exit
        if isinstance(error, BrokenPipeError):
            raise
        what = f"the answer cannot be written to standard output: {hints.strerror(error)}"
        raise NodeagentError(what, hints.for_errno(error, "write")) from error


def formed(form: str, document: Mapping[str, Any]) -> str:
    """A document as JSON, or as YAML, as ``-o`` asks for it."""
    text = json.dumps(document, indent=2)
    if form == "json":
        return text
    from nodeagent.config import manifests  # here: few ask for it

    return manifests.written(json.loads(text))  # enumerations are texts now
