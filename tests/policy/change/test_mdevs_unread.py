# SPDX-License-Identifier: Apache-2.0
"""What is planned where something could not be read: unknown is not unwanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.change import Plan
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import CardTypes, MdevDefinition, MdevSpec, WantedType
from tests.facts import each_names, names
from tests.policy.change.splitting import adopting, planned, settle, short, t4, wanted
from tests.sim.mdevs import ModelKernel

FIRST = "0000:01:00.0"
FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def without_parents(kernel: ModelKernel, *unread: str) -> Host:
    """The host as a first look shows it in which the types of these parents did not answer in time."""
    here = kernel.host()
    return replace(here, mdev_parents={p: types for p, types in here.mdev_parents.items() if p not in unread})


def first_plan(kernel: ModelKernel, wish: MdevSpec) -> Plan:
    return planned(kernel, wish, host=without_parents(kernel, FIRST))


@pytest.mark.parametrize("name", ["nvidia-222", "GRID T4-1B"])
def test_instances_on_a_parent_that_was_not_read_stay_and_are_what_their_card_is_for(name: str) -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("222"))
    plan = first_plan(kernel, wanted("nvidia-223", WantedType(name, 16)))
    assert (plan.steps, plan.waiting, plan.problems) == ((), (), ())
    assert plan.cards[0].types == ("nvidia-222",)


def test_what_is_not_wanted_goes_once_its_parent_is_read() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    plan = first_plan(kernel, wanted("222"))
    assert plan.steps == ()
    assert plan.problems == ()
    for each in plan.waiting:
        names(each.why, "nvidia-228", "read")
    each_names(plan.cards[0].notes, ("types", "read"))
    settle(kernel, wanted("222"))
    assert short(kernel) == ["16×222"]


def test_a_definition_on_a_parent_that_was_not_read_removes_nothing_and_is_no_problem() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    defined = (MdevDefinition(FOREIGN, FIRST, "nvidia-222"),)
    plan = first_plan(kernel, wanted()._replace(definitions=defined))
    assert (plan.steps, plan.problems) == ((), ())


def test_a_card_that_was_not_read_keeps_its_turn() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    kernel.create(FIRST, "nvidia-228", FOREIGN)
    plan = first_plan(kernel, adopting(wanted("228", "222")))
    assert {step.action.type_id for step in plan.steps} == {"nvidia-222"}


def test_an_mdev_whose_type_cannot_be_read_is_not_adopted() -> None:
    kernel = ModelKernel([t4(1)])
    kernel.create(FIRST, "nvidia-222", FOREIGN)
    here = kernel.host()
    unknown = here.mdevs[FOREIGN]._replace(type_id=None, type_name=None)
    plan = planned(kernel, adopting(wanted("222")), host=replace(here, mdevs={FOREIGN: unknown}))
    assert (plan.steps, plan.waiting) == ((), ())
    assert [each.own for each in plan.cards[0].instances] == [False]
    each_names(plan.cards[0].notes, ("unknown type",))


@pytest.mark.parametrize("excluded", ["nvidia-222", "GRID T4-1B"])
@pytest.mark.parametrize("unread", [(), (FIRST,)])
def test_an_excluded_type_is_known_by_its_instances_too(excluded: str, unread: tuple[str, ...]) -> None:
    kernel = ModelKernel([t4(1)])
    kernel.create(FIRST, "nvidia-222", FOREIGN)
    wish = adopting(wanted("223", excluded=(excluded,)))
    plan = planned(kernel, wish, host=without_parents(kernel, *unread))
    assert (plan.steps, plan.waiting) == ((), ())


def test_what_cards_have_lists_of_their_own_waits_until_each_function_was_read() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    rules = (CardTypes((0,), types=(WantedType("T4-1B", short=True),)), CardTypes((1,)))
    wish = wanted()._replace(cards=rules)
    settle(kernel, wish)
    here = kernel.host()
    blurred = PciFunction(PciAddress(FIRST), unreadable="not readable: being removed?")
    there = replace(here, functions={**here.functions, blurred.address: blurred})
    plan = planned(kernel, wish, host=there)
    assert plan.steps == ()
    assert {each.type_id for card in plan.cards for each in card.instances} == {"nvidia-222"}
    each_names(plan.cards[1].notes, (FIRST, "GPUs", "read"))


def test_a_function_that_was_not_read_holds_up_no_card_whose_place_does_not_matter() -> None:
    kernel = ModelKernel([t4(1)])
    here, blurred = kernel.host(), PciFunction(PciAddress("0000:f0:00.0"), unreadable="not readable")
    there = replace(here, functions={**here.functions, blurred.address: blurred})
    wish = wanted()._replace(cards=(CardTypes(types=(WantedType("T4-1B", short=True),)),))
    assert len(planned(kernel, wish, host=there).steps) == 16
