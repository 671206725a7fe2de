# SPDX-License-Identifier: Apache-2.0
"""Pulse: whether all that must go on does go on. For systemd's watchdog, and for whoever asks for health.

A restart must help, otherwise none is asked for. So nothing of this counts: a kubelet that is away, a device
or a disk that lets the kernel wait (a new process would wait for the same), a component in its back-off. What
counts: a component that owes a step and does not take it, and one that has worked in this process and fails
since then, without end, for a reason that nobody foresaw. One that has never worked would fare no better
after another start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from nodeagent.base import log, threads
from nodeagent.base.latest import Latest
from nodeagent.base.progress import Debt, Owes, Progress
from nodeagent.base.supervise import Supervisor


class Pulse:
    """Looks when it is told to. ``stuck``: who stands still, and what is not done."""

    def __init__(self, supervisor: Supervisor, components: Sequence[object]) -> None:
        """``components`` are asked each time, as far as they can owe anything."""
        self.stuck: Latest[Mapping[str, str]] = Latest({})
        self._supervisor = supervisor
        self._components = components
        self._progress = Progress()

    @property
    def alive(self) -> bool:
        """True if everything went on, as of the last look."""
        return not self.stuck.get()

    def standing_still(self) -> str | None:
        """What does not go on, in words; None if everything does."""
        return "; ".join(f"{name}: {what}" for name, what in self.stuck.get().items()) or None

    def look(self) -> None:
        """Look once more, and say what is new."""
        now, before = anyio.current_time(), self.stuck.get()
        found = {**self._progress.look(self._debts()), **self._supervisor.hopeless(now)}
        for name in found.keys() - before.keys():
            log.event(log.SUBSYSTEM_STUCK, subsystem=name, why=found[name])
        for name in before.keys() - found.keys():
            log.event(log.SUBSYSTEM_MOVES, subsystem=name)
        self.stuck.set(found)

    def _debts(self) -> Mapping[str, Debt]:
        debts: dict[str, Debt] = {}
        for component in self._components:
            if isinstance(component, Owes):
                debts |= component.owed()
        return {name: debt for name, debt in debts.items() if not self._excused(name)}

    def _excused(self, name: str) -> bool:
        """True if it fails, and runs again after a pause, or waits for a thread that waits for the kernel."""
        return bool(self._supervisor.failures.get(name)) or threads.awaited_by(name)
