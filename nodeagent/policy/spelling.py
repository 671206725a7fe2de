# SPDX-License-Identifier: Apache-2.0
"""Offers the nearest right word for one that nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that offers the nearest right word, or else all of them."""
    import difflib  # here: needed for mistakes only, and the start is counted in milliseconds

    words = list(known)
    lowered = {candidate.lower(): candidate for candidate in words}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{lowered[close[0]]}"?'
    return f"known here: {', '.join(words)}"
