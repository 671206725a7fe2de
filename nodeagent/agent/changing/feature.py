# SPDX-License-Identifier: Apache-2.0
"""The side that changes the host, wired; imported only where the operator wants a change of the host."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.agent.changing import executor as writing
from nodeagent.agent.changing import probe as probing
from nodeagent.agent.changing import retries as retrying
from nodeagent.agent.changing.card_run import CardRuns
from nodeagent.agent.changing.collaborators import Awaited, Component, Reservations, Scans
from nodeagent.agent.changing.executor import Executor
from nodeagent.agent.changing.ledger_keeper import LedgerKeeper
from nodeagent.agent.changing.loop import ChangeLoop
from nodeagent.agent.changing.probe import Probe
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.changing.withdrawals import Withdrawals
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.backoff import Backoff
from nodeagent.kernel.root import Root


class Changing(NamedTuple):
    """``loop`` has the plan and the status; ``probe.reprobe`` is for whoever waits for releases.

    ``components`` are all that is to be run, the loop among them.
    """

    loop: ChangeLoop
    probe: Probe
    components: tuple[Component, ...]


def feature(
    root: Root,
    snapshots: Snapshots,
    scans: Scans,
    reservations: Reservations,
    awaited: Awaited,
    deadline: float = writing.DEADLINE,
    backoff: Backoff = retrying.BACKOFF,
) -> Changing:
    """All parts. ``deadline``: seconds after which a write is late; ``backoff``: between two tries."""
    keeper, retries = LedgerKeeper(root, snapshots), Retries(snapshots, backoff)
    probe = Probe(root, snapshots, probing.DEADLINE)
    executor = Executor(root, scans, retries, keeper, deadline)
    withdrawals = Withdrawals(snapshots, reservations, scans, executor)
    runs = CardRuns(snapshots, scans, probe, executor, withdrawals)
    loop = ChangeLoop(snapshots, awaited, keeper, retries, executor, runs)
    return Changing(loop, probe, (loop, executor, withdrawals, retries, keeper))
