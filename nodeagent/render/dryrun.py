# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan --config`` prints: settings, resources, devices, pods that differ; then the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nodeagent import config
from nodeagent.model.change import Plan
from nodeagent.policy.offer.comparison import Comparison, Counted, DeviceChange, Listed
from nodeagent.render import plan as plans
from nodeagent.render.plan_answers import (
    CountedAnswer,
    DeviceChangeAnswer,
    DryRunAnswer,
    ListingAnswer,
    ResourceChangeAnswer,
    SettingChangeAnswer,
)

if TYPE_CHECKING:
    from nodeagent.config import Value

SAME = "nothing changes for the kubelet"


class DryRun(NamedTuple):
    """What a file would change: pairs of old and new settings, what is offered, and what is to be done."""

    file: str
    settings: tuple[tuple[Value, Value], ...]
    comparison: Comparison
    plan: Plan
    managed: bool


def text(told: DryRun) -> str:
    """A paragraph for each that differs; the plan comes last."""
    differs = told.comparison
    parts = (
        ("settings", _settings(told.settings)),
        ("resources", [_resource(*change) for change in differs.resources]),
        ("devices", _devices(differs.devices)),
        ("pods (each keeps what it has until it ends)", _pods(differs)),
    )
    lines = [f"if {told.file} were config.yaml", ""]
    for heading, shown in parts:
        lines += [heading, *(f"  {line}" for line in shown), ""] if shown else []
    if not differs.resources and not differs.devices:
        lines += [SAME, ""]
    return "\n".join([*lines, plans.text(told.plan, told.managed)])


def _settings(pairs: Iterable[tuple[Value, Value]]) -> list[str]:
    return [f"{new.key}{_note(new.key)}" for _, new in pairs]


def _note(key: str) -> str:
    return config.BY_KEY[key].note(" (", ")")


def _resource(name: str, before: Counted | None, after: Counted | None) -> str:
    if before is None:
        return f"+ {name}: {_count(after)}"
    if after is None:
        return f"- {name}: had {_count(before)}"
    return f"  {name}: {_count(before)} -> {_count(after)}"


def _count(counted: Counted | None) -> str:
    if counted is None:
        return "none"
    return f"{counted.devices} device{'s' * (counted.devices != 1)}, {counted.healthy} Healthy"


def _devices(changes: Iterable[DeviceChange]) -> list[str]:
    """Changes that are alike stand together; of many only the first ones are shown."""
    alike: dict[str, list[str]] = {}
    for change in changes:
        alike.setdefault("; ".join(_words(change)), []).append(change.id)
    return [line for words, ids in alike.items() for line in _lines(words, ids)]


def _lines(words: str, ids: list[str]) -> Iterator[str]:
    yield from (f"{each}  {words}" for each in ids[: plans.SHOWN])
    if len(ids) > plans.SHOWN:
        yield f"... and {len(ids) - plans.SHOWN} more like it"


def _words(change: DeviceChange) -> Iterator[str]:
    before, after = change.before, change.after
    if after is None:
        yield f"leaves {before.resource if before else ''}"
        return
    if before is None:
        yield f"comes as {after.resource}"
    elif before.resource != after.resource:
        yield f"{before.resource} -> {after.resource}"
    else:
        yield after.resource
    if after.reason is not None:
        yield f"Unhealthy: {after.reason.what}"
    elif before is not None and before.reason is not None:
        yield "Healthy"


def _pods(differs: Comparison) -> list[str]:
    return [f"{pod}  has {', '.join(ids)}" for pod, ids in differs.pods.items()]


def answer(told: DryRun) -> DryRunAnswer:
    """The same for programs, nothing left out."""
    differs = told.comparison
    return DryRunAnswer(
        told.file,
        tuple(
            SettingChangeAnswer(new.key, old.value, new.value, config.BY_KEY[new.key].note("", ""))
            for old, new in told.settings
        ),
        tuple(
            ResourceChangeAnswer(each.name, _counted(each.before), _counted(each.after))
            for each in differs.resources
        ),
        tuple(map(_device, differs.devices)),
        differs.pods,
        plans.answer(told.plan, told.managed),
    )


def _counted(counted: Counted | None) -> CountedAnswer | None:
    return None if counted is None else CountedAnswer(*counted)


def _device(change: DeviceChange) -> DeviceChangeAnswer:
    holder = None if change.holder is None else str(change.holder)
    return DeviceChangeAnswer(change.id, _listed(change.before), _listed(change.after), holder)


def _listed(listed: Listed | None) -> ListingAnswer | None:
    if listed is None:
        return None
    return ListingAnswer(listed.resource, listed.reason)
