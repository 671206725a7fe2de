# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer to programs about what there is, as records; their plain form is a contract.

Keys may be added, with a default, and none is renamed. What an answer means stands with what it was made of,
not here. What would change is told by ``plan_answers``, which documents there are by ``documents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.model.access import Check
from nodeagent.model.readiness import ReadinessLine


class SettingAnswer(NamedTuple):
    """A setting in force, and where it comes from."""

    value: Any
    source: str


class SettingsAnswer(NamedTuple):
    """The settings in force, by key, and what is odd with them."""

    settings: Mapping[str, SettingAnswer]
    warnings: tuple[str, ...]


class AccessAnswer(NamedTuple):
    """What the API server lets this node do; ``followed`` is false if the settings follow no cluster."""

    followed: bool
    user: str
    credentials: str
    well: bool
    checks: tuple[Check, ...]


class ReadinessAnswer(NamedTuple):
    """Whether this host can give devices to virtual machines: what was looked at, line by line.

    ``well`` is false if a line is wrong. What is unseen may be either.
    """

    well: bool
    lines: tuple[ReadinessLine, ...]
