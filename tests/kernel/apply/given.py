# SPDX-License-Identifier: Apache-2.0
"""What the writes of these tests are told of what was given."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.model.action import Move


def nobody(_: Sequence[Move]) -> str | None:
    """Nobody has anything."""
    return None
