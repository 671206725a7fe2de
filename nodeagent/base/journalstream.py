# SPDX-License-Identifier: Apache-2.0
"""Whether a stream is the one that systemd connected to the journal. Loads nothing: each verb may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """True if the stream is the one that systemd connected to the journal, not one put in its place."""
    wanted = environ.get("JOURNAL_STREAM")
    if not wanted:
        return False
    try:
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{stat.st_dev}:{stat.st_ino}"
