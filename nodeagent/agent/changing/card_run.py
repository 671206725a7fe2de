# SPDX-License-Identifier: Apache-2.0
"""The work on one card: its steps in their order, until one does not go as planned; a refusal is no surprise.

It ends, too, as soon as the operator wants or a pod holds anything else, which the kubelet is asked before
anything is taken away, or somebody else has made an mdev on the card: nothing is made beside it. Then the
card is scanned, so that the next plan knows what has become of it. Cards are worked on at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anyio.abc import TaskGroup

from nodeagent.agent.changing.executor import Executor, Outcome
from nodeagent.agent.changing.probe import BatchProbe, Probe
from nodeagent.agent.changing.withdrawals import Withdrawals
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base import threads
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs
from nodeagent.model.action import Step, moved, occupied
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import cards, guards


class CardRuns:
    """Which cards are being worked on, and the work."""

    def __init__(
        self,
        root: Root,
        snapshots: Snapshots,
        probe: Probe,
        executor: Executor,
        withdrawals: Withdrawals,
        usage: Usage,
    ) -> None:
        self._root = root
        self._snapshots = snapshots
        self._probe = probe
        self._executor = executor
        self._withdrawals = withdrawals
        self._usage = usage
        self._working: frozenset[str] = frozenset()

    @property
    def working(self) -> frozenset[str]:
        """The cards that are being worked on."""
        return self._working

    @property
    def busy(self) -> frozenset[str]:
        """What is occupied by a write that has not returned, or was not followed by a scan yet."""
        return self._withdrawals.devices.union(*(occupied(step.action) for step in self._executor.under_way))

    def start(self, card: str, steps: Sequence[Step], planned: Snapshot, group: TaskGroup) -> None:
        """Begin to carry out the steps of one card, planned from that Snapshot."""
        self._working |= {card}
        group.start_soon(self._run, card, steps, planned, name=f"work on {card}")

    async def reset(self) -> None:
        """Forget the work that a failure has ended."""
        self._working = frozenset()
        await self._withdrawals.settle()

    async def _run(self, card: str, steps: Sequence[Step], planned: Snapshot) -> None:
        await self._carry_out(card, steps, planned)
        await self._withdrawals.give_back(steps, _places(card, planned.host))
        self._working -= {card}
        self._snapshots.ring()

    async def _carry_out(self, card: str, steps: Sequence[Step], planned: Snapshot) -> None:
        probe = BatchProbe(self._probe, {each for step in steps for each in step.action.takes})
        others = Others(self._root, card, steps, planned.host)
        refused: set[str] = set()
        for step in steps:
            takes, attempt = step.action.takes, step.action.attempt
            if not self._as_wanted(planned):
                return
            if attempt in refused or (takes and await probe.opened(takes)):
                continue
            if takes or moved(step.action):
                outcome = await self._take_away(step, planned)
            elif await others.have_come():
                return
            else:
                outcome = await self._executor.take(step, partial(self._may_add, step, planned))
            if outcome is Outcome.UNPLANNED:
                return
            if outcome is Outcome.REFUSED:
                refused.add(attempt)

    async def _take_away(self, step: Step, planned: Snapshot) -> Outcome:
        """A step that takes something away: withdraw it, ask the kubelet, and write if no pod has it."""
        if not self._withdrawals.withdraw(step):
            return Outcome.UNPLANNED
        await self._usage.request_before_change()
        return await self._executor.take(step, partial(self._is_unused, step, planned))

    def _may_add(self, step: Step, planned: Snapshot) -> bool:
        """Right before the write: True if the operator still wants it; its place is occupied from now on."""
        return self._as_wanted(planned) and self._withdrawals.withdraw(step)

    def _is_unused(self, step: Step, planned: Snapshot) -> bool:
        """Right before the write: False if a pod has a part of it, or the operator wants anything else."""
        if not self._as_wanted(planned):
            return False
        return guards.given_since(step.action.moves, planned, self._snapshots.now) is None

    def _as_wanted(self, planned: Snapshot) -> bool:
        now = self._snapshots.now
        return (
            now.desired is planned.desired
            and now.allocations is planned.allocations
            and now.behind == planned.behind
            and now.machine_id == planned.machine_id
        )


class Others:
    """What may have come to a card since it was planned, and is none of the work on it."""

    def __init__(self, root: Root, card: str, steps: Sequence[Step], host: Host) -> None:
        self._root = root
        self._parents = tuple(each for each in host.mdev_parents if cards.card_of(host, each) == card)
        self._known = host.mdevs.keys() | {each for step in steps for each in step.action.targets}

    async def have_come(self) -> bool:
        """True if there is an mdev that nobody knew of."""
        if not self._parents:
            return False
        here = await threads.call(mdevs.instances_on, self._root, self._parents)
        return not here <= self._known


def _places(card: str, host: Host) -> frozenset[str]:
    """What to scan after work on a card: itself, and its VFs, which share its room."""
    function = host.functions.get(PciAddress(card))
    return frozenset((card, *function.vfs)) if function is not None else frozenset((card,))
