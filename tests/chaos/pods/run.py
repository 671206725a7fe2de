# SPDX-License-Identifier: Apache-2.0
"""One run: a node on which faults happen for a while, then a time without faults; returns a report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from nodeagent.sim.kubelet.server import FakeKubelet
from tests import places
from tests.blackbox.boards import all_listed
from tests.chaos.pods import board, rest, troubles
from tests.chaos.pods.board import Board, Modes
from tests.chaos.pods.containers import Containers
from tests.chaos.pods.crowd import Crowd
from tests.chaos.pods.daemons import Daemons
from tests.chaos.pods.kubelets import Kubelets
from tests.chaos.pods.lives import Lives
from tests.chaos.pods.script import Broken, Script
from tests.chaos.pods.stage import Stage

LIMIT = 240.0  # seconds that a run may take in addition to its faults


@dataclass
class Report:
    """The result of a run; ``broken`` is empty if no rule was violated."""

    machines: int = 0
    refused: int = 0
    rest: Sequence[float] = ()
    done: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    timeline: Sequence[str] = ()


async def run_faults(seed: int, modes: Modes, seconds: float) -> Report:
    """Run one node with faults for this many seconds."""
    script = Script(seed)
    report = Report(timeline=script.lines)
    try:
        with anyio.fail_after(seconds + LIMIT):
            await _spend(script, report, modes, seconds)
    except (Broken, ExceptionGroup, TimeoutError) as error:
        report.broken = _innermost(error)
        script.note(report.broken)
    return report


async def _spend(script: Script, report: Report, modes: Modes, seconds: float) -> None:
    with places.in_memory("chaos-pods-") as root:
        hardware = Board(root, modes)
        board.all_processes_are_seen(hardware.node)
        async with hardware.node.kubelet(seed=script.chance.randrange(1000)) as kubelet, script.tasks:
            stage = _stage(hardware, kubelet, script)
            script.meanwhile(_no_crash, kubelet)
            try:
                await _troubled(stage, report, seconds)
            finally:
                report.machines, report.refused = len(stage.crowd.machines), stage.crowd.refused
            script.tasks.cancel_scope.cancel()


def _stage(hardware: Board, kubelet: FakeKubelet, script: Script) -> Stage:
    kubelets = Kubelets(kubelet, script)
    lives = Lives(Containers(hardware), kubelets, script)
    crowd = Crowd(hardware, kubelets, lives, script)
    return Stage(hardware, kubelets, Daemons(hardware.node, script), crowd, script)


async def _troubled(stage: Stage, report: Report, seconds: float) -> None:
    await stage.daemons.up()
    await all_listed(stage.kubelets.kubelet, stage.board.offered())
    report.done = await troubles.befall(stage, seconds)
    report.rest = await rest.reached(stage)
    stage.crowd.look()
    await stage.daemons.down()


async def _no_crash(kubelet: FakeKubelet) -> None:
    """:raises Broken: if the real kubelet would have crashed."""
    await kubelet.until(lambda: bool(kubelet.life.crashed), math.inf)
    raise Broken(f"the kubelet would have crashed: {kubelet.life.crashed}")


def _innermost(error: Exception) -> str:
    """What has ended the task groups; anything but a broken promise is told with its class."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Broken) else repr(error)
