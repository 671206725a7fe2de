# SPDX-License-Identifier: Apache-2.0
"""The reference of settings for ``docs/configuration.md``, made from the table.

``python -m nodeagent.config.reference docs/configuration.md`` writes it between its two marks; a test
fails when the page and the table differ.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nodeagent.base import pages
from nodeagent.config import selectors, table
from nodeagent.config.shapes import ListOf, Record

if TYPE_CHECKING:
    from collections.abc import Iterator


def page(text: str) -> str:
    """The page ``text`` with the reference renewed.

    :raises ValueError: if a mark is missing.
    """
    return pages.renewed(text, "settings", reference())


def reference() -> str:
    """All settings as Markdown tables, and the keys of rules below them."""
    return "\n".join([*_settings(), *_records()]) + "\n"


def _settings() -> Iterator[str]:
    yield "| key | value | default | flag, variable | meaning |"
    yield "|---|---|---|---|---|"
    for setting in table.SETTINGS:
        default = json.dumps(table.shown(setting.shape, setting.default))
        words = pages.cell(setting.shape.words)
        yield f"| `{setting.key}` | {words} | `{default}` | {_ways(setting)} | {_meaning(setting)} |"


def _ways(setting: table.Setting) -> str:
    if setting.flag is None:
        return "file only"
    return f"`{setting.env}`" + (f", `{setting.flag}`" if setting.supported else "")


def _meaning(setting: table.Setting) -> str:
    return pages.cell(setting.help) + table.note(setting, "; **", "**")


def _records() -> Iterator[str]:
    roots = (
        ("resources[]", selectors.RESOURCE),
        ("mdevs.types[]", table.TYPE),
        ("mdevs.nodes[]", table.MDEV_NODE),
    )
    for title, record in (nested for root in roots for nested in _nested(*root)):
        yield f"\nKeys of `{title}`:\n\n| key | value | meaning |\n|---|---|---|"
        for key in record.keys:
            need = ", required" if key.required else ""
            yield f"| `{key.name}` | {pages.cell(key.shape.words)}{need} | {pages.cell(key.help)} |"


def _nested(title: str, record: Record) -> Iterator[tuple[str, Record]]:
    yield title, record
    for key in record.keys:
        inner, mark = (key.shape.of, "[]") if isinstance(key.shape, ListOf) else (key.shape, "")
        if isinstance(inner, Record):
            yield from _nested(f"{title}.{key.name}{mark}", inner)


if __name__ == "__main__":
    pages.renew(sys.argv[1:], page)
