# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole and at once: a reader finds the old text or the new one, also after a crash.

Knows nothing of what is in them. What was not finished has a name that ends in ``.new``.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: str | Path, text: str) -> None:
    """Write a file for all to read, and its directory if need be. Blocks.

    :raises OSError: if it cannot be written.
    """
    at = Path(path)
    aside = at.with_suffix(".new")
    at.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with aside.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(at)
