# SPDX-License-Identifier: Apache-2.0
"""Makes the Status: each component reports its part, then the problems are found in all of it.

Beside it, the Snapshot and the settings in force. ``http`` serves both; they are frozen, so that a thread may
write them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import anyio

from nodeagent import __version__
from nodeagent.agent.core import Core
from nodeagent.base import process
from nodeagent.model.status import RUNNING_AGAIN, ProcessStatus, Status, unreported
from nodeagent.policy import diagnose

if TYPE_CHECKING:
    from nodeagent.agent.tell.basis import BasisFields

_NAMED = 5  # directories that one problem names


@runtime_checkable
class Reports(Protocol):
    """A component that has a part in the Status."""

    def report(self, status: Status) -> Status:
        """The Status with this component's part."""
        ...


def report(components: Iterable[object], status: Status) -> Status:
    """The Status with the parts of these components."""
    for component in components:
        if isinstance(component, Reports):
            status = component.report(status)
    return status


class Teller:
    """Makes the Status. Created on the event loop, when the daemon begins."""

    def __init__(self, core: Core, components: Sequence[object]) -> None:
        """``components`` report in this order; a feature reports for the components that it loads late."""
        self._core = core
        self._components = components
        self._began = anyio.current_time()

    def status(self) -> Status:
        """Everything at this moment."""
        uptime = round(anyio.current_time() - self._began, 1)
        numbers = ProcessStatus(*process.numbers())
        first = unreported(__version__, os.getpid(), uptime, self._core.root.prefix, numbers)
        status = report(self._components, self._report_core(first))
        found = (problem.what for problem in diagnose.problems(status))
        return status._replace(problems=(*status.problems, *found))

    def _report_core(self, status: Status) -> Status:
        """The parts of the supervisor and the watcher, which are no components themselves."""
        failures, watcher = self._core.supervisor.failures, self._core.watcher
        subsystems = {name: text or RUNNING_AGAIN for name, text in failures.items()}
        line = late_events(watcher.unwatched, has_instance=watcher.has_instance)
        return status._replace(subsystems=subsystems, problems=(*status.problems, *([line] if line else [])))


def late_events(unwatched: Sequence[str], *, has_instance: bool) -> str:
    """The text on directories without an inotify watch; "" if all have one."""
    if not unwatched:
        return ""
    if not has_instance:
        return (
            "changes are seen late: the kernel gives no inotify instance; "
            "raise the kernel setting fs.inotify.max_user_instances"
        )
    others = " and others" if unwatched[_NAMED:] else ""
    return (
        f"changes are seen late, or not at all, in {', '.join(unwatched[:_NAMED])}{others}: "
        "the kernel gives no more watches; raise the kernel setting fs.inotify.max_user_watches"
    )


def in_force(core: Core) -> BasisFields:
    """What the newest Decision was made from; its memory goes with it.

    What only changes of the host depend on is the newest as well: no Decision is made for its sake.
    """
    decision, settings, now = core.offering.one_turn(), core.settings.get(), core.snapshots.now
    snapshot = replace(
        decision.snapshot,
        ledger=now.ledger,
        open=now.open,
        failures=now.failures,
        machine_id=now.machine_id,
    )
    return snapshot, decision.matched, settings.values, settings.warnings
