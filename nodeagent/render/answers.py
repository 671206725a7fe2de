# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer to programs about what there is, as records; their plain form is a contract.

Keys may be added, with a default, and none is renamed. What an answer means stands with what it was made of,
not here. What would change is told by ``plan_answers``, which documents there are by ``documents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nodeagent.model.access import Check
from nodeagent.model.readiness import ReadinessLine


class MachineName(NamedTuple):
    """A virtual machine."""

    kind: str
    namespace: str
    name: str


class CRAnswer(NamedTuple):
    """The KubeVirt CR that a machine is judged by, and where it is from: file, api-server, daemon, record."""

    name: str
    source: str


class VmDeviceAnswer(NamedTuple):
    """A device in the specification of a machine: the list that it stands in, and its name there."""

    list: str
    name: str


@dataclass(frozen=True)  # no tuple: these have a method of the name count
class AskAnswer:
    """A resource that a machine asks for, and what its pod would get of this node."""

    resource: str
    count: int
    prospect: str
    devices: tuple[VmDeviceAnswer, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    cdi: tuple[str, ...]
    why: tuple[str, ...]


class MachineAnswer(NamedTuple):
    """Whether this node can give a machine what it asks for: now, later, others (have to), never."""

    machine: MachineName
    prospect: str
    resources: tuple[AskAnswer, ...]
    notes: tuple[str, ...]
    cr: CRAnswer | None


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
