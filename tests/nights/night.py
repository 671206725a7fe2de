# SPDX-License-Identifier: Apache-2.0
"""One night: a node, some troubles for a while, then rest; and what became of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from nodeagent.sim.kubelet.standin import Kubelet
from tests import places
from tests.blackbox.boards import all_listed
from tests.nights import board, rest, troubles
from tests.nights.board import Board, Modes
from tests.nights.containers import Containers
from tests.nights.crowd import Crowd
from tests.nights.daemons import Daemons
from tests.nights.kubelets import Kubelets
from tests.nights.lives import Lives
from tests.nights.script import Broken, Script
from tests.nights.stage import Stage

LIMIT = 240.0  # seconds that a night may last besides its troubles


@dataclass
class Report:
    """What became of a night; ``broken`` is empty if every promise was kept."""

    machines: int = 0
    refused: int = 0
    rest: Sequence[float] = ()
    done: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    timeline: Sequence[str] = ()


async def spent(seed: int, modes: Modes, seconds: float) -> Report:
    """Spend a night with that much trouble."""
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
    with places.in_memory("nodeagent-nights-") as root:
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


def _stage(hardware: Board, kubelet: Kubelet, script: Script) -> Stage:
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


async def _no_crash(kubelet: Kubelet) -> None:
    """:raises Broken: if the real kubelet would have crashed."""
    await kubelet.until(lambda: bool(kubelet.life.crashed), math.inf)
    raise Broken(f"the kubelet would have crashed: {kubelet.life.crashed}")


def _innermost(error: Exception) -> str:
    """What has ended the task groups; anything but a broken promise is told with its class."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Broken) else repr(error)
