# SPDX-License-Identifier: Apache-2.0
"""Basis: what a running daemon decides from, and the settings that it goes by, for its command line.

With the same Snapshot and the same memory of what was matched, ``scan``, ``explain`` and ``plan`` come to
the daemon's own verdicts in a process of their own: nothing is decided twice in different ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.config.records import Value
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer.matches import Match


class Basis(NamedTuple):
    """``matched`` is what the daemon remembers of its last Decision: part of the host → its Match.

    A Match goes whole: its rule and the type of an mdev at that time say more than the resource's name.
    """

    snapshot: Snapshot
    matched: Mapping[str, Match]
    values: tuple[Value, ...]
    warnings: tuple[str, ...]
