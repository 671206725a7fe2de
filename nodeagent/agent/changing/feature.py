# SPDX-License-Identifier: Apache-2.0
"""The side that changes the host, wired; imported only where the operator wants a change of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.card_run import CardRuns
from nodeagent.agent.changing.clerk import Begin, Clerk, Looking
from nodeagent.agent.changing.executor import Executor
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.loop import ChangeLoop
from nodeagent.agent.changing.probe import Probe
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.changing.withdrawals import Withdrawals
from nodeagent.agent.core import Core
from nodeagent.base import threads
from nodeagent.base.supervise import Component, Task
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.action import Action, Step
from nodeagent.model.request import Answer, Request
from nodeagent.model.snapshot import Snapshot


class Changing(NamedTuple):
    """``loop`` has the plan and the status; ``components`` are all that is to be run, it among them."""

    loop: ChangeLoop
    components: tuple[Component, ...]


class Parts(NamedTuple):
    """What carries steps out, whoever plans them."""

    ledger: LedgerKeeper
    retries: Retries
    executor: Executor
    withdrawals: Withdrawals
    runs: CardRuns


def components(core: Core) -> Sequence[Component]:
    """The components, sharing the core of the daemon."""
    timeouts = core.timeouts
    return feature(core, timeouts.write_late, timeouts.write_retry).components


def feature(core: Core, deadline: float, backoff: Backoff) -> Changing:
    """All parts. ``deadline``: seconds after which a write is late; ``backoff``: between two tries."""
    parts = _parts(core, deadline, backoff)
    keeper, retries, executor, withdrawals, runs = parts
    loop = ChangeLoop(core.snapshots, core.releases, keeper, retries, executor, runs, core.timeouts)
    requests = Task("requests", partial(_clerk(core, parts, _by_the_loop).serve, core.desk))
    return Changing(loop, (loop, executor, withdrawals, retries, keeper, requests))


async def alone(core: Core, request: Request) -> Answer:
    """The answer to one request, where no daemon runs: what is asked for is done, and nothing else."""
    timeouts = core.timeouts
    parts = _parts(core, timeouts.write_late, timeouts.write_retry)
    if request.dry_run:
        known = await threads.call(ledger.remembered, core.root)
        core.snapshots.publish(replace(core.snapshots.now, ledger=known))
    else:
        await parts.ledger.open()
    async with anyio.create_task_group() as group:
        group.start_soon(parts.executor.run)
        answer = await _clerk(core, parts, partial(_here, parts, group)).handle(request)
        with anyio.move_on_after(timeouts.write_late):
            while parts.runs.working:
                await core.snapshots.newer(core.snapshots.version)
        if not request.dry_run:
            await parts.ledger.save()
        group.cancel_scope.cancel()
    return answer


def _parts(core: Core, deadline: float, backoff: Backoff) -> Parts:
    root, snapshots, observer, timeouts = core.root, core.snapshots, core.observer, core.timeouts
    keeper, retries = LedgerKeeper(root, snapshots), Retries(snapshots, backoff)
    probe = Probe(root, snapshots, timeouts.open_file_scan, timeouts.open_file_scan_fresh)
    core.releases.look_with(probe)
    write = partial(_write, root, timeouts)
    executor = Executor(write, core.wakes, retries, keeper, deadline)
    withdrawals = Withdrawals(snapshots, core.reservations, observer, executor)
    runs = CardRuns(root, snapshots, probe, executor, withdrawals, core.usage)
    return Parts(keeper, retries, executor, withdrawals, runs)


def _write(root: Root, timeouts: Timeouts, action: Action) -> None:
    actions.apply(root, action, timeouts)


def _clerk(core: Core, parts: Parts, begin: Begin) -> Clerk:
    looking = Looking(core.root, core.snapshots, core.observer, core.usage, core.releases, core.timeouts)
    return Clerk(looking, parts.ledger, parts.runs, parts.retries, begin)


def _by_the_loop(_: Sequence[Step], planned: Snapshot) -> None:
    """The loop sees by itself what is to be done."""


def _here(parts: Parts, group: TaskGroup, steps: Sequence[Step], planned: Snapshot) -> None:
    for step in steps:
        parts.runs.start(step.action.card, (step,), planned, group)
