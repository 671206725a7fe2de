# SPDX-License-Identifier: Apache-2.0
"""Any sequence of wishes, holds, releases, failures and crashes over a simulated kernel.

The plan never removes what is held or foreign, never makes a type that is not wanted, never mixes types, and
ends: where the last wish says, with nothing more to do. Left out: who tries again when; that is the agent's.
"""

from __future__ import annotations

import contextlib
import errno

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from nodeagent.base.errors import KernelRefused
from nodeagent.model.change import Action, ActionKind, Ledger, Plan
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy.change.ownership import update_ledger
from nodeagent.sim.mdev import Card, Type
from tests.policy.change.splitting import planned, result, short
from tests.sim.mdevs import ModelKernel

KINDS = (Type("t-1", 4, "One"), Type("t-2", 2, "Two words"), Type("t-3", 3), Type("t-4", 1))
LOOK_AGAIN = (errno.ENOSPC, errno.EEXIST)
FOREIGN = tuple(f"0000000{number}-0000-4000-8000-000000000000" for number in range(4))
ADDRESSES = ("0000:03:00.0", "0000:04:00.0", "0000:81:00.0", "0000:c1:00.0")


def some_cards() -> list[Card]:
    """Two plain cards, one whose VFs are mdev parents, one with vendor vGPUs, all with different types."""
    vfs = [tuple(f"{address[:-1]}{number}" for number in (4, 5, 6)) for address in ADDRESSES]
    numbers = tuple(Type(kind.id[2:], kind.most, kind.name) for kind in KINDS)
    return [
        Card(ADDRESSES[0], KINDS),
        Card(ADDRESSES[1], KINDS[1:]),
        Card(ADDRESSES[2], KINDS[:3], vfs=vfs[2]),
        Card(ADDRESSES[3], numbers, vfs=vfs[3], vgpu=True),
    ]


names = st.sampled_from(["t-1", "t-2", "t-3", "t-4", "Two_words", "1", "2", "unknown"])
counts = st.sampled_from([None, None, None, 1, 2])
lists = st.lists(st.builds(WantedType, names, counts), max_size=4).map(tuple)
wishes = lists.map(lambda types: MdevSpec(manage=True, types=types))


class Changes(RuleBasedStateMachine):
    """A node whose operator, pods, kernel and daemon all do as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = ModelKernel(some_cards())
        self.wish = MdevSpec(manage=True)
        self.made: dict[str, str] = {}
        self.record = Ledger()
        self.failed: dict[str, str] = {}

    @rule(wish=wishes)
    def the_operator_wants(self, wish: MdevSpec) -> None:
        self.wish = wish

    @rule(data=st.data())
    def a_pod_takes(self, data: st.DataObject) -> None:
        if self.kernel.instances:
            self.kernel.hold(data.draw(st.sampled_from(sorted(self.kernel.instances))))

    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        if self.kernel.held:
            self.kernel.release(data.draw(st.sampled_from(sorted(self.kernel.held))))

    @rule(data=st.data())
    def somebody_removes(self, data: st.DataObject) -> None:
        mdevs_only = [name for name in self.kernel.instances if len(name) == 36]
        if mdevs_only:
            with contextlib.suppress(KernelRefused):
                self.kernel.remove(data.draw(st.sampled_from(sorted(mdevs_only))))

    @rule(uuid=st.sampled_from(FOREIGN), card=st.sampled_from(ADDRESSES[:2]), kind=st.sampled_from(KINDS))
    def somebody_makes(self, uuid: str, card: str, kind: Type) -> None:
        with contextlib.suppress(KernelRefused):
            self.kernel.create(card, kind.id, uuid)

    @rule(data=st.data())
    def a_device_dies(self, data: st.DataObject) -> None:
        own = [name for name in self.kernel.instances if len(name) == 36 and name not in FOREIGN]
        if own:
            self.kernel.unbind(data.draw(st.sampled_from(sorted(own))))

    @rule(card=st.sampled_from(ADDRESSES), kind=st.sampled_from(["t-1", "t-2", "2"]))
    def writes_begin_to_fail(self, card: str, kind: str) -> None:
        self.kernel.errors[(card, kind)] = errno.EIO

    @rule()
    def writes_work_again(self) -> None:
        self.kernel.errors.clear()
        self.failed.clear()

    @rule(kept=st.integers(0, 6), first=st.integers(0, 3))
    def the_daemon_works_and_may_crash(self, kept: int, first: int) -> None:
        steps = self.plan().steps
        for step in steps[first : first + kept]:  # writes of several cards go on at once: any may be first
            self.does(step.action)

    def plan(self) -> Plan:
        here = self.kernel.host()
        self.record = update_ledger(self.record, here, {})
        known = self.record._replace(types=self.made)
        return planned(self.kernel, self.wish, failures=self.failed, ledger=known)

    def does(self, action: Action) -> None:
        """Carry out one step as the applying side would, and check that it may be done at all."""
        if action.kind is ActionKind.REMOVE_MDEV:
            assert action.uuid not in self.kernel.held
            assert action.uuid not in FOREIGN
        if action.kind is ActionKind.CLEAR_VGPU_TYPE:
            assert action.address not in self.kernel.held
        if action.kind in (ActionKind.CREATE_MDEV, ActionKind.SET_VGPU_TYPE):
            assert self.wants(action.type_id or ""), action
        if action.kind is ActionKind.SET_VGPU_TYPE:
            self.made[action.address] = action.type_id or ""
        try:
            assert action.kind in (
                ActionKind.CREATE_MDEV,
                ActionKind.REMOVE_MDEV,
                ActionKind.SET_VGPU_TYPE,
                ActionKind.CLEAR_VGPU_TYPE,
            )
            assert self.kernel.apply(action), f"blocked: {action}"
        except KernelRefused as error:
            if error.errno not in LOOK_AGAIN and action.kind is not ActionKind.SET_VGPU_TYPE:
                self.failed[action.attempt] = str(error)

    def wants(self, type_id: str) -> bool:
        name = next(kind.name for kind in KINDS if kind.id.endswith(type_id))
        called = {type_id, f"nvidia-{type_id}", (name or "").replace(" ", "_")}
        return any(each.name in called for each in self.wish.types)

    @invariant()
    def no_card_has_own_devices_of_two_types(self) -> None:
        for card in self.kernel.cards:
            found = self.kernel.instances.items()
            here = {kind for name, (parent, kind) in found if parent in card.parents and name not in FOREIGN}
            assert len(here) <= 1

    def teardown(self) -> None:
        """Everything calms down: then the plans come to an end, and it is the right one."""
        self.writes_work_again()
        for each in sorted(self.kernel.held):
            self.kernel.release(each)
        for _ in range(20):
            steps = self.plan().steps
            if not steps:
                break
            for step in steps:
                self.does(step.action)
        plan = self.plan()
        assert (plan.steps, plan.waiting) == ((), ())
        self.all_is_as_wanted()

    def all_is_as_wanted(self) -> None:
        for card in self.kernel.cards:
            here = {name for name, (parent, _) in self.kernel.instances.items() if parent in card.parents}
            if here & set(FOREIGN):
                continue
            found = result(self.kernel).get(card.address)
            fitting = [kind for kind in card.types if self.wants(kind.id)]
            if found is None:
                assert not fitting, f"{card.address} could have one of {fitting}"
            else:
                kind = next(each for each in fitting if each.id == found[0])
                count = self.count(kind)
                most = min(kind.most, len(card.parents)) if card.vfs else kind.most
                assert found[1] == (most if count is None else min(most, count))

    def count(self, kind: Type) -> int | None:
        called = {kind.id, f"nvidia-{kind.id}", (kind.name or "").replace(" ", "_")}
        return next(each.count for each in self.wish.types if each.name in called)


def test_whatever_happens_the_last_wish_comes_true_and_nothing_foreign_or_held_is_touched() -> None:
    run_state_machine_as_test(
        Changes, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )


@settings(deadline=None, max_examples=40)
@given(wishes, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_a_deal_cut_short_anywhere_ends_as_one_in_peace(wish: MdevSpec, cuts: list[tuple[int, int]]) -> None:
    peaceful, troubled = Changes(), Changes()
    peaceful.wish = troubled.wish = wish._replace()
    for first, kept in cuts:
        for step in troubled.plan().steps[first : first + kept]:
            troubled.does(step.action)
    for machine in (peaceful, troubled):
        machine.teardown()
    assert short(troubled.kernel) == short(peaceful.kernel)
