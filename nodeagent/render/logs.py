# SPDX-License-Identifier: Apache-2.0
"""Makes journald's message catalog, which explains the events of the log.

``python -m nodeagent.render.logs catalog FILE`` writes the catalog (systemd: "Journal Message Catalogs");
``journalctl -x`` shows its text below each log line. The catalog and ``docs/logs.md`` are made from
``base.log`` and from ``logs.toml`` beside this file. The daemon loads neither.
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nodeagent.base import log

TEXTS = Path(__file__).with_suffix(".toml")
WIDTH = 76  # columns: journalctl indents each line

PLACEHOLDER = re.compile(r"@NODEAGENT_(\w+)@")
_HEADERS = (
    "Defined-By: nodeagent",
    "Documentation: man:nodeagent(8) file:///usr/share/doc/nodeagent/logs.md.gz",
)


class Explained(NamedTuple):
    """An event with its explanation: the meaning, the fix, and commands for more facts."""

    event: log.Event
    subject: str
    means: str
    do: str
    run: tuple[str, ...]


def explained() -> tuple[Explained, ...]:
    """All events with their explanation, in the order of ``base.log``.

    :raises ValueError: if an event has no text, or a text has no event.
    """
    texts = tomllib.loads(TEXTS.read_text())
    events = log.catalogue()
    if apart := texts.keys() ^ {event.name for event in events}:
        raise ValueError(f"without a text in {TEXTS.name}, or without an event: {sorted(apart)}")
    return tuple(_explained(event, texts[event.name]) for event in events)


def catalog() -> str:
    """The text of the whole catalog."""
    return "\n".join(map(_entry, explained()))


def _explained(event: log.Event, text: Mapping[str, object]) -> Explained:
    run = text.get("run", [])
    assert isinstance(run, list)
    return Explained(event, str(text["subject"]), str(text["means"]), str(text["do"]), tuple(map(str, run)))


def _entry(one: Explained) -> str:
    lines = [f"-- {one.event.id}", f"Subject: {one.subject}", *_HEADERS, ""]
    lines += [textwrap.fill(one.means, WIDTH), "", textwrap.fill(f"To do: {one.do}", WIDTH)]
    if one.run:
        lines += ["", *(f"    {command}" for command in one.run)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Write the catalog to the file in the arguments: ``catalog FILE``."""
    Path(arguments[1]).write_text(catalog())


if __name__ == "__main__":
    main(sys.argv[1:])
