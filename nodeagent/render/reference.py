# SPDX-License-Identifier: Apache-2.0
"""The table of metrics for ``docs/metrics.md``, made from the table in ``render.metrics``.

``python -m nodeagent.render.reference docs/metrics.md`` writes it between its two marks; a test fails when
the page and the table differ.
"""

from __future__ import annotations

import sys

from nodeagent.base import pages
from nodeagent.render.metrics import METRICS


def page(text: str) -> str:
    """The page ``text`` with the table renewed. :raises ValueError: if a mark is missing."""
    return pages.renewed(text, "metrics", table())


def table() -> str:
    """All metrics as a Markdown table."""
    rows = (
        f"| `{metric.name}` | {metric.type} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {pages.cell(metric.help)} |\n"
        for metric in METRICS
    )
    return "".join(("| metric | type | labels | meaning |\n|---|---|---|---|\n", *rows))


if __name__ == "__main__":
    pages.renew(sys.argv[1:], page)
