# SPDX-License-Identifier: Apache-2.0
"""The plan for mdevs: KubeVirt's documented examples to the letter, then what they leave open.

W rows are examples of KubeVirt's user guide (host devices, mediated devices configuration) and what follows
from them; R rows are the cases of virt-handler's own tests (mediated_devices_types_test.go), made exact.
"""

from __future__ import annotations

import pytest

from nodeagent.model.spec import WantedType
from nodeagent.sim.mdev import Card
from tests.facts import each_names, names
from tests.policy.change.splitting import adopting, intel, on, planned, settle, short, t4, v100, wanted
from tests.sim.mdevs import ModelKernel

FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
NODE1 = {"kubernetes.io/hostname": "node1"}
NODE2 = {"kubernetes.io/hostname": "node2"}
FOUR = ("222", "228", "105", "108")
GUIDE = wanted("230", "223", "224", nodes=(on(NODE2, "234"),))


@pytest.mark.parametrize(
    ("types", "cards", "expected"),
    [
        pytest.param(FOUR, [t4(1), t4(2), t4(3)], ["16×222", "2×228", "16×222"], id="W1"),
        pytest.param(FOUR, [v100(1), v100(2)], ["16×105", "2×108"], id="W2"),
        pytest.param(FOUR, [t4(1), v100(2)], ["16×222", "16×105"], id="W3"),
        pytest.param(("223", "224"), [t4(1)], ["8×223"], id="W4"),
        pytest.param(("22", "223", "224"), [t4(1)], ["8×223"], id="W5"),
        pytest.param(
            ("A", "B"),
            [t4(1, "223"), t4(2, "223"), t4(3, "222", "223"), t4(4, "222", "223")],
            ["8×223", "8×223", "16×222", "16×222"],
            id="W14",
        ),
        pytest.param(("GRID T4-1B",), [t4(1)], ["16×222"], id="W17 a name"),
        pytest.param(("GRID_T4-1B",), [t4(1)], ["16×222"], id="W17 a name with underscores"),
        pytest.param(("GRID T4-1B", "GRID_T4-1B", "222"), [t4(1)], ["16×222"], id="W17 all three"),
        pytest.param(
            ("GRID T4-1B", "222", "223"), [t4(1), t4(2), t4(3)], ["16×222", "8×223", "16×222"], id="doubles"
        ),
        pytest.param(
            ("223", "224", "229", "i915-GVTg_V5_4"),
            [t4(65), t4(66), t4(67), intel()],
            ["1×i915-GVTg_V5_4", "8×223", "8×224", "1×229"],
            id="R1",
        ),
        pytest.param(("223",), [t4(65), t4(66), t4(67)], ["8×223"] * 3, id="R2"),
        pytest.param(("222", "223", "224", "228", "229"), [t4(65)], ["16×222"], id="R3"),
        pytest.param(("i915-GVTg_V5_4",), [t4(65), t4(66), t4(67)], ["-", "-", "-"], id="R4"),
        pytest.param(
            ("222", "228", "i915-GVTg_V5_4"),
            [t4(65), t4(66), intel()],
            ["1×i915-GVTg_V5_4", "16×222", "2×228"],
            id="R5",
        ),
    ],
)
def test_types_go_round_the_cards_as_documented(
    types: tuple[str, ...], cards: list[Card], expected: list[str]
) -> None:
    kernel = ModelKernel([Card(card.address, card.types) for card in reversed(cards)])
    types = tuple({"A": "222", "B": "223"}.get(each, each) for each in types)
    settle(kernel, wanted(*types))
    assert short(kernel) == expected
    settle(kernel, wanted())  # R10, W11
    assert short(kernel) == ["-"] * len(cards)


@pytest.mark.parametrize(
    ("labels", "count", "expected"),
    [
        pytest.param(NODE1, 2, ["16×230", "8×223"], id="W6"),
        pytest.param(NODE1, 3, ["16×230", "8×223", "8×224"], id="W6 with three cards"),
        pytest.param(NODE2, 3, ["1×234", "1×234", "1×234"], id="W7"),
    ],
)
def test_a_node_with_an_override_gets_nothing_of_the_general_list(
    labels: dict[str, str], count: int, expected: list[str]
) -> None:
    kernel = ModelKernel([t4(number) for number in range(1, count + 1)])
    settle(kernel, GUIDE, labels=labels)
    assert short(kernel) == expected


def test_an_override_that_no_card_supports_makes_nothing() -> None:  # W8
    kernel = ModelKernel([t4(1)])
    plan = settle(kernel, wanted("222", nodes=(on(NODE2, "999"),)), labels=NODE2)
    assert short(kernel) == ["-"]
    each_names([each.message for each in plan.problems], ("nvidia-999",))
    assert plan.cards[0].types == ()
    assert len(plan.cards[0].notes) == 1


def test_a_card_with_a_type_that_stays_wanted_keeps_its_devices() -> None:  # W9
    kernel = ModelKernel([t4(1), t4(2), t4(3)])
    settle(kernel, wanted(*FOUR))
    before = {name for name, (parent, _) in kernel.instances.items() if parent == "0000:02:00.0"}
    settle(kernel, wanted("228"))
    assert short(kernel) == ["2×228"] * 3
    assert before <= kernel.instances.keys()


def test_a_label_that_goes_brings_the_general_list_back() -> None:  # W10
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, GUIDE, labels=NODE2)
    settle(kernel, GUIDE, labels={})
    assert short(kernel) == ["16×230", "8×223"]


def test_cards_that_have_a_wanted_type_are_not_dealt_again() -> None:  # W12
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, wanted("222"))
    assert planned(kernel, wanted("222", "228")).steps == ()
    assert short(kernel) == ["16×222", "16×222"]


def test_a_type_without_room_passes_the_card_on() -> None:  # W13
    kernel = ModelKernel([t4(1)])
    kernel.switch_off("0000:01:00.0", "nvidia-222")
    settle(kernel, wanted("222", "223"))
    assert short(kernel) == ["8×223"]


def test_what_a_pod_holds_waits_and_is_taken_up_when_released() -> None:  # W15
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    held = next(iter(kernel.instances))
    kernel.hold(held)
    plan = settle(kernel, wanted("224"))
    assert list(kernel.instances) == [held]
    assert [waiting.action.targets for waiting in plan.waiting] == [{held}]
    names(plan.waiting[0].why, "nvidia-223", "ns/vm")
    assert plan.cards[0].types == ("nvidia-224",)
    each_names(plan.cards[0].notes, ("nvidia-224",))
    kernel.release(held)
    settle(kernel, wanted("224"))
    assert short(kernel) == ["8×224"]


def test_a_card_with_a_foreign_mdev_is_left_alone() -> None:  # W16
    kernel = ModelKernel([t4(1), t4(2)])
    kernel.create("0000:01:00.0", "nvidia-228", FOREIGN)
    plan = settle(kernel, wanted("222"))
    assert short(kernel) == ["1×228", "16×222"]
    assert [each.id for each in plan.cards[0].instances if not each.own] == [FOREIGN]
    each_names(plan.cards[0].notes, (plan.cards[0].instances[0].foreign,))
    settle(kernel, wanted())
    assert short(kernel) == ["1×228", "-"]


def test_a_card_of_ours_to_which_something_foreign_came_is_not_topped_up() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted(WantedType("nvidia-222", 4)))
    kernel.create("0000:01:00.0", "nvidia-222", FOREIGN)
    assert planned(kernel, wanted("222")).steps == ()
    settle(kernel, wanted("223"))
    assert list(kernel.instances) == [FOREIGN]


def test_a_foreign_mdev_may_be_adopted() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    kernel.create("0000:01:00.0", "nvidia-228", FOREIGN)
    settle(kernel, adopting(wanted("228")))
    assert short(kernel) == ["2×228", "2×228"]
    assert FOREIGN in kernel.instances
    settle(kernel, adopting(wanted("222")))
    assert short(kernel) == ["16×222", "16×222"]


def test_devices_come_as_soon_as_the_cards_do() -> None:  # R6
    kernel = ModelKernel([])
    plan = settle(kernel, wanted("222", "228", "i915-GVTg_V5_4"))
    each_names([each.message for each in plan.problems], ("node", "mediated devices", "vGPU"))
    kernel.cards += [t4(65), t4(66), intel()]
    assert settle(kernel, wanted("222", "228", "i915-GVTg_V5_4")).problems == ()
    assert short(kernel) == ["1×i915-GVTg_V5_4", "16×222", "2×228"]


OVERRIDES = (
    on({"testLabel1": "true"}, "223"),
    on({"testLabel2": "true"}, "229"),
    on({"testLabel3": "true", "testLabel4": "true"}, "230"),
)
GENERAL = ("222", "228", "i915-GVTg_V5_4")


@pytest.mark.parametrize(
    ("labels", "cards", "expected"),
    [
        pytest.param("", 2, ["16×222", "2×228"], id="none"),
        pytest.param("3", 2, ["16×222", "2×228"], id="half of an override"),
        pytest.param("34", 1, ["16×230"], id="R7"),
        pytest.param("1", 1, ["8×223"], id="R8"),
        pytest.param("12", 2, ["8×223", "1×229"], id="R9"),
    ],
)
def test_overrides_that_fit_replace_the_general_list(labels: str, cards: int, expected: list[str]) -> None:
    kernel = ModelKernel([t4(65 + number) for number in range(cards)])
    settle(kernel, wanted(*GENERAL, nodes=OVERRIDES), labels={f"testLabel{each}": "true" for each in labels})
    assert short(kernel) == expected


@pytest.mark.parametrize(
    ("nodes", "labels", "expected"),
    [
        pytest.param(OVERRIDES, {"testLabel1": "false"}, ["16×222"], id="another value"),
        pytest.param((on({"a": "b"}),), {"a": "b"}, ["16×222"], id="an empty list"),
        pytest.param((on({}, "224"),), {"a": "b"}, ["8×224"], id="an empty selector fits every node"),
    ],
)
def test_an_override_counts_only_where_it_fits_and_says_something(
    nodes: tuple[object, ...], labels: dict[str, str], expected: list[str]
) -> None:
    kernel = ModelKernel([t4(65)])
    settle(kernel, wanted(*GENERAL, nodes=nodes), labels=labels)
    assert short(kernel) == expected
