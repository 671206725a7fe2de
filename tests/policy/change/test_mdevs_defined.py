# SPDX-License-Identifier: Apache-2.0
"""Instances that mdevctl defines: made under their own ids, beside nothing else; told if they cannot be."""

from __future__ import annotations

import pytest

from nodeagent.model.spec import MdevDefinition, MdevSpec, WantedType
from nodeagent.sim.mdev import Card, Sizes
from tests.facts import each_names
from tests.policy.change.splitting import T4_TYPES, planned, settle, short, t4, vgpu_card, wanted
from tests.sim.mdevs import ModelKernel

FIRST = "0000:01:00.0"
PF = "0000:81:00.0"
FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def defined(*definitions: tuple[str, str, str]) -> MdevSpec:
    found = tuple(MdevDefinition(uuid, parent, f"nvidia-{number}") for uuid, parent, number in definitions)
    return wanted("223")._replace(definitions=found)


def uuids(count: int) -> list[str]:
    return [f"0000000{number}-0000-4000-8000-000000000000" for number in range(count)]


def test_defined_instances_are_made_under_their_own_ids_and_stay_when_the_definitions_go() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    wish = defined(*((uuid, FIRST, "228") for uuid in uuids(2)))
    settle(kernel, wish)
    assert short(kernel) == ["2×228", "8×223"]
    assert set(uuids(2)) < kernel.instances.keys()
    settle(kernel, wanted("223"))
    assert short(kernel) == ["2×228", "8×223"]


def test_what_is_on_a_card_of_ours_gives_way_to_what_is_defined() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    wish = defined((FOREIGN, FIRST, "228"))
    each_names({step.why for step in planned(kernel, wish).steps}, ("mdevctl",))
    settle(kernel, wish)
    assert list(kernel.instances) == [FOREIGN]


def test_defined_instances_stay_where_adopting_is_allowed() -> None:
    kernel = ModelKernel([t4(1)])
    wish = defined((FOREIGN, FIRST, "228"))._replace(adopt=True)
    kernel.create(FIRST, "nvidia-228", uuids(1)[0])
    settle(kernel, wish)
    assert list(kernel.instances) == [FOREIGN]


def test_an_excluded_type_is_not_made_for_a_definition_either() -> None:
    kernel = ModelKernel([t4(1)])
    plan = settle(kernel, defined((FOREIGN, FIRST, "228"))._replace(excluded=("GRID T4-8A",)))
    assert kernel.instances == {}
    each_names([each.message for each in plan.problems], (FOREIGN, "nvidia-228", "excluded"))


def test_a_definition_is_not_mixed_with_what_others_made() -> None:
    mixing = Card(FIRST, T4_TYPES, sizes=Sizes.ANY)
    kernel = ModelKernel([mixing])
    kernel.create(FIRST, "nvidia-223", FOREIGN)
    plan = settle(kernel, defined((uuids(1)[0], FIRST, "222")))
    assert list(kernel.instances) == [FOREIGN]
    assert [each.id for each in plan.cards[0].instances if not each.own] == [FOREIGN]
    each_names(plan.cards[0].notes, (plan.cards[0].instances[0].foreign,))
    kernel = ModelKernel([mixing])
    kernel.create(FIRST, "nvidia-228", FOREIGN)
    settle(kernel, defined((uuids(1)[0], FIRST, "228")))
    assert short(kernel) == ["2×228"], "of the same type there may be more"


def test_a_definition_without_room_beside_what_others_made_is_told() -> None:
    kernel = ModelKernel([t4(1)])
    kernel.create(FIRST, "nvidia-228", FOREIGN)
    plan = settle(kernel, defined(*((uuid, FIRST, "228") for uuid in uuids(2))))
    assert short(kernel) == ["2×228"]
    each_names([each.message for each in plan.problems], (FIRST, 2, "nvidia-228", 1))


def test_what_is_not_ours_does_not_cost_us_what_we_have_for_a_definition_that_must_wait() -> None:
    kernel = ModelKernel([Card(FIRST, T4_TYPES, sizes=Sizes.ANY)])
    settle(kernel, wanted(WantedType("nvidia-222", 4)))
    kernel.create(FIRST, "nvidia-223", FOREIGN)
    before = kernel.instances
    settle(kernel, defined((uuids(1)[0], FIRST, "228")))
    assert kernel.instances == before


def test_a_definition_of_a_second_type_without_room_is_a_problem() -> None:
    kernel = ModelKernel([t4(1)])
    first, second = uuids(2)
    kernel.create(FIRST, "nvidia-228", second)
    plan = settle(kernel, defined((first, FIRST, "222"), (second, FIRST, "228")))
    each_names([each.message for each in plan.problems], (FIRST, 1, "nvidia-222", 0, 1, "nvidia-228"))


def test_definitions_of_two_types_are_created_where_the_card_takes_both() -> None:
    kernel = ModelKernel([Card(FIRST, T4_TYPES, sizes=Sizes.MIXED)])
    first, second = uuids(2)
    plan = settle(kernel, defined((first, FIRST, "222"), (second, FIRST, "228")))
    assert kernel.instances == {first: (FIRST, "nvidia-222"), second: (FIRST, "nvidia-228")}
    assert plan.problems == ()


@pytest.mark.parametrize(("parent", "number"), [(FIRST, "222"), ("0000:02:00.0", "228")])
def test_a_defined_device_that_exists_as_another_is_told(parent: str, number: str) -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    kernel.create(parent, f"nvidia-{number}", FOREIGN)
    plan = settle(kernel, defined((FOREIGN, FIRST, "228"))._replace(types=()))
    assert list(kernel.instances) == [FOREIGN]
    texts = [each.message for each in plan.problems]
    each_names(texts, (FOREIGN, "nvidia-228", FIRST, f"nvidia-{number}", parent))


def test_what_mdevctl_defines_is_never_ours_whatever_its_definition_says() -> None:
    kernel = ModelKernel([t4(1)])
    kernel.create(FIRST, "nvidia-228", FOREIGN)
    theirs = wanted("222", adopt=True)._replace(defined=frozenset({FOREIGN}))
    settle(kernel, theirs)
    assert list(kernel.instances) == [FOREIGN]
    settle(kernel, wanted("222", adopt=True))
    assert short(kernel) == ["16×222"], "without a definition it is adopted like any other"


def test_a_card_of_which_something_is_left_to_mdevctl_is_left_out_of_the_round() -> None:
    vfs = ("0000:81:00.4", "0000:81:00.5")
    kernel = ModelKernel([t4(1), Card(PF, T4_TYPES, vfs=vfs)])
    plan = settle(kernel, wanted("223")._replace(reserved=frozenset({FIRST, vfs[1]})))
    assert short(kernel) == ["-", "-"]
    assert plan.problems == ()
    each_names(plan.cards[0].notes, ("mdevctl",))
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    settle(kernel, defined((FOREIGN, FIRST, "228"))._replace(reserved=frozenset({FIRST})))
    assert list(kernel.instances) == [FOREIGN], "what can be made of the definitions is made"


def test_definitions_that_cannot_be_met_are_told() -> None:
    kernel = ModelKernel([t4(1)])
    one, two, three, four, five = uuids(5)
    rows = [(one, FIRST, "228"), (two, FIRST, "228"), (three, FIRST, "228"), (four, FIRST, "222")]
    plan = settle(kernel, defined(*rows, (five, "0000:99:00.0", "228")))
    assert short(kernel) == ["2×228"]
    each_names(
        sorted(each.message for each in plan.problems),
        (FIRST, 1, "nvidia-222", 0, 2, "nvidia-228"),
        (FIRST, 3, "nvidia-228", 2),
        (five, "0000:99:00.0", "node"),
    )


@pytest.mark.parametrize(
    ("card", "parent", "number", "facts"),
    [
        (t4(1), FIRST, "22", (FIRST, "nvidia-22")),
        (Card(PF, T4_TYPES, vfs=("0000:81:00.4",)), PF, "223", (PF, "mediated devices")),
    ],
)
def test_a_definition_that_cannot_be_met_leaves_its_card_as_it_is(
    card: Card, parent: str, number: str, facts: tuple[str, ...]
) -> None:
    kernel = ModelKernel([card])
    settle(kernel, wanted("222"))
    before = kernel.instances
    plan = settle(kernel, defined((FOREIGN, parent, number)))
    assert kernel.instances == before
    each_names([each.message for each in plan.problems], (FOREIGN, *facts))
    assert len(plan.cards[0].notes) == 1


def test_a_definition_that_names_a_vf_of_the_vendors_framework_leaves_the_card_as_it_is() -> None:
    kernel = ModelKernel([vgpu_card()])
    made: dict[str, str] = {}
    settle(kernel, wanted("223"), made=made)
    vf = kernel.cards[0].vfs[0]
    plan = settle(kernel, defined((FOREIGN, vf, "223")), made=made)
    assert short(kernel) == ["4×223"]
    each_names([each.message for each in plan.problems], (FOREIGN, vf, "mediated devices"))


def test_a_wrong_definition_does_not_stand_in_the_way_of_the_others() -> None:
    kernel = ModelKernel([t4(1)])
    wrong, *good = uuids(3)
    plan = settle(kernel, defined((wrong, FIRST, "999"), *((uuid, FIRST, "228") for uuid in good)))
    assert list(kernel.instances) == good
    each_names([each.message for each in plan.problems], (wrong, "nvidia-999", FIRST))


def test_definitions_on_a_node_without_cards_are_told() -> None:
    wish = defined((FOREIGN, FIRST, "228"))._replace(types=())
    plan = settle(ModelKernel([]), wish)
    each_names([each.message for each in plan.problems], ("node", "mediated devices", "vGPU"))
