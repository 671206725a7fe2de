# SPDX-License-Identifier: Apache-2.0
"""The life of a machine: its container opens what it got a while after the admission, and ends in some way.

Of a graceful end the container has closed all before the kubelet forgets the pod. Of a deletion by force the
kubelet forgets the pod at once, and its container ends 2.6 s later.
"""

from __future__ import annotations

import shutil

import anyio

from tests.chaos.pods.containers import Containers
from tests.chaos.pods.kubelets import Kubelets
from tests.chaos.pods.machines import Machine
from tests.chaos.pods.script import Script

CRASHES = 4
FORCED = 2.6  # seconds, as measured on a real kubelet
CLOSING = 0.05  # seconds between the end of a process and that of what it had open


class Lives:
    """How the machines of one node live and end."""

    def __init__(self, containers: Containers, kubelets: Kubelets, script: Script) -> None:
        self._containers = containers
        self._kubelets = kubelets
        self._script = script

    async def begin(self, machine: Machine) -> None:
        """Its container starts."""
        await self._script.pause(0.1, 1.5)
        if not (machine.ending or machine.ended):
            self._containers.open(machine)

    async def begin_and_crash(self, machine: Machine) -> None:
        """Its container starts, crashes and is started again, some times."""
        await self.begin(machine)
        for _ in range(CRASHES):
            if not await self._lasts(machine, 0.2):
                return
            self._containers.crash(machine)
            if not await self._lasts(machine, 0.1):
                return
            self._containers.open(machine)
            if self._script.perhaps(0.7):
                await self._kubelets.start_again(machine.pod)

    async def _lasts(self, machine: Machine, least: float) -> bool:
        """A while later, false if it is to end."""
        await self._script.pause(least, 1.0)
        return machine.steady

    async def end(self, machine: Machine) -> None:
        """Gracefully, within a second."""
        if machine.ending or machine.ended:
            return
        machine.ending = True
        self._script.note(f"ends: {machine}")
        await self._script.pause(0, 1)
        if machine.started:
            await self._containers.end(machine, CLOSING)
        machine.ended = True
        await anyio.sleep(0.1)
        self._kubelets.forget(machine.pod)

    async def end_by_force(self, machine: Machine) -> None:
        """The kubelet forgets it while its container still runs."""
        if not machine.steady:
            return
        machine.ending = True
        self._script.note(f"is deleted by force: {machine}")
        self._kubelets.forget(machine.pod)
        await anyio.sleep(FORCED)
        await self._containers.end(machine, self._script.chance.choice((CLOSING, 0.3, 1.5)))
        machine.ended = True
        self._script.note(f"has ended: {machine.pod.key}")
        self._tidy(machine)

    def reboot(self, machine: Machine, *, stays: bool) -> None:
        """Its container is no more. If the pod stays, it begins again; of one that was ending none does."""
        self._containers.vanish(machine)
        machine.started = False
        if not stays or machine.ending or not self._kubelets.has(machine.pod):
            machine.ended = True
            self._kubelets.forget(machine.pod)
            self._tidy(machine)

    def _tidy(self, machine: Machine) -> None:
        """The kubelet's directory of the pod goes last."""
        pods = self._kubelets.kubelet.state.paths.pods
        shutil.rmtree(pods / machine.pod.uid, ignore_errors=True)
