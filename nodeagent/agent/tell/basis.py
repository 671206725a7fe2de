# SPDX-License-Identifier: Apache-2.0
"""Basis: what a running daemon decides from, and the settings that it goes by, for its command line.

With the same Snapshot and the same memory of what was matched, ``scan``, ``explain`` and ``plan`` come to
the daemon's own verdicts in a process of their own: nothing is decided twice in different ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base.errors import ConfigError
from nodeagent.config import Value
from nodeagent.model import plain
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer.matches import Match

FORMAT = "nodeagent-snapshot/v1"


class Basis(NamedTuple):
    """``matched`` is what the daemon remembers of its last Decision: part of the host → its Match.

    A Match goes whole: its rule and the type of an mdev at that time say more than the resource's name.
    """

    snapshot: Snapshot
    matched: Mapping[str, Match]
    values: tuple[Value, ...]
    warnings: tuple[str, ...]


def dump(basis: Basis) -> dict[str, Any]:
    """Return the plain data."""
    return {"format": FORMAT, **plain.dump(basis)}


def load(data: Any) -> Basis:
    """Return the Basis of plain data. :raises ConfigError: if it is none."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(f"its answer is not of the format {FORMAT}")
    try:
        return plain.load(Basis, data)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"its answer cannot be read: {error}") from error
