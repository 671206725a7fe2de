# SPDX-License-Identifier: Apache-2.0
"""Prints the results of commands: the answer on stdout in a format of ``-o``, messages on stderr, the exit
code.

Messages are printed only when the answer is known, so a failed command prints nothing but two lines. A text
is folded to the width of a terminal. In a pipe lines are not folded, so that programs can search them; the
format "wide" is never folded. A JSON document is a record in plain form (``model.plain``), after its
``apiVersion`` and ``kind``; docs/schemas has the schema of each kind.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TextIO

from nodeagent.base import hints, terminal
from nodeagent.base.errors import NodeagentError
from nodeagent.model import plain

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.problem import Problem

FINE, FAILED, USAGE, WRONG = 0, 1, 2, 3
TEXT, WIDE, NAME = "text", "wide", "name"
FORMS = (TEXT, "json", "yaml")
PROBLEMS, NOTES = "problems:", "notes:"


def emit(
    options: argparse.Namespace, kind: str, record: object, text: Callable[[], str], *messages: str
) -> int:
    """Print an answer in the format of ``-o``: ``text``, or ``record`` as a document of this kind.

    Prints the messages first, and returns FINE. Errors are those of ``print_answer``.
    """
    if options.output == TEXT:
        return print_answer(fold_text(text()), *messages)
    return emit_document(options, kind, record, *messages)


def emit_document(options: argparse.Namespace, kind: str, record: object, *messages: str) -> int:
    """Print a record as JSON or YAML; otherwise like ``emit``."""
    return print_answer(format_document(options.output, document(kind, record)), *messages)


def document(kind: str, record: object) -> dict[str, Any]:
    """The plain data of a record, which begins with version and kind."""
    return heading(kind) | plain.dump(record)


def heading(kind: str) -> dict[str, str]:
    """The first keys of a document of this kind."""
    from nodeagent.model.spec import API_VERSION  # here: the daemon prints no document

    return {"apiVersion": API_VERSION, "kind": kind}


def format_document(form: str, document: Mapping[str, Any]) -> str:
    """A document as JSON, or as YAML."""
    text = json.dumps(document, indent=2)
    if form == "json":
        return text
    from nodeagent.config import manifests  # here: few commands print YAML

    return manifests.written(json.loads(text))  # enumerations are texts now


def problem_sections(problems: Sequence[Problem]) -> list[str]:
    """A section of problems and one of notes, if there are any."""
    wrong, notes = ([each for each in problems if each.action_required is kind] for kind in (True, False))
    return problem_section(PROBLEMS, wrong) + problem_section(NOTES, notes)


def problem_section(heading: str, problems: Sequence[Problem]) -> list[str]:
    """The heading and its problems, [] without problems; a hint for several problems follows the last one."""
    lines = ["", heading] if problems else []
    for hint, alike in groupby(problems, lambda problem: problem.hint):
        lines += [f"  {problem.message}" for problem in alike]
        lines += [f"    {line}" for line in f"to do: {hint}".splitlines()] if hint else []
    return lines


def print_answer(text: str, *messages: str) -> int:
    """Print the messages that are not empty, then the answer; return the exit code.

    :raises NodeagentError: if standard output is closed or cannot be written.
    :raises BrokenPipeError: if the reader has closed the pipe.
    """
    for message in filter(None, messages):
        print_message(f"nodeagent: {message}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal lacks become escapes
    _write(text)
    return FINE


def print_message(message: str, prefix: str = "") -> None:
    """Print lines on stderr, each with the prefix."""
    for line in fold_text(message, sys.stderr).splitlines():
        print(f"{prefix}{line}", file=sys.stderr)


def fold_text(text: str, stream: TextIO | None = None, *, wide: bool = False) -> str:
    """Fold the text to the width of the stream; the default is stdout."""
    if not wide:
        text = terminal.fold(text, terminal.find_width(stream or sys.stdout, os.environ))
    return text.encode("ascii", "backslashreplace").decode() if _is_plain() else text


def _is_plain() -> bool:
    """True in the locale C, which only has ASCII; Python itself uses UTF-8 there (PEP 538 and 540)."""
    named = os.environ.get("LC_ALL") or os.environ.get("LANG") or ""
    return bool(sys.flags.utf8_mode) and "utf" not in named.lower()


def _write(text: str) -> None:
    if (stream := sys.stdout) is None:
        raise NodeagentError("standard output is closed", "send the answer to a file or to /dev/null")
    try:
        print(text, flush=True)  # a failure is noticed here, not when Python exits
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python tries once more at its exit
        if isinstance(error, BrokenPipeError):
            raise
        what = f"the answer cannot be written to standard output: {hints.strerror(error)}"
        raise NodeagentError(what, hints.for_errno(error, "write")) from error
