# SPDX-License-Identifier: Apache-2.0
"""All faults of a run and their frequency; and the faults of devices, which are removed and come back.

A function is pulled out whoever has it: its unbind waits until the holder lets go. A USB device is pulled out
while nobody has it and no pod is being admitted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from tests.chaos.pods import comings, outages
from tests.chaos.pods.machines import Machine
from tests.chaos.pods.stage import Stage
from tests.chaos.pods.sticks import Stick

Trouble = Callable[[Stage], Awaitable[None]]


async def unplugged(stage: Stage) -> None:
    """A function leaves the node, and comes back."""
    address = stage.script.chance.choice(
        [each for each in stage.board.functions if each not in stage.board.away]
    )
    holder = next((machine for machine in stage.crowd.machines if address in machine.open), None)
    stage.script.note(f"{address} is pulled, its holder is {holder}")
    stage.board.pull(address)
    stage.script.meanwhile(_be_away, stage, address, holder)


async def _be_away(stage: Stage, address: str, holder: Machine | None) -> None:
    host = stage.board.node.host
    if holder is not None:
        holder.open.discard(address)
        host.begin_going_away(address)
        await stage.script.one_pause(0.1, 1.0, 3.0)
        host.finish_going_away(address)
    host.unplug(address)
    await stage.script.one_pause(0.3, 1.5, 4.0)
    host.plug(address)
    await anyio.sleep(0.05)
    stage.board.plug(address)
    stage.script.note(f"{address} is back")


async def stick_pulled(stage: Stage) -> None:
    """A USB device leaves the node, and comes back with another number."""
    owned = stage.crowd.owned
    free = [stick for stick in stage.board.sticks.all if stick.number and stick.unit not in owned]
    if free and not stage.kubelets.admitting:
        stick = stage.script.chance.choice(free)
        stage.script.note(f"{stick.unit} is pulled")
        stage.board.sticks.pull(stick)
        stage.script.meanwhile(_plug_again, stage, stick)


async def _plug_again(stage: Stage, stick: Stick) -> None:
    await stage.script.one_pause(0.05, 0.3, 1.5)
    stage.board.sticks.plug(stick)
    stage.script.note(f"{stick.unit} is back as {stick.number}")


WEIGHTS: dict[Trouble, float] = {
    comings.burst: 10,
    comings.crash_loop: 2,
    comings.graceful_end: 4,
    comings.forced_deletion: 4,
    comings.same_name: 2,
    comings.static_pod: 1.5,
    comings.drain: 2,
    outages.slow_answers: 1.5,
    outages.refused_answers: 1,
    outages.kubelet_restart: 1,
    outages.api_server_away: 0.7,
    outages.daemon_restart: 1,
    outages.both_restart: 1,
    outages.reboot: 0.5,
    unplugged: 1.5,
    stick_pulled: 2,
}


async def befall(stage: Stage, seconds: float) -> Counter[str]:
    """One trouble after the other for that long; how often each has come."""
    done = Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (trouble,) = stage.script.chance.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))
        name = trouble.__name__.replace("_", " ")
        done[name] += 1
        stage.script.note(f"-- {name}")
        await trouble(stage)
        await _a_moment(stage)
    return done


async def _a_moment(stage: Stage) -> None:
    """Half of the time the next trouble comes at once."""
    if stage.script.perhaps(0.5):
        await stage.script.pause(0, stage.script.chance.choice((0.4, 2.0)))
