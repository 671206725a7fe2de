# SPDX-License-Identifier: Apache-2.0
"""Assert the facts in a text of the product (addresses, drivers, pods, numbers), not its wording."""

from __future__ import annotations

import re
from collections.abc import Iterable


def names(text: str | None, *facts: object) -> None:
    """Assert that the text contains each fact as a whole word: 1 is not in "0000:01:00.0"."""
    for fact in facts:
        assert contains(text, fact), f"{fact!s} is not named in: {text}"


def each_names(texts: Iterable[str], *rows: tuple[object, ...]) -> None:
    """Assert that there are as many texts as rows, and that each text contains the facts of its row."""
    found = list(texts)
    assert len(found) == len(rows), found
    for text, row in zip(found, rows, strict=True):
        names(text, *row)


def contains(text: str | None, *facts: object) -> bool:
    """Return whether the text contains each fact, with no part of a longer word or number at its ends."""
    return all(re.search(_bounded(str(fact)), text or "") for fact in facts)


def _bounded(fact: str) -> str:
    before = r"(?<![\w.:-])" if re.match(r"\w", fact) else ""
    after = r"(?![\w-]|[.:]\w)" if re.search(r"\w$", fact) else ""
    return f"{before}{re.escape(fact)}{after}"
