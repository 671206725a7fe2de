# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain RESOURCE`` prints: how many, who has them, and what cannot be given and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nodeagent.model.host import Kind
from nodeagent.model.resource import Device
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.why import label
from nodeagent.render import rules
from nodeagent.render.answers import ListedAnswer, PossibilityAnswer, ReasonAnswer, ResourceAnswer


class Registration(NamedTuple):
    """Whether the kubelet knows the resource, as the daemon says; None: no daemon was asked."""

    known: bool | None = None
    error: str | None = None


UNASKED = Registration()


def text(explanation: ResourceExplanation, registration: Registration = UNASKED) -> str:
    """The numbers, then the devices by what becomes of them, then the rules."""
    free = explanation.free
    numbers = (
        f"capacity {explanation.capacity}",
        f"allocatable {explanation.allocatable}",
        f"free {'not known: who holds what was not asked' if free is None else len(free)}",
    )
    lines = [f"{explanation.resource.name}  {', '.join(numbers)}"]
    if registration.known is not None:
        lines.append(f"  the kubelet {_known(registration)}")
    for part in (_held(explanation), _unhealthy(explanation), _free(explanation)):
        lines += _below(part)
    for rule in explanation.rules:
        lines += ["", f"  {label(rule.rule)}", *(f"    {line}" for line in rules.lines(rule))]
    if not explanation.rules and explanation.resource.devices:
        lines += ["", "  discovery gives it this name; no rule does"]
    lines += _below(_possible(explanation))
    return "\n".join(lines)


def _known(registration: Registration) -> str:
    error = f": {registration.error}" if registration.error else ""
    return "knows it" if registration.known else f"does not know it{error}"


def _below(lines: Iterator[str]) -> list[str]:
    first, *others = [*lines] or [""]
    return ["", f"  {first}", *(f"    {line}" for line in others)] if first else []


def _held(explanation: ResourceExplanation) -> Iterator[str]:
    by_pod: dict[str, list[str]] = {}
    for device_id, pod in explanation.holders.items():
        by_pod.setdefault(pod, []).append(device_id)
    if by_pod:
        yield f"held: {len(explanation.holders)}"
    yield from (f"{pod} has {_ids(explanation, ids)}" for pod, ids in by_pod.items())


def _ids(explanation: ResourceExplanation, ids: Sequence[str]) -> str:
    """All of them, but shares of a node, which are alike."""
    return rules.few(ids) if explanation.resource.kind is Kind.NODE else ", ".join(ids)


def _unhealthy(explanation: ResourceExplanation) -> Iterator[str]:
    """Devices with the same reason stand together, as shares of a node do."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for device in explanation.unhealthy:
        if device.reason is not None:
            by_reason.setdefault((device.reason.what, device.reason.hint), []).append(device.id)
    if by_reason:
        yield f"cannot be given: {len(explanation.unhealthy)}"
    for (what, hint), ids in by_reason.items():
        yield f"{_ids(explanation, ids)}: {what}"
        if hint:
            yield f"  to do: {hint}"


def _free(explanation: ResourceExplanation) -> Iterator[str]:
    if explanation.free:
        yield f"free: {rules.few(explanation.free)}"


def _possible(explanation: ResourceExplanation) -> Iterator[str]:
    if not explanation.resource.devices:
        yield "nothing on this node is offered by this name" + (
            "; what could be:" if explanation.suggestions else ", and nothing here could be"
        )
    for each in explanation.suggestions:
        yield f"{each.what}: {each.missing}"


def answer(explanation: ResourceExplanation, registration: Registration = UNASKED) -> ResourceAnswer:
    """The same for programs."""
    resource, free = explanation.resource, explanation.free
    return ResourceAnswer(
        resource.name,
        resource.kind,
        explanation.capacity,
        explanation.allocatable,
        None if free is None else len(free),
        registration.known,
        registration.error,
        tuple(listed(device, explanation.holders.get(device.id)) for device in resource.devices),
        tuple(map(rules.answer, explanation.rules)),
        tuple(PossibilityAnswer(*each) for each in explanation.suggestions),
    )


def listed(device: Device, holder: str | None) -> ListedAnswer:
    """A device of a resource for programs."""
    reason = None if device.reason is None else ReasonAnswer(*device.reason)
    return ListedAnswer(device.id, device.healthy, reason, holder)
