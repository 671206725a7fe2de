# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain vmi`` prints: one machine, the verdict first, then each resource it asks for."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.policy.explain.machines import Ask, MachineExplanation, Prospect

_VERDICTS = {
    Prospect.NOW: "this node can give it now",
    Prospect.LATER: "this node can give it when something is released",
    Prospect.OTHERS: "another device plugin has to give it",
    Prospect.NEVER: "this node cannot give it",
}


_SOURCES = {
    "file": "as --cr has it",
    "api-server": "as the API server has it now",
    "daemon": "as it is in force in the daemon",
    "record": "as a daemon has heard it last",
}


def text(told: MachineExplanation) -> str:
    """The verdict, then what led to it, one line for each thing."""
    asks = told.resources or told.prospect is Prospect.NEVER
    verdict = _VERDICTS[told.prospect] if asks else "it asks for no resource"
    name = "/".join(filter(None, (told.machine.namespace, told.machine.name))) or "without a name"
    lines = [f"{told.machine.kind} {name}  {verdict}"]
    for ask in told.resources:
        lines += ["", *_ask(ask)]
    if told.cr is not None:
        named = f" {told.cr.name}" if told.cr.name else ""
        lines += ["", f"  cr      the KubeVirt CR{named}, {_SOURCES[told.cr.source]}"]
    if told.notes:
        lines += ["", *(f"  note    {note}" for note in told.notes)]
    return "\n".join(lines)


def _ask(ask: Ask) -> Iterator[str]:
    yield f"  {ask.count} x {ask.resource}  {_VERDICTS[ask.prospect]}"
    yield f"    for     {', '.join(f'{device.list} {device.name}'.strip() for device in ask.devices)}"
    yield from (f"    env     {key}={value}" for key, value in ask.env.items())
    for key, words in (("nodes", ask.nodes), ("cdi", ask.cdi)):
        if words:
            yield f"    {key:<7} {' '.join(words)}"
    yield from (f"    why     {line}" for line in ask.why)
