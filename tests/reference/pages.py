# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation whose tables are generated: the text between two marks is replaced."""

from __future__ import annotations


def renewed(text: str, mark: str, body: str) -> str:
    """The page ``text`` with ``body`` between ``<!-- mark: begin -->`` and ``<!-- mark: end -->``.

    :raises ValueError: if a mark is missing.
    """
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page needs the marks {begin} and {end}")
    return f"{before}{begin}\n{body}{end}{after}"


def cell(text: str) -> str:
    """The text as it may stand in a table."""
    return text.replace("|", "\\|")
