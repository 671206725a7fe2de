# SPDX-License-Identifier: Apache-2.0
"""Shows the effective settings: key, value, where it comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nodeagent.render.answers import SettingAnswer, SettingsAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.config import Value

HEAD = ("SETTING", "VALUE", "FROM")
WIDEST = 48  # characters; a longer value pushes only its own source aside


def text(values: Iterable[Value]) -> str:
    """Aligned columns, one setting per line; lists, maps and texts with blanks as JSON."""
    rows = [HEAD, *map(_row, values)]
    widths = [min(WIDEST, max(len(row[column]) for row in rows)) for column in (0, 1)]
    lines = [f"{key:{widths[0]}}  {value:{widths[1]}}  {source}" for key, value, source in rows]
    return "\n".join(lines)


def answer(values: Iterable[Value], warnings: Iterable[str]) -> SettingsAnswer:
    """The same for programs; and what is odd, in whole lines."""
    return SettingsAnswer(
        {item.key: SettingAnswer(item.value, item.source) for item in values}, tuple(warnings)
    )


def _row(item: Value) -> tuple[str, str, str]:
    return item.key, _word(item.value), item.source


def _word(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False)
