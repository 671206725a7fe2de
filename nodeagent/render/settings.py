# SPDX-License-Identifier: Apache-2.0
"""Shows the effective settings: key, value, where it comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nodeagent.base.terminal import table
from nodeagent.render.answers import SettingAnswer, SettingsAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.config import Value

HEAD = ("SETTING", "FROM", "VALUE")


def text(values: Iterable[Value]) -> str:
    """Aligned columns, one setting per line; lists, maps and texts with blanks as JSON."""
    return table(HEAD, map(_row, values))


def answer(values: Iterable[Value], warnings: Iterable[str]) -> SettingsAnswer:
    """The same for programs; and what is odd, in whole lines."""
    return SettingsAnswer(
        {item.key: SettingAnswer(item.value, item.source) for item in values}, tuple(warnings)
    )


def _row(item: Value) -> tuple[str, str, str]:
    return item.key, item.source, _word(item.value)


def _word(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False)
