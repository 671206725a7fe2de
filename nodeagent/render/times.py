# SPDX-License-Identifier: Apache-2.0
"""How long something is, for people: the two largest units that say something."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """``61.4`` as "1 min 1 s"; what is below a second is "0 s"."""
    rest, parts = int(seconds), list[str]()
    for length, unit in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "0 s"
