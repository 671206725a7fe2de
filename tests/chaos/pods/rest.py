# SPDX-License-Identifier: Apache-2.0
"""What must hold when all trouble is over: all that is free is Healthy, and whoever asks for it gets it.
What shares a group with what somebody has is Unhealthy.

It must be so within ``BOUND`` seconds: once while machines run, and once more when all have ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import anyio

from tests.blackbox.harness import eventually
from tests.chaos.pods import outages
from tests.chaos.pods.script import Broken
from tests.chaos.pods.stage import Stage

BOUND = 5.0  # seconds
SETTLING = (
    60.0  # seconds in which what has begun must end: admissions, ends of machines, devices that are away
)
AGAIN = 0.5  # seconds until the owner of a pod that was refused makes another


async def reached(stage: Stage) -> list[float]:
    """The seconds until rest, beside machines and without. :raises Broken: if it is not reached."""
    await _until_trouble_is_over(stage)
    beside = await _all_is_free_that_can_be(stage, "beside machines")
    await _all_end(stage)
    return [beside, await _all_is_free_that_can_be(stage, "all have ended")]


async def _until_trouble_is_over(stage: Stage) -> None:
    for fault in (outages.DELAY, outages.REFUSED):
        stage.kubelets.kubelet.faults.clear(fault)

    def over() -> bool:
        ending = any(machine.ending for machine in stage.crowd.living)
        return stage.kubelets.settled and stage.board.whole and not ending

    stage.script.note("trouble ends")
    await _or_broken(over, "the trouble does not end")


async def _all_end(stage: Stage) -> None:
    for machine in stage.crowd.living:
        stage.script.meanwhile(stage.crowd.lives.end, machine)
    pods = stage.kubelets.kubelet.state.pods
    await _or_broken(lambda: not stage.crowd.living and not pods, "the machines do not end")


async def _or_broken(condition: Callable[[], bool], text: str) -> None:
    try:
        await eventually(condition, SETTLING)
    except TimeoutError as error:
        raise Broken(f"{text} within {SETTLING:.0f} s") from error


async def _all_is_free_that_can_be(stage: Stage, when: str) -> float:
    """It is told, and given; the seconds until it was told."""
    began = time.monotonic()
    stage.script.note(f"rest, {when}")
    if wrong := await _told_wrongly(stage):
        raise Broken(f"{when}: told wrongly after {BOUND:.0f} s: {wrong}\n{await _told(stage)}")
    took = time.monotonic() - began
    stage.script.note(f"all is told as it is after {took:.1f} s")
    for resource in stage.board.free(stage.crowd.owned, stage.script.chance):
        if not await _given(stage, resource, began + BOUND):
            raise Broken(f"{when}: {resource} was refused at rest\n{await _told(stage)}")
    return took


async def _told_wrongly(stage: Stage) -> list[str]:
    """Wait until all is told as it is; what is not so in the end."""

    def wrong() -> list[str]:
        kubelet, owned = stage.kubelets.kubelet, stage.crowd.owned
        again = stage.board.offered_again(kubelet, owned, stage.crowd.had)
        return stage.board.unhealthy(kubelet, owned) + again

    with contextlib.suppress(TimeoutError):
        await stage.kubelets.kubelet.until(lambda: not wrong(), BOUND)
    return wrong()


async def _given(stage: Stage, resource: str, until: float) -> bool:
    """Pods ask for one of it, until one gets it, another pod has the last one, or the time is up."""
    while not await stage.crowd.come({resource: 1}):
        if not stage.board.is_free(resource, stage.crowd.owned):
            return True
        if time.monotonic() > until:
            return False
        await anyio.sleep(AGAIN)
    return True


async def _told(stage: Stage) -> str:
    """What the daemon says of each device that it does not give, and of all holders."""
    status = await stage.board.node.status()
    devices = [device for resource in status["resources"] for device in resource["devices"]]
    lines = [f"{device['id']}: {device.get('message')}" for device in devices if not device["healthy"]]
    return "\n".join(["the daemon says", *lines, f"holders: {status['holders']}"])
