# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` prints: each card with what exists, what would be done, why, and what waits."""

from __future__ import annotations

import json

from nodeagent.model.action import CreateMdev, Step
from nodeagent.model.plan import Plan
from nodeagent.model.vf_action import SetNumVfs
from nodeagent.render import documents, plan
from nodeagent.sim.mdev_kernel import MdevKernel
from tests.policy.change.splitting import planned, settle, t4, wanted

FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def changed() -> tuple[MdevKernel, Plan]:
    """A held card that is to change, a card with something foreign, an empty card."""
    kernel = MdevKernel([t4(1), t4(2), t4(3)])
    kernel.create("0000:02:00.0", "nvidia-222", FOREIGN)
    kernel.cards, rest = kernel.cards[:2], kernel.cards[2:]
    settle(kernel, wanted("228"))
    kernel.hold(list(kernel.instances)[1])
    kernel.cards += rest
    return kernel, planned(kernel, wanted("223", "22"))


def test_each_card_tells_what_is_done_what_waits_and_why() -> None:
    kernel, found = changed()
    held, free = list(kernel.instances)[1:]
    assert plan.text(found, True).splitlines()[:12] == [
        "0000:01:00.0  is for nvidia-223, has 1 x nvidia-228 (held), 1 x nvidia-228",
        f"  remove mdev {free} of type nvidia-228 from 0000:01:00.0",
        "      because nvidia-228 is not wanted on this card",
        f"  WAITS: remove mdev {held} of type nvidia-228 from 0000:01:00.0",
        "      because nvidia-228 is not wanted on this card; held by ns/vm",
        "  note: it gets nvidia-223 when it is empty",
        "",
        "0000:02:00.0  is for nothing, has 1 x nvidia-222 (not ours)",
        "  note: something is on it that is not ours: nothing is made beside it",
        "",
        "0000:03:00.0  is for nvidia-223, has nothing",
        f"  {found.steps[1].action.describe()}",
    ]


def test_own_devices_of_an_excluded_type_are_told_as_what_they_are() -> None:
    kernel = MdevKernel([t4(1)])
    settle(kernel, wanted("229"))
    found = planned(kernel, wanted("222", excluded=("nvidia-229",)))
    assert plan.text(found, True).splitlines()[:2] == [
        "0000:01:00.0  is for nothing, has 1 x nvidia-229 (excluded)",
        "  note: something is on it that is excluded: nothing is made beside it",
    ]


def test_of_many_alike_only_a_few_are_shown_and_the_sum_counts_all() -> None:
    _, found = changed()
    lines = plan.text(found, True).splitlines()
    assert sum("create mdev" in line for line in lines) == plan.SHOWN
    assert "  ... and 4 more" in lines
    assert lines[-2:] == [
        'note: no card of this node offers the type "nvidia-22"',
        "to do: 9, waiting: 1",
    ]


def test_the_plain_data_leaves_nothing_out() -> None:
    _, found = changed()
    told = json.loads(json.dumps(documents.document(plan.answer(found, True))))
    assert [step["kind"] for step in told["steps"]] == ["remove-mdev"] + ["create-mdev"] * 8
    assert told["steps"][1]["card"] == "0000:03:00.0"
    assert told["steps"][0]["undo"] == found.steps[0].action.describe().replace("remove", "create").replace(
        "from", "on"
    )
    assert told["waiting"][0]["why"].endswith("held by ns/vm")
    assert [card["type"] for card in told["cards"]] == ["nvidia-223", None, "nvidia-223"]
    assert told["cards"][1]["exists"][0] == {
        "id": FOREIGN,
        "parent": "0000:02:00.0",
        "type": "nvidia-222",
        "own": False,
        "holder": None,
        "leaving": False,
    }


def test_virtual_functions_have_a_part_of_their_own() -> None:
    address = "0000:3b:00.0"
    vfs = Plan(
        (Step(SetNumVfs(address, 8), "it is to have 8 VFs"),),
        (Step(SetNumVfs("0000:3c:00.0", 0), "held"),),
    )
    assert plan.text(vfs, False).splitlines() == [
        "mdevs are not managed: no mdev or vGPU is made or removed",
        "",
        "virtual functions",
        "  set the number of VFs of 0000:3b:00.0 to 8",
        "      because it is to have 8 VFs",
        "  WAITS: set the number of VFs of 0000:3c:00.0 to 0",
        "      because held",
        "",
        "to do: 1, waiting: 1",
    ]


def test_a_change_that_belongs_to_no_card_is_shown_too() -> None:
    step = Step(CreateMdev("mtty", "mtty", "mtty-1", FOREIGN), "it is wanted")
    assert plan.text(Plan(steps=(step,)), True).splitlines()[2:] == [
        "other changes",
        f"  {step.action.describe()}",
        "      because it is wanted",
        "",
        "to do: 1, waiting: 0",
    ]


def test_the_plain_data_has_the_steps_in_the_order_of_the_daemon() -> None:
    _, found = changed()
    address = "0000:3b:00.0"
    first = Step(SetNumVfs(address, 8), "it is to have 8 VFs")
    both = Plan((first, *found.steps), (*found.waiting, *found.waiting))
    told = documents.document(plan.answer(both, True))
    assert [step["kind"] for step in told["steps"][:2]] == ["set-num-vfs", "remove-mdev"]
    assert told["steps"][0]["details"] == {"address": address, "count": 8}
    assert len(told["waiting"]) == 2


def test_a_plan_that_has_come_to_its_end_says_so() -> None:
    assert plan.text(Plan(), True).splitlines()[-1] == "nothing to do"
