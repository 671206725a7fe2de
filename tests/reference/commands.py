# SPDX-License-Identifier: Apache-2.0
"""``docs/commands.md``, the table of ``docs/metrics.md``, and the schemas of all documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.cli import output, parser
from nodeagent.cli.bind import OutcomeAnswer
from nodeagent.cli.check import Readiness
from nodeagent.cli.cluster import ClusterCheck
from nodeagent.cli.config import Settings
from nodeagent.cli.plan import PlanAnswer
from nodeagent.cli.plan_config import DryRun
from nodeagent.model import host_json
from nodeagent.model.host import Host
from nodeagent.model.problem import Problem
from nodeagent.model.status import Status
from nodeagent.policy.explain.cards import CardExplanation
from nodeagent.policy.explain.claims import ClaimExplanation
from nodeagent.policy.explain.devices import DeviceExplanation, DeviceRow
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.machines import VMExplanation
from nodeagent.policy.explain.pods import PodExplanation
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.render.metrics import METRICS
from tests.reference import pages, schemas

KINDS: Mapping[str, type] = {
    "Status": Status,
    "Plan": PlanAnswer,
    "DryRun": DryRun,
    "DeviceExplanation": DeviceExplanation,
    "CardExplanation": CardExplanation,
    "ResourceExplanation": ResourceExplanation,
    "RuleExplanation": RuleExplanation,
    "GroupExplanation": GroupExplanation,
    "PodExplanation": PodExplanation,
    "VMExplanation": VMExplanation,
    "ClaimExplanation": ClaimExplanation,
    "Settings": Settings,
    "ClusterCheck": ClusterCheck,
    "Readiness": Readiness,
    "Outcome": OutcomeAnswer,
}
"""Each kind of document but Host, which ``model.host_json`` writes."""
FOLDER = "schemas"
_MEANINGS = (output.FINE, output.FAILED, output.USAGE, output.WRONG)


def page(text: str) -> str:
    """The page ``text`` with its tables renewed. :raises ValueError: if a mark is missing."""
    return pages.renewed(pages.renewed(text, "commands", commands()), "documents", kinds())


def metrics_page(text: str) -> str:
    """The page ``text`` with the table of metrics renewed. :raises ValueError: if a mark is missing."""
    rows = (
        f"| `{metric.name}` | {metric.type} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {pages.cell(metric.help)} |\n"
        for metric in METRICS
    )
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    return pages.renewed(text, "metrics", "".join((head, *rows)))


def commands() -> str:
    """All commands, and what their exit codes mean, as a Markdown table."""
    rows = (
        f"| `{command.name}` | {pages.cell(command.summary)} "
        f"| {' | '.join(command.codes.get(code, '') for code in _MEANINGS)} |\n"
        for command in parser.COMMANDS
    )
    head = "| command | what it does | 0 | 1 | 2 | 3 |\n|---|---|---|---|---|---|\n"
    return "".join((head, *rows))


def kinds() -> str:
    """All documents as a Markdown table."""
    rows = (f"| `{kind}` | {_first(schema)} | [schema]({_file(kind)}) |\n" for kind, schema in _schemas())
    return "".join(("| kind | what it is | |\n|---|---|---|\n", *rows))


def _first(schema: Mapping[str, Any]) -> str:
    sentence, _, _ = str(schema["description"]).partition(". ")
    return pages.cell(sentence.rstrip("."))


def _file(kind: str) -> str:
    return f"{FOLDER}/{kind}.json"


def _schemas() -> Iterator[tuple[str, Mapping[str, Any]]]:
    host = _host_schema()
    host["properties"]["devices"] = schemas.part(tuple[DeviceRow, ...], host["$defs"])
    host["properties"]["findings"] = schemas.part(tuple[Problem, ...], host["$defs"])
    yield host_json.HEADING["kind"], host
    for kind, record in KINDS.items():
        yield kind, schemas.of(record, output.heading(kind))


def _host_schema() -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    parts = {field.key: schemas.form(field, definitions) for field in host_json.fields()}
    return schemas.document(Host, host_json.HEADING, parts, tuple(parts), definitions)


def files() -> Mapping[str, str]:
    """Path below the folder of the documentation → text, of each schema."""
    return {_file(kind): json.dumps(schema, indent=2) + "\n" for kind, schema in _schemas()}
