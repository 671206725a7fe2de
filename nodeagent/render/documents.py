# SPDX-License-Identifier: Apache-2.0
"""The documents that verbs answer with: which there are, and what each begins with.

Each says its ``apiVersion`` and ``kind``, and is the plain form (``model.plain``) of a record; docs/schemas
has the schema of each. What is in them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.model import plain
from nodeagent.model.problem import Problem
from nodeagent.model.spec import API_VERSION
from nodeagent.model.status import Status
from nodeagent.policy.explain.cards import CardExplanation
from nodeagent.policy.explain.devices import DeviceExplanation, DeviceRow
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.machines import MachineExplanation
from nodeagent.policy.explain.pods import PodExplanation
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.render.answers import (
    AccessAnswer,
    ReadinessAnswer,
    SettingsAnswer,
)
from nodeagent.render.byhand import OutcomeAnswer
from nodeagent.render.plan_answers import DryRunAnswer, PlanAnswer

KINDS: Mapping[str, type] = {
    "Status": Status,
    "Plan": PlanAnswer,
    "DryRun": DryRunAnswer,
    "DeviceExplanation": DeviceExplanation,
    "CardExplanation": CardExplanation,
    "ResourceExplanation": ResourceExplanation,
    "RuleExplanation": RuleExplanation,
    "GroupExplanation": GroupExplanation,
    "PodExplanation": PodExplanation,
    "MachineExplanation": MachineExplanation,
    "Settings": SettingsAnswer,
    "ClusterCheck": AccessAnswer,
    "Readiness": ReadinessAnswer,
    "Outcome": OutcomeAnswer,
}
"""Each kind of document but Host, which ``model.host_json`` writes."""
_NAMES = {record: name for name, record in KINDS.items()}


def heading(record: type) -> dict[str, str]:
    """What the document of such a record begins with."""
    return {"apiVersion": API_VERSION, "kind": _NAMES[record]}


def beside_host(rows: Iterable[DeviceRow], remarks: Iterable[Problem]) -> dict[str, Any]:
    """What ``scan`` adds to a saved host, for which it means nothing: what became of the devices there."""
    return {"fates": list(map(plain.dump, rows)), "remarks": list(map(plain.dump, remarks))}


def document(answer: Any) -> dict[str, Any]:
    """The plain data of one of these records, with its version and kind."""
    return heading(type(answer)) | plain.dump(answer)
