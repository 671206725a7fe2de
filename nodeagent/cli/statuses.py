# SPDX-License-Identifier: Apache-2.0
"""``nodeagent status``: asked once, or again and again; what comes of it is printed when it differs."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from nodeagent.cli import daemon_client, output, shell
from nodeagent.model import plain
from nodeagent.model.status import Status
from nodeagent.render import documents, status

if TYPE_CHECKING:
    import argparse


_CLEAR = "\x1b[H\x1b[2J"


def show(options: argparse.Namespace) -> int:
    """Ask the daemon how it is. :raises NodeagentError: if none answers, or not in a way that can be read."""
    return _watch(options) if options.watch else _once(options)


def _once(options: argparse.Namespace) -> int:
    document = daemon_client.status(options, shell.root_of(options))
    output.answer(_formed(options, document))
    return output.WRONG if document.get("problems") else output.FINE


def _watch(options: argparse.Namespace) -> int:
    """Until it is interrupted. :raises NodeagentError: when the daemon is away."""
    before, clear = "", sys.stdout is not None and sys.stdout.isatty()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            document = daemon_client.status(options, shell.root_of(options))
            now = _lasting(document, options)
            if now != before:
                output.answer(f"{_CLEAR if clear else ''}{_formed(options, document)}")
            before = now
            time.sleep(options.timeouts.status_watch)
    return output.FINE


def _lasting(document: Any, options: argparse.Namespace) -> str:
    """What a person would see, but for the first line, which has the time since the start."""
    return status.text(_read(document, options), wide=True).partition("\n")[2]


def _formed(options: argparse.Namespace, document: Any) -> str:
    if options.output in ("json", "yaml") and isinstance(document, dict) and document:
        return output.formed(options.output, {**documents.heading(Status), **document})
    value = _read(document, options)
    if options.output == output.NAME:
        return status.names(value)
    wide = options.output == output.WIDE
    return output.people(status.text(value, wide=wide), wide=wide)


def _read(document: Any, options: argparse.Namespace) -> Status:
    try:
        return plain.load(Status, document)
    except (TypeError, ValueError) as error:
        raise daemon_client.unreadable(error, shell.root_of(options)) from error
