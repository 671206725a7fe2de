# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain vmi`` prints: one machine, the verdict first, then each resource it asks for."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.kubevirt import UsedCR, VirtualMachine, VmDevice
from nodeagent.policy.explain.machines import Ask, MachineExplanation, Prospect
from nodeagent.render.answers import AskAnswer, CRAnswer, MachineAnswer, MachineName, VmDeviceAnswer

_VERDICTS = {
    Prospect.NOW: "this node can give it now",
    Prospect.LATER: "this node can give it when something is released",
    Prospect.OTHERS: "another device plugin has to give it",
    Prospect.NEVER: "this node cannot give it",
}


NO_CR = UsedCR()
_SOURCES = {
    "file": "as --cr has it",
    "api-server": "as the API server has it now",
    "daemon": "as it is in force in the daemon",
    "record": "as a daemon has heard it last",
}


def text(told: MachineExplanation, used: UsedCR = NO_CR) -> str:
    """The verdict, then what led to it, one line for each thing; ``used``: the CR that it is judged by."""
    verdict = _VERDICTS[told.prospect] if told.asks or told.machine.refused else "it asks for no resource"
    lines = [f"{told.machine.kind} {_name(told.machine)}  {verdict}"]
    for ask in told.asks:
        lines += ["", *_ask(ask)]
    if used.source:
        named = f" {used.name}" if used.name else ""
        lines += ["", f"  cr      the KubeVirt CR{named}, {_SOURCES[used.source]}"]
    if told.notes:
        lines += ["", *(f"  note    {note}" for note in told.notes)]
    return "\n".join(lines)


def _name(machine: VirtualMachine) -> str:
    return "/".join(filter(None, (machine.namespace, machine.name))) or "without a name"


def _ask(ask: Ask) -> Iterator[str]:
    yield f"  {ask.count} x {ask.resource}  {_VERDICTS[ask.prospect]}"
    yield f"    for     {', '.join(map(_device, ask.devices))}"
    yield from (f"    env     {key}={value}" for key, value in ask.grant.envs)
    nodes = (node.path for node in ask.grant.nodes)
    yield from (
        f"    {key:<7} {' '.join(words)}"
        for key, words in (("nodes", [*nodes]), ("cdi", ask.grant.cdi))
        if words
    )
    yield from (f"    why     {line}" for line in ask.why)


def _device(device: VmDevice) -> str:
    return f"{device.listed} {device.name}".strip()


def answer(told: MachineExplanation, used: UsedCR = NO_CR) -> MachineAnswer:
    """The same for programs."""
    machine = told.machine
    return MachineAnswer(
        MachineName(machine.kind, machine.namespace, machine.name),
        told.prospect,
        tuple(map(_ask_answer, told.asks)),
        tuple(told.notes),
        CRAnswer(used.name, used.source) if used.source else None,
    )


def _ask_answer(ask: Ask) -> AskAnswer:
    return AskAnswer(
        ask.resource,
        ask.count,
        ask.prospect,
        tuple(VmDeviceAnswer(device.listed, device.name) for device in ask.devices),
        dict(ask.grant.envs),
        tuple(node.path for node in ask.grant.nodes),
        tuple(ask.grant.cdi),
        tuple(ask.why),
    )
