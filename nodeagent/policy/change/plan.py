# SPDX-License-Identifier: Apache-2.0
"""Plans all changes of the host: Snapshot → Plan. Pure.

The daemon and ``nodeagent plan`` both call this module, so their plans are always the same. A new kind of
change needs one more planner in the table. The order of the planners is the order of the steps: VFs are
created before their drivers are bound and before vGPUs are created on them.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.model.change import Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import bindings, mdevs, sriov

_PLANNERS: tuple[Callable[[Snapshot], Plan], ...] = (sriov.plan, bindings.plan, mdevs.plan)


def is_due(snapshot: Snapshot) -> bool:
    """True if settings or manual requests require changes, or if former changes have to be undone."""
    return snapshot.spec.changes_host or snapshot.ledger.to_return


def plan(snapshot: Snapshot) -> Plan:
    """The changes of this host; an empty plan if no change is configured."""
    if not is_due(snapshot):
        return Plan(problems=mdevs.find_obstacles(snapshot.spec.mdevs))
    plans = [planner(snapshot) for planner in _PLANNERS]
    return Plan(
        tuple(step for part in plans for step in part.steps),
        tuple(step for part in plans for step in part.waiting),
        tuple(card for part in plans for card in part.cards),
        tuple(problem for part in plans for problem in part.problems),
        tuple(problem for part in plans for problem in part.notes),
    )
