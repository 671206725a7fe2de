# SPDX-License-Identifier: Apache-2.0
"""Basis: the inputs of a running daemon's decisions, and its settings, for the command line.

From the daemon's Snapshot and remembered matches, the commands ``scan``, ``explain`` and ``plan`` compute the
same decisions as the daemon, by the same code.
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
    """``matched``: the matches of the daemon's last Decision, by device, set or node.

    A whole Match is kept, because its rule and its mdev type say more than the resource name.
    """

    snapshot: Snapshot
    matched: Mapping[str, Match]
    values: tuple[Value, ...]
    warnings: tuple[str, ...]


def dump(basis: Basis) -> dict[str, Any]:
    """Return the Basis as plain data."""
    return {"format": FORMAT, **plain.dump(basis)}


def load(data: Any) -> Basis:
    """Return the Basis of this plain data. :raises ConfigError: if the data is no Basis."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(f"the daemon's answer is not in the format {FORMAT}")
    try:
        return plain.load(Basis, data)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the daemon's answer cannot be read: {error}") from error
