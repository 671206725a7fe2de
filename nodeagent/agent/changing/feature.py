# SPDX-License-Identifier: Apache-2.0
"""The side that changes the host, wired; imported only where the operator wants a change of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nodeagent.agent.changing import executor as writing
from nodeagent.agent.changing import probe as probing
from nodeagent.agent.changing import retries as retrying
from nodeagent.agent.changing.card_run import CardRuns
from nodeagent.agent.changing.executor import Executor
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.loop import ChangeLoop
from nodeagent.agent.changing.probe import Probe
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.changing.withdrawals import Withdrawals
from nodeagent.agent.core import Core
from nodeagent.base.supervise import Backoff, Component


class Changing(NamedTuple):
    """``loop`` has the plan and the status; ``components`` are all that is to be run, it among them."""

    loop: ChangeLoop
    components: tuple[Component, ...]


def components(core: Core) -> Sequence[Component]:
    """The components, sharing the core of the daemon."""
    return feature(core).components


def feature(core: Core, deadline: float = writing.DEADLINE, backoff: Backoff = retrying.BACKOFF) -> Changing:
    """All parts. ``deadline``: seconds after which a write is late; ``backoff``: between two tries."""
    root, snapshots, observer = core.root, core.snapshots, core.observer
    keeper, retries = LedgerKeeper(root, snapshots), Retries(snapshots, backoff)
    probe = Probe(root, snapshots, probing.DEADLINE)
    core.releases.look_with(probe)
    executor = Executor(root, core.wakes, retries, keeper, deadline)
    withdrawals = Withdrawals(snapshots, core.reservations, observer, executor)
    runs = CardRuns(root, snapshots, probe, executor, withdrawals)
    loop = ChangeLoop(snapshots, core.releases, keeper, retries, executor, runs)
    return Changing(loop, (loop, executor, withdrawals, retries, keeper))
