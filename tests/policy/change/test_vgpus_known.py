# SPDX-License-Identifier: Apache-2.0
"""vGPUs of a vendor's driver, where a VF with a type lists no others: what is known of them all the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.change import Action, ActionKind, Ledger, Plan
from nodeagent.model.ids import vgpu_key
from nodeagent.model.spec import MdevSpec
from nodeagent.policy.change.ownership import update_ledger
from nodeagent.sim.mdev import Card, Type
from tests.facts import each_names
from tests.policy.change.splitting import adopting, planned, short, wanted
from tests.sim.mdevs import ModelKernel

TYPES = (
    Type("1", 4, "NVIDIA A40-12Q"),
    Type("2", 2, "NVIDIA A40-24Q"),
    Type("3", 1, "NVIDIA A40-48Q"),
    Type("4", 3, "NVIDIA A40-16Q"),
)


def card(bus: int, types: tuple[Type, ...] = TYPES) -> Card:
    """A card with four VFs."""
    return Card(f"0000:{bus}:00.0", types, tuple(f"0000:{bus}:00.{n}" for n in (4, 5, 6, 7)), vgpu=True)


class Node:
    """vGPU cards, and what a daemon remembers of them; ``named`` is what the vGPU manager's file tells."""

    def __init__(self, *cards: Card, named: dict[str, str] | None = None) -> None:
        self.kernel = ModelKernel(list(cards))
        self.named = named or {}
        self.record = Ledger()
        self.vfs = [vf for each in cards for vf in each.vfs]

    def planned(self, type_id: str) -> None:
        """Somebody else gives a type to all VFs."""
        for vf in self.vfs:
            self.kernel.set_vgpu_type(vf, type_id)

    def plan(self, wish: MdevSpec) -> Plan:
        here = self.kernel.host()
        self.record = update_ledger(self.record, here, self.named)
        return planned(self.kernel, wish, ledger=self.record)

    def does(self, action: Action) -> None:
        types = dict(self.record.types)
        if action.kind is ActionKind.CLEAR_VGPU_TYPE:
            assert self.kernel.apply(action)
            del types[action.address]
        else:
            assert action.kind is ActionKind.SET_VGPU_TYPE
            listed = self.kernel.host().functions
            here = next(each for each in listed.values() if each.address == action.address)
            type_id = action.type_id or ""
            if type_id in dict(here.vgpu_types):  # VFs of one card share its room: who applies looks first
                self.kernel.apply(action)
                types[action.address] = type_id
        self.record = self.record._replace(types=types)

    def settle(self, wish: MdevSpec) -> Plan:
        for _ in range(12):
            plan = self.plan(wish)
            if not plan.steps:
                return plan
            for step in plan.steps:
                self.does(step.action)
        raise AssertionError("no end")


def test_a_hold_in_between_changes_nothing_of_the_end() -> None:
    node = Node(card(81), card(82))
    node.settle(wanted("1"))
    held = node.kernel.cards[0].vfs[0]
    node.kernel.hold(held)
    plan = node.settle(wanted("2", "3"))
    assert short(node.kernel) == ["1×1", "1×3"]
    assert plan.cards[0].types == ("2",)
    each_names(plan.cards[0].notes, (2,))
    node.kernel.release(held)
    node.settle(wanted("2", "3"))
    assert short(node.kernel) == ["2×2", "1×3"]


def test_a_type_that_only_full_cards_offer_is_no_problem() -> None:
    node = Node(card(81))
    plan = node.settle(wanted("1", "2"))
    assert (short(node.kernel), plan.problems) == (["4×1"], ())


def test_a_card_that_was_never_seen_empty_may_offer_more() -> None:
    node = Node(card(81))
    node.planned("1")
    plan = node.plan(adopting(wanted("1", "2")))
    assert (plan.steps, plan.problems) == ((), ())
    plan = node.plan(wanted("2"))
    assert plan.problems == ()
    node = Node(card(81), card(82))
    node.settle(wanted("1"))
    each_names([each.message for each in node.plan(wanted("9")).problems], ("nvidia-9",))


@pytest.mark.parametrize("name", ["GRID T4-1B", "NVIDIA A40-12Q", "nvidia-1"])
def test_what_others_set_is_adopted_where_its_name_or_number_is_wanted(name: str) -> None:
    node = Node(card(81), named={vgpu_key("1"): "NVIDIA A40-12Q"})
    node.planned("1")
    plan = node.plan(adopting(wanted(name)))
    assert (plan.steps == ()) == (name != "GRID T4-1B")


@pytest.mark.parametrize(
    "wish",
    [wanted("NVIDIA A40-12Q"), wanted("2", excluded=("NVIDIA A40-12Q",)), wanted("2", "NVIDIA A40-12Q")],
)
def test_what_others_set_stays_while_its_name_is_not_known_and_a_name_may_mean_it(wish: MdevSpec) -> None:
    node = Node(card(81))
    node.planned("1")
    plan = node.plan(adopting(wish))
    assert (plan.steps, plan.waiting) == ((), ())


def test_what_others_set_goes_where_numbers_tell_that_it_is_not_wanted() -> None:
    node = Node(card(81))
    node.planned("1")
    assert len(node.plan(adopting(wanted("2", excluded=("3",)))).steps) == 4


def test_types_of_vfs_that_are_gone_are_known_no_more() -> None:
    node = Node(card(81))
    node.settle(wanted("1"))
    node.kernel.cards.clear()
    node.kernel.cards.append(card(81, TYPES[:1]))
    assert node.record.listed
    node.record = update_ledger(node.record, ModelKernel([]).host(), {})
    assert (node.record.listed, node.record.types) == ({}, {})


lists = st.lists(st.sampled_from("1234"), min_size=1, max_size=3, unique=True).map(
    lambda found: wanted(*found)
)
offered = st.lists(st.sampled_from(TYPES), min_size=3, unique=True).map(tuple)
trouble = st.tuples(
    st.integers(0, 11), st.booleans(), st.sampled_from([0, 0, 0, 3]), st.sampled_from([3, 99])
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(offered, min_size=2, max_size=3),
    st.sampled_from("1234").map(wanted),
    lists,
    st.lists(trouble, min_size=1, max_size=6),
)
def test_the_end_does_not_depend_on_what_was_held_in_between(
    cards: list[tuple[Type, ...]],
    before: MdevSpec,
    after: MdevSpec,
    troubles: list[tuple[int, bool, int, int]],
) -> None:
    peaceful, troubled = (Node(*(card(81 + n, found) for n, found in enumerate(cards))) for _ in range(2))
    for node in (peaceful, troubled):
        node.settle(before)
    kernel = troubled.kernel
    for number, holds, first, count in troubles:
        vf = troubled.vfs[number % len(troubled.vfs)]
        if holds and vf in kernel.instances:
            kernel.hold(vf)
        elif not holds:
            kernel.release(vf)
        for step in troubled.plan(after).steps[first : first + count]:
            troubled.does(step.action)
    for vf in sorted(kernel.held):
        kernel.release(vf)
    for node in (peaceful, troubled):
        node.settle(after)
    assert short(kernel) == short(peaceful.kernel)


@pytest.mark.parametrize("between", ["0", "2"])
def test_what_others_have_cleared_or_changed_and_set_again_is_not_ours_any_more(between: str) -> None:
    node = Node(card(81))
    node.settle(wanted("1"))
    theirs, *ours = node.vfs
    for vf in node.vfs if between != "0" else [theirs]:
        node.kernel.set_vgpu_type(vf, "0")
    node.kernel.set_vgpu_type(theirs, between)
    node.plan(wanted("1"))
    for vf in node.vfs if between != "0" else ():
        node.kernel.set_vgpu_type(vf, "0")
    node.kernel.set_vgpu_type(theirs, "1")
    node.plan(wanted("1"))
    assert theirs not in node.record.types
    assert (set(node.record.types) == set(ours)) is (between == "0")
    plan = node.plan(wanted())
    assert theirs not in {step.action.device for step in (*plan.steps, *plan.waiting)}


def test_a_type_that_the_host_does_not_show_yet_stays_ours_while_it_is_set() -> None:
    vf = card(81).vfs[0]
    record = Ledger({vf: "1"})
    here = ModelKernel([card(81)]).host()
    assert vf in update_ledger(record, here, {}, frozenset({vf})).types
    assert vf not in update_ledger(record, here, {}).types
