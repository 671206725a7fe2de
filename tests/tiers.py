# SPDX-License-Identifier: Apache-2.0
"""What the runners of the real tiers share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def chosen(arguments: Iterable[str], tier: Path) -> list[str]:
    """What pytest is to run besides its arguments: the whole tier, unless they name a path."""
    return [] if any(_is_path(argument) for argument in arguments) else [str(tier)]


def _is_path(argument: str) -> bool:
    try:
        return Path(argument.partition("::")[0]).exists()
    except OSError:  # a long expression after -k is no file name
        return False
