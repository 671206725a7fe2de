# SPDX-License-Identifier: Apache-2.0
"""What the writes of these tests are told of what was given."""

from __future__ import annotations

from collections.abc import Collection


def nobody(_: Collection[str]) -> str | None:
    """Nobody has anything."""
    return None
