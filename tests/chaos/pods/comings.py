# SPDX-License-Identifier: Apache-2.0
"""Faults of pods: they are created in bursts, crash, end, are deleted, and are created again."""

from __future__ import annotations

from functools import partial

from tests.chaos.pods.stage import Stage


async def burst(stage: Stage) -> None:
    """Up to three pods, at once or soon after each other."""
    for _ in range(stage.script.chance.randint(1, 3)):
        stage.pod_comes(stage.crowd.wish())
        await stage.script.one_pause(0, 0, 0.1, 0.4)


async def crash_loop(stage: Stage) -> None:
    """A pod whose container crashes again and again."""
    stage.script.meanwhile(partial(stage.crowd.come, stage.crowd.wish(), crashing=True))


async def graceful_end(stage: Stage) -> None:
    """Of one machine."""
    for machine in stage.crowd.one():
        stage.script.meanwhile(stage.crowd.lives.end, machine)


async def forced_deletion(stage: Stage) -> None:
    """Of one machine, and another that asks for the same."""
    for machine in stage.crowd.one():
        stage.script.meanwhile(stage.crowd.lives.end_by_force, machine)
        stage.pod_comes(machine.wants)


async def same_name(stage: Stage) -> None:
    """A machine ends, and another of its name comes."""
    for machine in stage.crowd.one():
        await stage.crowd.lives.end(machine)
        stage.pod_comes(machine.wants, name=machine.pod.name)


async def static_pod(stage: Stage) -> None:
    """The file of a static pod goes and comes again: another of the same name and UID."""
    for machine in stage.crowd.one():
        stage.kubelets.static.add(machine.pod.key)
        await stage.crowd.lives.end(machine)
        stage.pod_comes(machine.wants, name=machine.pod.name, uid=machine.pod.uid)


async def drain(stage: Stage) -> None:
    """All machines are deleted by force, and as many come; some have the same name."""
    for machine in stage.crowd.steady():
        stage.script.meanwhile(stage.crowd.lives.end_by_force, machine)
        stage.pod_comes(machine.wants, name=machine.pod.name if stage.script.perhaps(0.3) else "")
        await stage.script.pause(0, 0.2)
