# SPDX-License-Identifier: Apache-2.0
"""The pods of a run: they come, are admitted or refused, and those that are admitted become machines.

At each admission the one promise is looked at: nothing has two owners.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from nodeagent.sim.kubelet.state import Pod
from tests.chaos.pods import machines
from tests.chaos.pods.board import Board
from tests.chaos.pods.kubelets import Kubelets
from tests.chaos.pods.lives import Lives
from tests.chaos.pods.machines import Machine
from tests.chaos.pods.script import Broken, Script

FIRST_PID = 5000
PLUGIN_LATE = "endpoint not found in cache"  # of a kubelet that has what a pod got on file, and no plugin yet


class Crowd:
    """All machines of one node, those that have ended too."""

    def __init__(self, board: Board, kubelets: Kubelets, lives: Lives, script: Script) -> None:
        self.machines: list[Machine] = []
        self.refused = 0
        self.lives = lives
        self._board = board
        self._kubelets = kubelets
        self._script = script
        self._numbers = itertools.count()

    @property
    def owned(self) -> set[str]:
        """The units that somebody has."""
        return machines.owned(self.machines)

    @property
    def had(self) -> set[str]:
        """The functions that somebody has."""
        return {address for machine in self.living for address in machine.given.addresses}

    @property
    def living(self) -> list[Machine]:
        """Those that have not ended."""
        return [machine for machine in self.machines if not machine.ended]

    def wish(self) -> dict[str, int]:
        """What a pod may ask for."""
        return dict(self._script.chance.choice(self._board.wants))

    def steady(self) -> list[Machine]:
        """Those that run and that nobody ends."""
        return [machine for machine in self.machines if machine.steady]

    def one(self) -> list[Machine]:
        """One of these, if there is any."""
        steady = self.steady()
        return [self._script.chance.choice(steady)] if steady else []

    async def come(
        self, wants: Mapping[str, int], *, name: str = "", uid: str = "", crashing: bool = False
    ) -> bool:
        """A pod comes; False if it was refused. :raises Broken: if it was given what another has."""
        pod = self._pod(name or f"vm{next(self._numbers)}", wants)
        pod.uid = uid
        pulled = self._board.pulled
        if not await self._kubelets.admit(pod):
            return False
        if pod.phase != "Running":
            self.refused += 1
            self._script.note(f"refused: {pod.key}, {dict(wants)}: {pod.message}")
            self._kubelets.forget(pod)
            return False
        if pulled == self._board.pulled and not self._board.away:
            _look_at(pod)
        self._take_in(pod, crashing)
        return True

    def _pod(self, name: str, wants: Mapping[str, int]) -> Pod:
        """Some have an init container that asks for the same, some spread it over their containers."""
        kind = self._script.chance.random()
        if kind < 0.15:
            return Pod("ns", name, [dict(wants)], init_containers=[dict(wants)])
        if kind < 0.3:
            return Pod("ns", name, [{resource: number} for resource, number in wants.items()])
        return Pod("ns", name, [dict(wants)])

    def _take_in(self, pod: Pod, crashing: bool) -> None:
        number = FIRST_PID + len(self.machines)
        machine = Machine(pod, number, machines.given(pod, self._board))
        self.machines.append(machine)
        self._script.note(f"runs: {machine}")
        self.look()
        self._script.meanwhile(self.lives.begin_and_crash if crashing else self.lives.begin, machine)

    def look(self) -> None:
        """:raises Broken: if something has two owners."""
        if found := machines.shared(self.machines):
            raise Broken("; ".join(found))


def _look_at(pod: Pod) -> None:
    """:raises Broken: if a container of the pod could not be made, but for what the kubelet tries again."""
    told = [result.error for result in pod.results.values() if result.error]
    if errors := [error for error in told if not error.startswith(PLUGIN_LATE)]:
        raise Broken(f"{pod.key}: {errors}")
