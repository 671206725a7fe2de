# SPDX-License-Identifier: Apache-2.0
"""The table and the texts of ``docs/logs.md``."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator

from nodeagent.base import log
from nodeagent.render import logs
from tests.reference import pages

_WIDTH = 120  # columns of the page


def page(text: str) -> str:
    """The page ``text`` with the reference renewed. :raises ValueError: if a mark is missing."""
    return pages.renewed(text, "events", "\n".join([*_table(), *_meanings()]) + "\n")


def _table() -> Iterator[str]:
    yield "| event | level | MESSAGE | fields | MESSAGE_ID |"
    yield "|---|---|---|---|---|"
    for event in log.catalogue():
        level = logging.getLevelName(event.level).lower()
        fields = " ".join((*dict.fromkeys(event.fields), *(f"({name})" for name in event.also)))
        text = pages.cell(event.text)
        yield f"| [{event.name}](#{event.name}) | {level} | {text} | {fields or '-'} | `{event.id}` |"


def _meanings() -> Iterator[str]:
    for one in logs.explained():
        yield f"\n### {one.event.name}\n"
        yield f"{_plain(one.means)}\n"
        yield _plain(f"*To do:* {one.do}")
        if one.run:
            yield "\n" + "\n".join(f"    {_plain(command)}" for command in one.run)


def _plain(text: str) -> str:
    """The text with the names of fields where the journal has their values."""
    return textwrap.fill(logs.PLACEHOLDER.sub(lambda found: found[1], text), _WIDTH)
