# SPDX-License-Identifier: Apache-2.0
"""The reference of settings for ``docs/configuration.md``, made from the records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nodeagent.config import codec
from nodeagent.config.codec import ListOf, Record
from nodeagent.config.settings import SETTINGS
from tests.reference import pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.config.codec import Field, Shape
    from nodeagent.config.settings import Setting


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
    for setting in SETTINGS:
        if setting.obsolete:
            continue
        default = json.dumps(codec.written(setting.shape, setting.default))
        words = pages.cell(setting.shape.words)
        yield f"| `{setting.key}` | {words} | `{default}` | {_ways(setting)} | {_meaning(setting)} |"


def _ways(setting: Setting) -> str:
    if setting.flag is None:
        return "file only"
    return f"`{setting.env}`, `{setting.flag}`"


def _meaning(setting: Setting) -> str:
    return pages.cell(setting.help) + setting.note("; **", "**")


def _records() -> Iterator[str]:
    shown: set[str] = set()
    for title, record in (nested for setting in SETTINGS for nested in _nested(setting.key, setting.shape)):
        if record.name in shown:
            continue
        shown.add(record.name)
        yield f"\nKeys of `{title}`:\n\n| key | value | default | meaning |\n|---|---|---|---|"
        for field in record.fields:
            words = pages.cell(field.shape.words)
            yield f"| `{field.key}` | {words} | {_default(field)} | {pages.cell(field.help)} |"


def _nested(title: str, shape: Shape) -> Iterator[tuple[str, Record]]:
    """Yield the records that a shape holds, each with its place in the file."""
    if isinstance(shape, ListOf):
        yield from _nested(f"{title}[]", shape.of)
    elif isinstance(shape, Record):
        yield title, shape
        for field in shape.fields:
            yield from _nested(f"{title}.{field.key}", field.shape)


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.default in (None, ""):
        return ""
    return f"`{json.dumps(codec.written(field.shape, field.default))}`"
