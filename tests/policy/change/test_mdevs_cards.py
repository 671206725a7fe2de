# SPDX-License-Identifier: Apache-2.0
"""Cards with a list of their own, and vGPUs of a vendor's driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.cli import scan
from nodeagent.model.change import ActionKind, Ledger, clear_vgpu_type, set_vgpu_type
from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CardTypes, MdevSpec, Spec, WantedType
from nodeagent.policy.change.ownership import update_ledger
from nodeagent.policy.explain import devices
from nodeagent.policy.offer import turn
from nodeagent.sim.mdev import Card, Type
from tests.facts import each_names
from tests.policy.change.splitting import (
    planned,
    settle,
    short,
    t4,
    v100,
    vgpu_card,
    wanted,
)
from tests.policy.samples import host, vgpu
from tests.sim.mdevs import ModelKernel

FIRST = "0000:01:00.0"
T4_8 = WantedType("T4-1B", 8, short=True)


def given(*cards: CardTypes, types: tuple[str, ...] = ()) -> MdevSpec:
    return wanted(*types)._replace(cards=cards)


def test_a_card_with_a_list_of_its_own_is_left_out_of_the_round() -> None:
    kernel = ModelKernel([t4(1), t4(2), t4(3)])
    settle(kernel, given(CardTypes((1,), types=(T4_8,)), types=("223", "224")))
    assert short(kernel) == ["8×223", "8×222", "8×224"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((("10de", "1eb8", None, None),), ["8×222"]),
        ((("10de", "25b6", None, None), ("10de", "1eb8", None, None)), ["8×222"]),
        ((("10de", "1eb8", "10de", "14a9"),), ["-"]),
        ((("10de", "25b6", None, None),), ["-"]),
    ],
)
def test_a_filter_on_ids_picks_cards(
    filters: tuple[tuple[str, str, str | None, str | None], ...], expected: list[str]
) -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, given(CardTypes(None, filters, (T4_8,))))
    assert short(kernel) == expected


def test_positions_count_nvidias_display_controllers_and_no_vfs() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    here = kernel.host()
    others = (
        PciFunction(PciAddress("0000:00:02.0"), vendor="8086", device="1912", pci_class="030000"),
        PciFunction(PciAddress("0000:00:03.0"), vendor="10de", device="10f8", pci_class="040300"),
        PciFunction(
            PciAddress("0000:00:04.4"),
            vendor="10de",
            device="2235",
            pci_class="030200",
            physfn=PciAddress("0000:00:04.0"),
        ),
    )
    there = replace(here, functions={**here.functions, **{each.address: each for each in others}})
    plan = planned(kernel, given(CardTypes((1,), types=(T4_8,))), host=there)
    assert {step.action.card for step in plan.steps} == {"0000:02:00.0"}


def test_the_last_entry_that_fits_a_card_counts_and_an_empty_one_empties_it() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, wanted("228"))
    plan = settle(kernel, given(CardTypes(types=(T4_8,)), CardTypes((0,))))
    assert short(kernel) == ["-", "8×222"]
    assert plan.cards[0].types == ()
    each_names(plan.cards[0].notes, ("empty",))


def test_a_short_name_is_the_last_word_of_a_name() -> None:
    kernel = ModelKernel([v100(1)])
    settle(kernel, given(CardTypes(types=(WantedType("V100-8Q", 2, short=True),))))
    assert short(kernel) == ["2×108"]
    plan = settle(kernel, given(CardTypes(types=(WantedType("8Q", 2, short=True),))))
    each_names([each.message for each in plan.problems], ("8Q",))


V100_8 = WantedType("V100-8Q", 2, short=True)


def test_a_type_that_a_card_does_not_offer_takes_nothing_from_it_and_is_told() -> None:
    kernel = ModelKernel([t4(1), v100(2)])
    settle(kernel, given(CardTypes((1,), types=(V100_8,))))
    plan = settle(kernel, given(CardTypes(types=(T4_8,))))
    assert short(kernel) == ["8×222", "2×108"]
    each_names([each.message for each in plan.problems], ("0000:02:00.0", "T4-1B"))
    assert len(plan.cards[1].notes) == 1
    plan = settle(kernel, given(CardTypes(), CardTypes(types=(T4_8,))))
    assert short(kernel) == ["8×222", "2×108"], "what empties a card is not what is left when the rest fails"


def test_an_excluded_type_of_a_card_takes_nothing_from_it() -> None:
    kernel = ModelKernel([v100(1)])
    settle(kernel, wanted("105"))
    plan = settle(kernel, given(CardTypes(types=(V100_8,)))._replace(excluded=("nvidia-108",)))
    assert short(kernel) == ["16×105"]
    each_names([each.message for each in plan.problems], ("V100-8Q", "excluded"))


def test_an_entry_for_another_model_with_the_same_ids_does_not_count() -> None:
    """In NVIDIA's own file 0x1E7810DE is the RTX 8000, and below that the RTX 6000."""
    kernel = ModelKernel([Card(FIRST, (Type("nvidia-300", 2, "GRID RTX8000P-24Q"),))])
    entries = [
        CardTypes(types=(WantedType(name, 2, short=True),)) for name in ("RTX8000P-24Q", "RTX6000P-12Q")
    ]
    plan = settle(kernel, given(*entries))
    assert short(kernel) == ["2×300"]
    assert plan.problems == ()


def test_entries_for_other_gpus_are_no_problems_and_none_for_any_is_one() -> None:
    kernel = ModelKernel([t4(1)])
    others = tuple(CardTypes(None, (("10de", each, None, None),), (V100_8,)) for each in ("1db6", "20b0"))
    assert settle(kernel, given(*others, CardTypes(types=(T4_8,)))).problems == ()
    assert short(kernel) == ["8×222"]
    plan = settle(kernel, given(*others))
    each_names([each.message for each in plan.problems], ("vgpu-device-manager",))


def test_a_full_card_of_the_vendors_framework_changes_to_a_type_that_it_does_not_list() -> None:
    kernel = ModelKernel([vgpu_card()])
    record, made = update_ledger(Ledger(), kernel.host(), {}), dict[str, str]()
    settle(kernel, given(CardTypes(types=(WantedType("T4-1B", 4, short=True),))), made=made)
    assert short(kernel) == ["4×222"]
    wish = given(CardTypes(types=(WantedType("T4-8A", 2, short=True),)))
    plan = planned(kernel, wish, ledger=record._replace(types=made))
    assert [step.action.kind for step in plan.steps] == [ActionKind.CLEAR_VGPU_TYPE] * 4


@pytest.mark.parametrize(
    ("name", "offered", "makes"),
    [
        ("DC-1-24QGFX", ("DC-1-24Q", "DC-48Q"), "DC-1-24Q"),
        ("DC-1-24QGFX", ("DC-1-24Q", "DC-1-24QGFX"), "DC-1-24QGFX"),
        ("A100-1-5CME", ("A100-1-5C",), None),
        ("A100-1-5CNOME", ("A100-1-5C",), None),
        ("A100-1-5CMEALL", ("A100-1-5C",), None),
        ("A100-1-5C", ("A100-1-5CME",), None),
    ],
)
def test_only_the_suffix_gfx_is_dropped_where_the_driver_does_not_name_it(
    name: str, offered: tuple[str, ...], makes: str | None
) -> None:
    card = Card(FIRST, tuple(Type(each, 4, f"NVIDIA Some Model {each}") for each in offered))
    kernel = ModelKernel([card])
    plan = settle(kernel, given(CardTypes(types=(WantedType(name, 1, short=True),))))
    assert [kind for _, kind in kernel.instances.values()] == [makes] * bool(makes)
    assert bool(plan.problems) == (makes is None)
    assert planned(kernel, given(CardTypes(types=(WantedType(name, 1, short=True),)))).steps == ()


@pytest.mark.parametrize("name", ["nvidia-228", "228", "GRID_T4-8A", "GRID T4-8A", "GRID T4-8A "])
def test_vfs_get_the_types_of_the_same_plan(name: str) -> None:
    kernel = ModelKernel([vgpu_card("81"), vgpu_card("82")])
    made: dict[str, str] = {}
    settle(kernel, wanted(name, "nvidia-223"), made=made)
    assert short(kernel) == ["2×228", "4×223"]
    settle(kernel, wanted("nvidia-223"), made=made)
    assert short(kernel) == ["4×223", "4×223"]
    settle(kernel, wanted(), made=made)
    assert short(kernel) == ["-", "-"]
    assert made == {}


@pytest.mark.parametrize(
    ("other", "makes"),
    [({}, True), ({"physfn": None}, True), ({"driver": None}, False), ({"sriov_capable": True}, False)],
)
def test_what_a_scan_lists_types_for_is_what_a_plan_makes_vgpus_of(other: Any, makes: bool) -> None:
    here = host(vgpu(vgpu_type=None, vgpu_types=(("222", "GRID T4-1B"),), **other))
    plan = planned(ModelKernel([]), wanted("222"), host=here)
    action = set_vgpu_type("0000:65:00.0" if "physfn" not in other else "0000:65:00.4", "0000:65:00.4", "222")
    assert [step.action for step in plan.steps] == [action] * makes
    assert (
        "GRID T4-1B" in scan.text(here, tuple(devices.rows(turn.decide_first(Snapshot(here, Spec())))))
    ) == makes


def test_a_vgpu_that_somebody_else_made_is_left_alone_unless_adopted() -> None:
    kernel = ModelKernel([vgpu_card()])
    vf = kernel.cards[0].vfs[0]
    kernel.set_vgpu_type(vf, "222")
    assert planned(kernel, wanted("223")).steps == ()
    (step,) = planned(kernel, wanted("223")._replace(adopt=True)).steps
    assert step.action == clear_vgpu_type(kernel.cards[0].address, vf, "222")


def test_a_vgpu_that_a_pod_holds_waits() -> None:
    kernel = ModelKernel([vgpu_card()])
    made: dict[str, str] = {}
    settle(kernel, wanted(WantedType("222", 1)), made=made)
    (vf,) = made
    kernel.hold(vf)
    plan = planned(kernel, wanted("223"), ledger=Ledger(made))
    assert plan.steps == ()
    assert plan.waiting[0].action == clear_vgpu_type(kernel.cards[0].address, vf, "222")


def test_a_count_holds_for_the_vfs_of_a_card() -> None:
    kernel = ModelKernel([vgpu_card()])
    actions = [step.action for step in planned(kernel, wanted(WantedType("nvidia-222", 3))).steps]
    assert actions == [set_vgpu_type(kernel.cards[0].address, vf, "222") for vf in kernel.cards[0].vfs[:3]]


def test_room_that_cannot_be_read_is_none_and_is_told() -> None:
    here = ModelKernel([t4(1)]).host()
    blind = {
        parent: tuple(kind._replace(available=None) for kind in kinds)
        for parent, kinds in here.mdev_parents.items()
    }
    plan = planned(ModelKernel([]), wanted("222"), host=replace(here, mdev_parents=blind))
    assert plan.steps == ()
    each_names(plan.cards[0].notes, ("room",), ("available_instances", 0))
