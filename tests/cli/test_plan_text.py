# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` prints: each card with what exists, what would be done, why, and what waits."""

from __future__ import annotations

import json
import re

from nodeagent.cli import output, plan
from nodeagent.model.change import Plan, Step, create_mdev, set_num_vfs
from tests.facts import names
from tests.policy.change.splitting import planned, settle, t4, wanted
from tests.sim.mdevs import ModelKernel

FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def changed() -> tuple[ModelKernel, Plan]:
    """A held card that is to change, a card with something foreign, an empty card."""
    kernel = ModelKernel([t4(1), t4(2), t4(3)])
    kernel.create("0000:02:00.0", "nvidia-222", FOREIGN)
    kernel.cards, rest = kernel.cards[:2], kernel.cards[2:]
    settle(kernel, wanted("228"))
    kernel.hold(list(kernel.instances)[1])
    kernel.cards += rest
    return kernel, planned(kernel, wanted("223", "22"))


def excluded() -> Plan:
    """A card with a vGPU of a type that is excluded by now."""
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("229"))
    return planned(kernel, wanted("222", excluded=("nvidia-229",)))


VFS = Plan(
    (Step(set_num_vfs("0000:3b:00.0", 8), "8 VFs are configured"),),
    (Step(set_num_vfs("0000:3c:00.0", 0), "held"),),
)


def test_each_card_tells_what_is_done_what_waits_and_why() -> None:
    kernel, found = changed()
    held, free = list(kernel.instances)[1:]
    first, second, third, *_ = (each.splitlines() for each in plan.text(found, True).split("\n\n"))
    head, step, why, waiting, why_not, note = first
    names(head, "0000:01:00.0", "nvidia-223", "1 x nvidia-228")
    assert (step.strip(), free in step) == (found.steps[0].action.text, True)
    assert (found.steps[0].why in why, held in waiting) == (True, True)
    names(waiting, "waiting", found.waiting[0].action.text)
    names(why_not, "ns/vm")
    names(note, "nvidia-223")
    names(second[0], "0000:02:00.0", "1 x nvidia-222")
    assert found.cards[1].notes[0] in second[1]
    names(third[0], "0000:03:00.0", "nvidia-223")
    assert third[1].strip() == found.steps[1].action.text


def test_own_devices_of_an_excluded_type_are_told_as_what_they_are() -> None:
    first, second, *_ = plan.text(excluded(), True).splitlines()
    names(first, "0000:01:00.0", "1 x nvidia-229 (of an excluded type)")
    names(second, "excluded")


def test_of_many_alike_only_a_few_are_shown_and_the_sum_counts_all() -> None:
    _, found = changed()
    lines = plan.text(found, True).splitlines()
    assert sum("create mdev" in line for line in lines) == plan.SHOWN
    assert "  ... and 4 more" in lines
    names(lines[-2], "note: ", '"nvidia-22"')
    assert [word for word in re.split(r"\W+", lines[-1]) if word.isdigit()] == ["9", "1"]


def test_the_plain_data_leaves_nothing_out() -> None:
    _, found = changed()
    told = json.loads(json.dumps(output.document("Plan", plan.as_document(found, True))))
    assert [step["kind"] for step in told["steps"]] == ["remove-mdev"] + ["create-mdev"] * 8
    assert told["steps"][1]["card"] == "0000:03:00.0"
    assert told["steps"][0]["undo"] == found.steps[0].action.text.replace("remove", "create").replace(
        "from", "on"
    )
    names(told["waiting"][0]["message"], "ns/vm")
    assert [card["types"] for card in told["cards"]] == [["nvidia-223"], [], ["nvidia-223"]]
    assert told["cards"][1]["instances"][0] == {
        "id": FOREIGN,
        "parent": "0000:02:00.0",
        "type": "nvidia-222",
        "own": False,
        "holder": None,
        "removing": False,
    }


def test_virtual_functions_have_a_part_of_their_own() -> None:
    _, part, end = plan.text(VFS, False).split("\n\n")
    heading, step, why, waiting, why_not = part.splitlines()
    assert not heading.startswith(" ")
    assert step.strip() == VFS.steps[0].action.text
    names(why, "8 VFs are configured")
    names(waiting, "waiting", VFS.waiting[0].action.text)
    names(why_not, "held")
    assert [word for word in re.split(r"\W+", end) if word.isdigit()] == ["1", "1"]


def test_a_change_that_belongs_to_no_card_is_shown_too() -> None:
    step = Step(create_mdev("mtty", "mtty", "mtty-1", FOREIGN), "it is wanted")
    _, part, _ = plan.text(Plan(steps=(step,)), True).split("\n\n")
    heading, what, why = part.splitlines()
    assert heading != plan.text(VFS, True).split("\n\n")[1].splitlines()[0]
    assert what.strip() == step.action.text
    names(why, "it is wanted")


def test_the_plain_data_has_the_steps_in_the_order_of_the_daemon() -> None:
    _, found = changed()
    address = "0000:3b:00.0"
    first = Step(set_num_vfs(address, 8), "8 VFs are configured")
    both = Plan((first, *found.steps), (*found.waiting, *found.waiting))
    told = output.document("Plan", plan.as_document(both, True))
    assert [step["kind"] for step in told["steps"][:2]] == ["set-num-vfs", "remove-mdev"]
    assert told["steps"][0]["details"] == {"address": address, "count": 8}
    assert len(told["waiting"]) == 2


def test_a_plan_that_has_come_to_its_end_says_so() -> None:
    assert plan.text(Plan(), True).splitlines()[-1] == "nothing to do"
