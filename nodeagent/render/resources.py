# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain RESOURCE`` prints: how many, who has them, and what cannot be given and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.model.host import Kind
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.why import label
from nodeagent.render import rules


def text(explanation: ResourceExplanation) -> str:
    """The numbers, then the devices by what becomes of them, then the rules."""
    free = "not known: who holds what was not asked" if explanation.free is None else explanation.free
    numbers = f"capacity {explanation.capacity}, allocatable {explanation.allocatable}, free {free}"
    lines = [f"{explanation.resource}  {numbers}"]
    if explanation.registered is not None:
        error = f": {explanation.registration_error}" if explanation.registration_error else ""
        lines.append(f"  the kubelet {'knows it' if explanation.registered else f'does not know it{error}'}")
    for part in (_held(explanation), _unhealthy(explanation), _free(explanation)):
        lines += _below(part)
    for rule in explanation.rules:
        lines += ["", f"  {label(rule.resource, rule.place)}", *(f"    {line}" for line in rules.lines(rule))]
    if not explanation.rules and explanation.devices:
        lines += ["", "  discovery gives it this name; no rule does"]
    lines += _below(_possible(explanation))
    return "\n".join(lines)


def _below(lines: Iterator[str]) -> list[str]:
    first, *others = [*lines] or [""]
    return ["", f"  {first}", *(f"    {line}" for line in others)] if first else []


def _held(explanation: ResourceExplanation) -> Iterator[str]:
    by_pod: dict[str, list[str]] = {}
    for device in explanation.devices:
        if device.holder is not None:
            by_pod.setdefault(device.holder, []).append(device.id)
    if by_pod:
        yield f"held: {sum(map(len, by_pod.values()))}"
    yield from (f"{pod} has {_ids(explanation, ids)}" for pod, ids in by_pod.items())


def _ids(explanation: ResourceExplanation, ids: Sequence[str]) -> str:
    """All of them, but shares of a node, which are alike."""
    return rules.few(ids) if explanation.device_kind == Kind.NODE else ", ".join(ids)


def _unhealthy(explanation: ResourceExplanation) -> Iterator[str]:
    """Devices with the same reason stand together, as shares of a node do."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for device in explanation.devices:
        if device.reason is not None:
            by_reason.setdefault((device.reason.what, device.reason.hint), []).append(device.id)
    if by_reason:
        yield f"cannot be given: {sum(map(len, by_reason.values()))}"
    for (what, hint), ids in by_reason.items():
        yield f"{_ids(explanation, ids)}: {what}"
        if hint:
            yield f"  to do: {hint}"


def _free(explanation: ResourceExplanation) -> Iterator[str]:
    if explanation.free:
        free = [each.id for each in explanation.devices if each.healthy and each.holder is None]
        yield f"free: {rules.few(free)}"


def _possible(explanation: ResourceExplanation) -> Iterator[str]:
    if not explanation.devices:
        yield "nothing on this node is offered by this name" + (
            "; what could be:" if explanation.possibilities else ", and nothing here could be"
        )
    for each in explanation.possibilities:
        yield f"{each.what}: {each.missing}"
