# SPDX-License-Identifier: Apache-2.0
"""Several types on one card: created as far as the kernel has room for each beside the others."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.base.errors import KernelRefused
from nodeagent.model.change import ActionKind, Ledger
from nodeagent.model.problem import ProblemCode
from nodeagent.model.spec import CardTypes, MdevSpec, WantedType
from nodeagent.policy.change.ownership import update_ledger
from nodeagent.sim.mdev import Card, Sizes, Type
from tests.facts import each_names, names
from tests.policy.change.splitting import planned, settle, wanted
from tests.sim.mdevs import ModelKernel

FIRST = "0000:3b:00.0"
VFS = tuple(f"0000:3b:00.{number}" for number in (4, 5, 6, 7))
A10 = (
    Type("nvidia-591", 6, "NVIDIA A10-4Q"),
    Type("nvidia-592", 4, "NVIDIA A10-6Q"),
    Type("nvidia-593", 2, "NVIDIA A10-12Q"),
    Type("nvidia-594", 6, "NVIDIA A10-4C"),
)
NUMBERS = tuple(Type(each.id.removeprefix("nvidia-"), each.most, each.name) for each in A10)
FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def desired(**counts: int) -> MdevSpec:
    """The counts of types on each card: ``_4Q=3``."""
    types = (WantedType(f"A10-{name[1:]}", count, short=True) for name, count in counts.items())
    return wanted()._replace(cards=(CardTypes(types=tuple(types)),))


def counts(kernel: ModelKernel) -> dict[str, int]:
    """Type → its instances, without those that nodeagent did not create."""
    found: dict[str, int] = {}
    for name, (_, type_id) in kernel.instances.items():
        if name != FOREIGN:
            short = next(each.name or "" for each in (*A10, *NUMBERS) if each.id == type_id).split("-")[1]
            found[f"_{short}"] = found.get(f"_{short}", 0) + 1
    return found


def test_several_types_are_planned_at_once() -> None:
    kernel = ModelKernel([Card(FIRST, A10, sizes=Sizes.MIXED)])
    plan = planned(kernel, desired(_4Q=3, _6Q=2))
    assert [step.action.type_id for step in plan.steps] == ["nvidia-591"] * 3 + ["nvidia-592"] * 2
    assert plan.cards[0].types == ("nvidia-591", "nvidia-592")
    settle(kernel, desired(_4Q=3, _6Q=2))
    assert counts(kernel) == {"_4Q": 3, "_6Q": 2}


def test_a_type_without_room_beside_the_first_is_a_problem_that_names_card_and_type() -> None:
    kernel = ModelKernel([Card(FIRST, A10)])
    plan = settle(kernel, desired(_4Q=3, _6Q=2))
    assert counts(kernel) == {"_4Q": 3}
    (problem,) = plan.problems
    assert (problem.code, problem.subject) == (ProblemCode.SHORTFALL, FIRST)
    names(problem.message, FIRST, 2, "nvidia-592", "A10-6Q", 0, 3, "nvidia-591")
    names(problem.hint, "-shm")


def test_types_of_one_size_need_no_mixed_mode() -> None:
    kernel = ModelKernel([Card(FIRST, A10)])
    assert settle(kernel, desired(_4Q=4, _4C=2)).problems == ()
    assert counts(kernel) == {"_4Q": 4, "_4C": 2}


def test_a_vf_gets_one_of_the_types() -> None:
    kernel = ModelKernel([Card(FIRST, NUMBERS, vfs=VFS, vgpu=True, sizes=Sizes.MIXED)])
    plan = planned(kernel, desired(_4Q=2, _6Q=1))
    assert [step.action.address for step in plan.steps] == list(VFS[:3])
    settle(kernel, desired(_4Q=2, _6Q=1), made={})
    assert counts(kernel) == {"_4Q": 2, "_6Q": 1}


def test_counts_change_by_type_and_used_instances_stay() -> None:
    kernel = ModelKernel([Card(FIRST, A10, sizes=Sizes.MIXED)])
    settle(kernel, desired(_4Q=3, _6Q=2))
    used = next(name for name, (_, type_id) in kernel.instances.items() if type_id == "nvidia-591")
    kernel.hold(used)
    plan = settle(kernel, desired(_6Q=2, _12Q=1))
    assert counts(kernel) == {"_4Q": 1, "_6Q": 2}
    assert [step.action.targets for step in plan.waiting] == [{used}]
    each_names(plan.cards[0].notes, ("nvidia-592", "nvidia-593"))
    kernel.release(used)
    assert settle(kernel, desired(_6Q=2, _12Q=1)).problems == ()
    assert counts(kernel) == {"_6Q": 2, "_12Q": 1}
    lost = next(iter(kernel.instances))
    kernel.remove(lost)
    (step,) = planned(kernel, desired(_6Q=2, _12Q=1)).steps
    assert step.action.targets == {lost}, "the missing one is created again under its UUID"


def test_a_type_that_the_card_does_not_offer_costs_the_others_nothing() -> None:
    kernel = ModelKernel([Card(FIRST, A10, sizes=Sizes.MIXED)])
    plan = settle(kernel, desired(_4Q=3, _8Q=1))
    assert counts(kernel) == {"_4Q": 3}
    each_names([each.message for each in plan.problems], ("A10-8Q",))


def test_a_second_name_of_a_type_is_not_a_type_that_the_card_lacks() -> None:
    plan = planned(ModelKernel([Card(FIRST, A10)]), desired(_4Q=3, _4QGFX=2))
    assert [step.action.type_id for step in plan.steps] == ["nvidia-591"] * 3
    assert plan.problems == ()


def test_a_type_that_the_kernel_refuses_costs_the_others_nothing() -> None:
    kernel = ModelKernel([Card(FIRST, A10, sizes=Sizes.MIXED)])
    failed = {f"{FIRST}/nvidia-591/create": "EIO"}
    plan = settle(kernel, desired(_4Q=3, _6Q=2), failures=failed)
    assert counts(kernel) == {"_6Q": 2}
    each_names([step.why for step in plan.waiting], ("EIO",))


def test_nothing_is_created_beside_an_instance_of_others() -> None:
    kernel = ModelKernel([Card(FIRST, A10, sizes=Sizes.MIXED)])
    kernel.create(FIRST, "nvidia-592", FOREIGN)
    assert planned(kernel, desired(_4Q=3, _6Q=2)).steps == ()


LISTS = st.dictionaries(st.sampled_from(["_4Q", "_6Q", "_12Q", "_4C"]), st.integers(1, 6), max_size=3)


@pytest.mark.parametrize("vgpu", [False, True])
@settings(deadline=None, max_examples=150)
@given(
    sizes=st.sampled_from(Sizes),
    lists=st.lists(LISTS, min_size=1, max_size=4),
    cuts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
)
def test_counts_are_never_exceeded_and_a_shortfall_means_no_room(
    vgpu: bool, sizes: Sizes, lists: list[dict[str, int]], cuts: list[tuple[int, int]]
) -> None:
    """Lists after each other, each cut short: the last one is met as far as the kernel has room."""
    card = Card(FIRST, NUMBERS, vfs=VFS, vgpu=True, sizes=sizes) if vgpu else Card(FIRST, A10, sizes=sizes)
    kernel, made = ModelKernel([card]), dict[str, str]()
    record = update_ledger(Ledger(), kernel.host(), {})
    for each, (first, kept) in zip(lists, cuts, strict=False):
        record = update_ledger(record, kernel.host(), {})
        plan = planned(kernel, desired(**each), ledger=record._replace(types=made))
        for step in plan.steps[first : first + kept]:
            try:
                kernel.apply(step.action)
            except KernelRefused as error:
                assert error.errno in (errno.ENOSPC, errno.EINVAL)
                continue
            if step.action.kind is ActionKind.SET_VGPU_TYPE:
                made[step.action.address] = step.action.type_id or ""
            elif step.action.kind is ActionKind.CLEAR_VGPU_TYPE:
                made.pop(step.action.address)
    last = lists[-1]
    plan = settle(kernel, desired(**last), made=made, record=record)
    found, here = counts(kernel), kernel.cards[0]
    assert found.keys() <= last.keys()
    short = {each for each in last if found.get(each, 0) < last[each]}
    assert all(found.get(each, 0) <= count for each, count in last.items())
    for name in short:
        mdev_type = next(one for one in here.types if (one.name or "").endswith(f"-{name[1:]}"))
        assert not any(kernel.available(here, parent, mdev_type) for parent in here.parents)
    assert [each.subject for each in plan.problems] == [FIRST] * len(short)
