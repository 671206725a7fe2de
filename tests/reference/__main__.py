# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.reference``: write the tables of the pages in docs/, and the schemas in docs/schemas."""

from __future__ import annotations

from tests.reference import DOCS, commands, log_events, settings


def main() -> None:
    """Write all of them."""
    pages = {
        "commands.md": commands.page,
        "metrics.md": commands.metrics_page,
        "configuration.md": settings.page,
        "logs.md": log_events.page,
    }
    for name, page in pages.items():
        (DOCS / name).write_text(page((DOCS / name).read_text()))
    for name, text in commands.files().items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
