# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cli.golden``: write all golden pages again."""

from __future__ import annotations

from tests.cli.golden import pages


def main() -> None:
    """Write each page."""
    for name, page in pages.PAGES.items():
        pages.path(name).write_text(page())


main()
