# SPDX-License-Identifier: Apache-2.0
"""The record of the prepared claims on disk. ``agent.core`` loads it before the first device list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base.state import CLAIMS, Section
from nodeagent.model import plain
from nodeagent.model.claim import Claim


class _Record(NamedTuple):
    """The section as a record; a reader of another version skips unknown keys."""

    claims: tuple[Claim, ...] = ()


def _parse(document: dict[str, Any]) -> Mapping[str, Claim]:
    return {claim.ref.uid: claim for claim in plain.load(_Record, document).claims}


def _plain(recorded: Mapping[str, Claim]) -> dict[str, Any]:
    return plain.dump(_Record(tuple(recorded.values())))


SECTION: Section[Mapping[str, Claim]] = Section(
    CLAIMS,
    {},
    _parse,
    _plain,
    "without it the devices of claims would count as free after a restart",
)
