# SPDX-License-Identifier: Apache-2.0
"""The table of metrics for ``docs/metrics.md``, made from the table in ``render.metrics``.

``python -m nodeagent.render.reference docs/metrics.md`` writes it between its two marks; a test fails when
the page and the table differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.render.metrics import METRICS

BEGIN = "<!-- metrics: begin -->"
END = "<!-- metrics: end -->"


def page(text: str) -> str:
    """The page ``text`` with the table renewed. :raises ValueError: if a mark is missing."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page needs the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def table() -> str:
    """All metrics as a Markdown table."""
    rows = (
        f"| `{metric.name}` | {metric.type} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {metric.help} |\n"
        for metric in METRICS
    )
    return "".join(("| metric | type | labels | meaning |\n|---|---|---|---|\n", *rows))


def main(arguments: list[str]) -> None:
    """Renew the pages that are named."""
    for name in arguments:
        path = Path(name)
        path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
