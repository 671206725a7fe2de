# SPDX-License-Identifier: Apache-2.0
"""The reference of settings for ``docs/configuration.md``, made from the table.

``python -m nodeagent.config.reference docs/configuration.md`` writes it between its two marks; a test
fails when the page and the table differ.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

from nodeagent.base import pages
from nodeagent.config import selectors, table
from nodeagent.config.shapes import ListOf, Record, snake
from nodeagent.model.spec import CdiRule, NodeRule, PciRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nodeagent.config.shapes import Key

_MODELS: Mapping[str, Callable[..., object]] = {
    "resource": PciRule,
    "device node": NodeRule,
    "CDI kind": CdiRule,
}
"""What is made of a record, where more than its own maker has a part in that."""


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
        if setting.obsolete:
            continue
        default = json.dumps(table.shown(setting.shape, setting.default))
        words = pages.cell(setting.shape.words)
        yield f"| `{setting.key}` | {words} | `{default}` | {_ways(setting)} | {_meaning(setting)} |"


def _ways(setting: table.Setting) -> str:
    if setting.flag is None:
        return "file only"
    return f"`{setting.env}`, `{setting.flag}`"


def _meaning(setting: table.Setting) -> str:
    return pages.cell(setting.help) + table.note(setting, "; **", "**")


def _records() -> Iterator[str]:
    roots = (
        ("resources[]", selectors.RESOURCE),
        ("mdevs.types[]", table.TYPE),
        ("mdevs.nodes[]", table.MDEV_NODE),
        ("passthrough[]", table.PASSTHROUGH),
        ("sriov[]", table.SRIOV),
    )
    shown: set[str] = set()
    for title, record in (nested for root in roots for nested in _nested(*root)):
        if record.words in shown:
            continue
        shown.add(record.words)
        yield f"\nKeys of `{title}`:\n\n| key | value | default | meaning |\n|---|---|---|---|"
        for key in record.keys:
            words = pages.cell(key.shape.words)
            yield f"| `{key.name}` | {words} | {_default(record, key)} | {pages.cell(key.help)} |"


def _default(record: Record, key: Key) -> str:
    """What holds without the key: the default of the field that it fills, if that says anything."""
    if key.required:
        return "required"
    value = _defaults(_MODELS.get(record.words, record.make)).get(key.field or snake(key.name))
    return "" if value in (None, "") else f"`{json.dumps(table.shown(key.shape, value))}`"


def _defaults(model: Callable[..., object]) -> dict[str, Any]:
    parameters = inspect.signature(model).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _nested(title: str, record: Record) -> Iterator[tuple[str, Record]]:
    yield title, record
    for key in record.keys:
        inner, mark = (key.shape.of, "[]") if isinstance(key.shape, ListOf) else (key.shape, "")
        if isinstance(inner, Record):
            yield from _nested(f"{title}.{key.name}{mark}", inner)


if __name__ == "__main__":
    pages.renew(sys.argv[1:], page)
