# SPDX-License-Identifier: Apache-2.0
"""What the documented examples leave open: counts, room, what waits, what fails, whose a device is."""

from __future__ import annotations

from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import ActionKind, Plan, create_mdev, remove_mdev, set_vgpu_type
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy.change import guards, ownership
from nodeagent.sim.mdev import Card, Sizes, Type
from tests.facts import contains, each_names, names
from tests.policy.change.splitting import (
    MACHINE,
    T4_TYPES,
    adopting,
    listed,
    planned,
    settle,
    short,
    t4,
    wanted,
)
from tests.policy.samples import reserved
from tests.sim.mdevs import ModelKernel

FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def test_nothing_is_done_unless_it_is_asked_for() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("222"))
    wish = MdevSpec(types=listed("223"))
    assert planned(kernel, wish) == Plan()


def test_a_count_holds_for_each_card() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, wanted(WantedType("nvidia-222", 4)))
    assert short(kernel) == ["4×222", "4×222"]
    settle(kernel, wanted(WantedType("nvidia-222", 6)))
    assert short(kernel) == ["6×222", "6×222"]


def test_a_smaller_count_removes_what_nobody_holds() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("222"))
    held = list(kernel.instances)[-3:]
    for each in held:
        kernel.hold(each)
    plan = settle(kernel, wanted(WantedType("nvidia-222", 2)))
    assert list(kernel.instances) == held
    each_names([waiting.why for waiting in plan.waiting], (2, "nvidia-222", "ns/vm"))


def test_a_count_above_what_fits_is_told_and_the_rest_is_made() -> None:
    kernel = ModelKernel([t4(1)])
    plan = settle(kernel, wanted(WantedType("nvidia-228", 3)))
    assert short(kernel) == ["2×228"]
    each_names([each.message for each in plan.problems], ("0000:01:00.0", 3, "nvidia-228", 2))


def test_a_count_above_what_fits_takes_nothing_from_what_is_there() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted(WantedType("nvidia-228", 1)))
    plan = planned(kernel, wanted(WantedType("nvidia-228", 3)))
    assert [step.action.kind for step in plan.steps] == [ActionKind.CREATE_MDEV]
    each_names([each.message for each in plan.problems], ("0000:01:00.0", 3, "nvidia-228", 2))


def test_an_unknown_type_is_told_once_and_the_rest_is_made() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    plan = settle(kernel, wanted("22", "223"))
    assert short(kernel) == ["8×223", "8×223"]
    assert plan.problems == ()
    each_names([each.message for each in plan.notes], ("nvidia-22",))


def test_a_list_of_types_that_no_card_offers_is_a_problem() -> None:
    plan = settle(ModelKernel([t4(1)]), wanted("22", "23"))
    assert (len(plan.problems), plan.notes) == (2, ())


def test_an_excluded_type_is_neither_made_nor_removed() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, wanted("222", "228"))
    plan = settle(kernel, adopting(wanted("222", "224", excluded=("GRID_T4-1B",))))
    assert short(kernel) == ["16×222", "8×224"]
    each_names([each.message for each in plan.problems], ("nvidia-222", "excluded"))


def test_an_empty_card_tells_why_it_is_for_nothing() -> None:
    wishes = wanted(), wanted("999"), wanted("222", excluded=("GRID T4-1B",))
    notes = [planned(ModelKernel([t4(1)]), wish).cards[0].notes for wish in wishes]
    assert [len(each) for each in notes] == [1, 1, 1]
    assert [contains(note, "Node") for (note,) in notes] == [True, False, False]
    assert [contains(note, "excluded") for (note,) in notes] == [False, False, True]


def test_room_that_appears_is_used() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("222"))
    lost = list(kernel.instances)[3]
    kernel.remove(lost)
    (step,) = planned(kernel, wanted("222")).steps
    assert step.action.targets == {lost}
    names(step.why, "nvidia-222")


def test_an_instance_without_a_driver_is_made_anew() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    dead = next(iter(kernel.instances))
    kernel.unbind(dead)
    steps = planned(kernel, wanted("228")).steps
    assert steps[0].action == remove_mdev("0000:01:00.0", "0000:01:00.0", "nvidia-228", dead)
    names(steps[0].why, "driver")
    settle(kernel, wanted("228"))
    assert short(kernel) == ["2×228"]


def test_nothing_is_removed_before_the_kubelet_has_told_who_holds_what() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    plan = planned(kernel, wanted("222"), allocations=Allocations(knowledge=Knowledge.PARTIAL))
    assert plan.steps == ()
    (why,) = {waiting.why for waiting in plan.waiting}
    names(why, "nvidia-228", guards.UNKNOWN)


def test_nothing_is_removed_that_something_on_the_host_has_open() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("229"))
    (used,) = kernel.instances
    plan = planned(kernel, wanted("222"), open=frozenset({used}))
    assert plan.steps == ()
    names(plan.waiting[0].why, "nvidia-229", "open")


def test_what_was_given_to_a_pod_a_moment_ago_is_told_as_that_and_stays() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    first, _ = kernel.instances
    plan = planned(kernel, wanted("222"), reservations=reserved([first]), open=frozenset({first}))
    assert [waiting.action.targets for waiting in plan.waiting] == [{first}]
    names(plan.waiting[0].why, "pod")
    assert len(plan.steps) == 1


def test_a_pod_that_holds_the_group_holds_the_device() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("229"))
    (number,) = kernel.host().groups
    kernel.hold(str(number))
    assert planned(kernel, wanted("222")).steps == ()


def test_a_removal_that_is_under_way_keeps_its_card_and_its_uuid() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("228"))
    open_one = next(iter(kernel.instances))
    kernel.hold(open_one)
    assert kernel.remove(open_one) is False
    plan = settle(kernel, wanted("222"), holders={})
    assert kernel.instances == {}
    each_names([waiting.why for waiting in plan.waiting], ("nvidia-228", "removal"))
    (step,) = planned(kernel, wanted("228"), holders={}).steps
    assert open_one not in step.action.targets
    kernel.release(open_one)
    settle(kernel, wanted("222"))
    assert short(kernel) == ["16×222"]


def test_a_removal_that_is_under_way_counts_as_done_when_a_count_falls() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted(WantedType("nvidia-222", 2)))
    stays, leaves = kernel.instances
    kernel.hold(leaves)
    assert kernel.remove(leaves) is False
    plan = planned(kernel, wanted(WantedType("nvidia-222", 1)), holders={})
    assert plan.steps == ()
    kernel.release(leaves)
    settle(kernel, wanted(WantedType("nvidia-222", 1)))
    assert list(kernel.instances) == [stays]


def test_a_card_that_fails_waits_and_the_others_are_filled() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    failed = {create_mdev("0000:01:00.0", "0000:01:00.0", "nvidia-222", "any").attempt: "the kernel said EIO"}
    plan = settle(kernel, wanted("222", "223"), failures=failed)
    assert short(kernel) == ["-", "8×223"]
    each_names([waiting.why for waiting in plan.waiting], ("the kernel said EIO",))
    settle(kernel, wanted("222", "223"))
    assert short(kernel) == ["16×222", "8×223"]


def test_a_removal_that_fails_waits_for_its_next_try() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("229"))
    (instance,) = kernel.instances
    failed = {
        remove_mdev("0000:01:00.0", "0000:01:00.0", "nvidia-229", instance).attempt: "the kernel said EIO"
    }
    plan = planned(kernel, wanted("222"), failures=failed)
    assert plan.steps == ()
    names(plan.waiting[0].why, "the kernel said EIO")


def test_a_vf_that_fails_waits_and_the_others_are_filled() -> None:
    vfs = ("0000:86:00.4", "0000:86:00.5", "0000:86:00.6")
    kernel = ModelKernel([Card("0000:86:00.0", (Type("557", 3, "NVIDIA A40-16Q"),), vfs=vfs, vgpu=True)])
    failed = {set_vgpu_type("0000:86:00.0", vfs[0], "557").attempt: "the kernel said EIO"}
    one = WantedType("557", 1)
    plan = settle(kernel, wanted(one), failures=failed)
    assert list(kernel.instances) == [vfs[1]], "another takes its place"
    assert plan.waiting == ()
    plan = settle(kernel, wanted("NVIDIA A40-16Q"), failures=failed, made={vfs[1]: "557"})
    assert sorted(kernel.instances) == [vfs[1], vfs[2]]
    each_names([waiting.why for waiting in plan.waiting], ("the kernel said EIO",))


def test_removals_come_before_creations() -> None:
    kernel = ModelKernel([t4(1), t4(2)])
    settle(kernel, wanted("228"))
    kernel.cards.append(t4(0))
    steps = planned(kernel, wanted("229")).steps
    assert [step.action.kind for step in steps] == [ActionKind.REMOVE_MDEV] * 4 + [ActionKind.CREATE_MDEV]


def test_the_vfs_of_a_card_are_one_card() -> None:
    vfs = tuple(f"0000:81:00.{number}" for number in range(4, 8))
    kernel = ModelKernel([Card("0000:81:00.0", T4_TYPES, vfs=vfs), t4(82)])
    settle(kernel, wanted("228", "222"))
    assert short(kernel) == ["2×228", "16×222"]
    assert [parent for parent, _ in kernel.instances.values()][:2] == list(vfs[:2])


def test_the_ids_of_devices_are_the_same_after_a_boot_and_differ_between_machines() -> None:
    first, second = ModelKernel([t4(1)]), ModelKernel([t4(1)])
    settle(first, wanted("222"))
    settle(second, wanted("222"))
    assert list(first.instances) == list(second.instances)
    other = ownership.build_uuid("another", "0000:01:00.0", "nvidia-222", 0)
    assert other not in first.instances
    assert not ownership.is_own_uuid(MACHINE, "0000:01:00.0", "nvidia-222", other)


def test_the_number_of_an_instance_can_be_read_off_its_uuid() -> None:
    made = ownership.build_uuid(MACHINE, "0000:01:00.0", "nvidia-222", 18)
    assert made.endswith("0012")
    assert made[14] == "5"
    assert ownership.is_own_uuid(MACHINE, "0000:01:00.0", "nvidia-222", made)
    assert not ownership.is_own_uuid(MACHINE, "0000:01:00.0", "nvidia-223", made)
    assert not ownership.is_own_uuid(MACHINE, "0000:01:00.0", "nvidia-222", FOREIGN)


def test_a_parent_that_is_no_pci_function_is_a_card_of_its_own_and_comes_last() -> None:
    types = (Type("mtty-1", 24, "Single port serial"), Type("mtty-2", 12, "Dual port serial"))
    kernel = ModelKernel([Card("mtty", types, sizes=Sizes.ANY), t4(1)])
    plan = settle(kernel, wanted("Dual_port_serial", "222"))
    assert [card.address for card in plan.cards] == ["0000:01:00.0", "mtty"]
    assert short(kernel) == ["16×222", "12×mtty-2"]
