# SPDX-License-Identifier: Apache-2.0
"""What is kept between builds and test runs, below ``$NODEAGENT_CACHE``: made once, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def place(name: str) -> Path:
    """The directory for things of that name."""
    return Path(os.environ.get("NODEAGENT_CACHE") or "~/.cache/nodeagent").expanduser() / name


def made(kept: Path, make: Callable[[Path], object]) -> Path:
    """The directory ``kept``; if it is not there, ``make`` fills an empty one, which takes its place."""
    if not kept.exists():
        making = kept.with_name(f"making-{kept.name}-{os.getpid()}")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        make(making)
        making.rename(kept)
    return kept
