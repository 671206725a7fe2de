# SPDX-License-Identifier: Apache-2.0
"""What befalls the programs of a node: PodResources does not answer, the kubelet or the daemon is away.

A reboot ends both, and all containers with them. Some pods are there afterwards, and begin again without
another Allocate; of the others the kubelet hears that they are gone.
"""

from __future__ import annotations

import shutil
import signal

import anyio

from tests.chaos.pods.kubelets import UNNAMED
from tests.chaos.pods.stage import Stage

DELAY, REFUSED = "pod-resources-delay", "pod-resources-exhausted"


async def slow_answers(stage: Stage) -> None:
    """Of PodResources, for some seconds."""
    seconds = stage.script.chance.choice((0.3, 1.0, 2.0, 3.5))
    stage.script.note(f"PodResources takes {seconds} s")
    stage.script.meanwhile(_for_a_while, stage, DELAY, seconds, 7.0)


async def refused_answers(stage: Stage) -> None:
    """Of PodResources, for some seconds."""
    stage.script.note("PodResources refuses")
    stage.script.meanwhile(_for_a_while, stage, REFUSED, True, 4.0)


async def _for_a_while(stage: Stage, fault: str, setting: float, most: float) -> None:
    stage.kubelets.kubelet.faults.set(fault, setting)
    await stage.script.pause(1, most)
    stage.kubelets.kubelet.faults.clear(fault)


async def kubelet_restart(stage: Stage) -> None:
    """Soon it is back, and soon it knows its pods."""
    await _kubelet_away(stage, UNNAMED)


async def api_server_away(stage: Stage) -> None:
    """The kubelet is restarted meanwhile, and does not know its pods for long."""
    await _kubelet_away(stage, stage.script.chance.choice((4.0, 9.0)))


async def _kubelet_away(stage: Stage, unnamed: float) -> None:
    if await stage.kubelets.down():
        await stage.script.one_pause(0, 0.3, 1.0)
        await stage.kubelets.up(unnamed)


async def daemon_restart(stage: Stage) -> None:
    """It is ended or killed, and soon started again."""
    await stage.daemons.down(stage.script.chance.choice((signal.SIGTERM, signal.SIGKILL)))
    await stage.script.one_pause(0, 0.5, 1.5)
    await stage.daemons.up()


async def both_restart(stage: Stage) -> None:
    """Kubelet and daemon, within a second."""
    async with anyio.create_task_group() as group:
        group.start_soon(kubelet_restart, stage)
        await stage.script.pause(0, 1)
        group.start_soon(daemon_restart, stage)


async def reboot(stage: Stage) -> None:
    """Of the node, unless a device is away: that would come back with it."""
    if stage.board.away or not await stage.kubelets.down():
        return
    stage.script.note("the node reboots")
    await stage.daemons.down(signal.SIGTERM)
    _all_is_off(stage)
    if stage.script.perhaps(0.5):
        await stage.daemons.up()
        await stage.kubelets.up()
    else:
        await stage.kubelets.up()
        await stage.script.pause(0, 2)
        await stage.daemons.up()
    for machine in stage.crowd.living:
        if not machine.ending:
            stage.script.meanwhile(stage.crowd.lives.begin, machine)


def _all_is_off(stage: Stage) -> None:
    """No process is left, nothing is open, and what lies in memory alone is gone."""
    stay = stage.script.perhaps(0.5)
    for machine in stage.crowd.living:
        stage.crowd.lives.reboot(machine, stays=stay)
    shutil.rmtree(stage.board.node.root / "run/nodeagent", ignore_errors=True)
    for address in stage.board.functions:
        stage.board.node.host.release(address)
