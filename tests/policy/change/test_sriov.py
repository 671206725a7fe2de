# SPDX-License-Identifier: Apache-2.0
"""How many VFs a function is to have: from none to n at once, else over none, and never under anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import Action, Plan, run_sriov_manage, set_num_vfs
from nodeagent.model.host import Host, Mdev, PciFunction, Sight
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PciSelector, Spec, SriovRule
from nodeagent.policy.change import guards, sriov
from tests.facts import each_names, names
from tests.policy.samples import function, holders, host, reserved

PF = PciAddress("0000:3b:00.0")
VF = PciAddress("0000:3b:00.2")
RULES = (SriovRule((PciSelector(addresses=("0000:3b:*",)),), 8),)
KNOWN = Snapshot(allocations=Allocations.of({}, Knowledge.COMPLETE))
GIVEN = replace(KNOWN, reservations=reserved([VF]), open=frozenset({VF}))


def physical(*vfs: PciFunction, **other: Any) -> Host:
    values = {"driver": "ice", "sriov_capable": True, "vfs": tuple(vf.address for vf in vfs)} | other
    return host(function(PF, 1, **values), *vfs)


def virtual(**other: Any) -> PciFunction:
    return function(VF, 2, **({"physfn": PF, "driver": None} | other))


def planned(here: Host, rules: tuple[SriovRule, ...] = RULES, known: Snapshot = KNOWN) -> Plan:
    """The plan for this host under these rules; ``known`` is what else there is to know."""
    return sriov.plan(replace(known, host=here, spec=Spec(sriov=rules)))


def held(*ids: str) -> Snapshot:
    return replace(KNOWN, allocations=Allocations.of(holders(*ids), Knowledge.COMPLETE))


def told(plan: Plan) -> tuple[list[Action], list[str]]:
    return [each.action for each in plan.steps], [each.why for each in plan.waiting]


def test_vfs_are_made_where_there_are_none() -> None:
    assert told(planned(physical(), RULES, Snapshot())) == ([set_num_vfs(PF, 8)], [])


def test_another_number_goes_over_none() -> None:
    assert told(planned(physical(virtual()))) == ([set_num_vfs(PF, 0, (VF,))], [])


def test_nothing_is_written_to_a_function_that_left_vfs_behind_and_a_person_is_told() -> None:
    here = host(function(PF, 1, driver="nvme", sriov_capable=True), virtual(left_behind=True))
    plan = planned(here)
    assert (plan.steps, plan.waiting) == ((), ())
    (problem,) = plan.problems
    names(problem.message, PF, VF)
    names(problem.hint, "reboot")
    assert planned(here, ()) == Plan()


@pytest.mark.parametrize("vfs", [(), (virtual(),)], ids=["none yet", "some"])
@pytest.mark.parametrize(
    ("pf", "known", "facts"),
    [
        ({}, Snapshot(), (guards.UNKNOWN,)),
        ({}, held(PF), (PF, "ns/vm")),
        ({}, held("1"), (PF, "ns/vm")),
        ({}, replace(KNOWN, reservations=reserved([PF])), (PF, "pod")),
        ({}, replace(KNOWN, open=frozenset({PF})), (PF, "open")),
        ({"enable": 1}, KNOWN, (PF, "open")),
    ],
)
def test_the_number_stays_while_a_pod_or_an_open_file_has_the_function_itself(
    vfs: tuple[PciFunction, ...], pf: dict[str, Any], known: Snapshot, facts: tuple[str, ...]
) -> None:
    plan = planned(physical(*vfs, driver="vfio-pci", **pf), RULES, known)
    assert plan.steps == ()
    names(plan.waiting[0].why, *facts)


@pytest.mark.parametrize(
    ("sight", "steps", "seen_open"),
    [
        (Sight(whole=True), 1, []),
        (Sight(), 0, [False]),
        (None, 0, [False]),
        (Sight("qemu (4711)", whole=True), 0, [True]),
    ],
    ids=["nobody is seen", "not all is seen", "nobody has looked", "somebody is seen"],
)
@pytest.mark.parametrize("left", [PF, VF])
def test_a_count_that_a_former_driver_left_is_no_open_file(
    left: PciAddress, sight: Sight | None, steps: int, seen_open: list[bool]
) -> None:
    """i915 leaves it above zero; what is open is looked for where it can be seen."""
    counts = {"driver": "vfio-pci", "enable": 1, "idle": 1, "sight": sight}
    here = physical(virtual(), **counts) if left == PF else physical(virtual(**counts))
    plan = planned(here)
    assert len(plan.steps) == steps
    opened = guards.describe_user(left, replace(KNOWN, host=here, open=frozenset({left})))
    assert [each.why.rpartition("; ")[2] == opened for each in plan.waiting] == seen_open
    for each in plan.waiting:
        names(each.why, left, "open")


def test_nobody_gets_a_function_of_vfio_while_its_number_is_changed() -> None:
    (step,) = planned(physical(driver="vfio-pci")).steps
    assert step.action.takes == {PF}
    (step,) = planned(physical()).steps
    assert step.action.takes == frozenset()


def test_the_right_number_is_left_alone_and_so_is_what_no_rule_picks() -> None:
    one = (replace(RULES[0], num_vfs=1),)
    assert planned(physical(virtual()), one) == Plan()
    assert planned(physical(), ()) == Plan()


@pytest.mark.parametrize(
    ("vf", "known", "facts"),
    [
        (virtual(), Snapshot(), (guards.UNKNOWN,)),
        (virtual(), held(VF), (VF, "ns/vm")),
        (virtual(), held("2"), (VF, "ns/vm")),
        (virtual(), replace(KNOWN, open=frozenset({VF})), (VF, "open")),
        (virtual(), GIVEN, (VF, "pod")),
        (virtual(driver="vfio-pci", enable=1), KNOWN, (VF, "open")),
        (virtual(driver="iavf"), KNOWN, (VF, "iavf")),
        (virtual(vgpu_type="256"), KNOWN, (VF, "vGPU", "256")),
    ],
)
def test_vfs_stay_while_anybody_uses_one(vf: PciFunction, known: Snapshot, facts: tuple[str, ...]) -> None:
    plan = planned(physical(vf), RULES, known)
    assert plan.steps == ()
    names(plan.waiting[0].why, "8", "1", *facts)


@pytest.mark.parametrize("vfs", [(), (virtual(),)], ids=["none yet", "some"])
def test_more_vfs_than_the_function_can_have_are_not_tried(vfs: tuple[PciFunction, ...]) -> None:
    plan = planned(physical(*vfs, total_vfs=7))
    assert told(plan) == ([], [])
    each_names([each.message for each in plan.problems], (PF, 8, len(vfs), 7))
    assert planned(physical(*vfs, total_vfs=8)).problems == ()


def test_a_rule_gets_a_note_if_no_function_that_it_matches_supports_sr_iov() -> None:
    other = function("0000:3b:00.1", 3, driver="ice")
    (note,) = planned(host(function(PF, 1, driver="ice"), other)).notes
    names(note.message, PF, other.address, 8)
    assert planned(host(function("0000:5e:00.0", 1, driver="ice"))).notes == (), "it may be of other nodes"
    assert planned(physical(other)).notes == (), "the rule has a function"
    assert planned(host(function(PF, 1)), (replace(RULES[0], num_vfs=0),)).notes == ()
    assert planned(host(virtual())).notes == (), "VFs have none of their own"


def test_vfs_with_mdevs_stay() -> None:
    here = replace(physical(virtual()), mdevs={"u": Mdev("u", VF, "t-1")})
    assert told(planned(here))[0] == []


def test_a_function_without_a_driver_and_one_that_failed_wait() -> None:
    names(told(planned(physical(driver=None)))[1][0], "driver")
    failed = replace(KNOWN, failures={set_num_vfs(PF, 8).attempt: "the kernel said ENOSPC"})
    assert "the kernel said ENOSPC" in told(planned(physical(), RULES, failed))[1][0]


GPU_RULES = (replace(RULES[0], num_vfs=16),)


def gpu(*vfs: PciFunction, tool: bool = True, **other: Any) -> Host:
    """A GPU on NVIDIA's driver."""
    values = {"driver": "nvidia", "total_vfs": 16} | other
    return replace(physical(*vfs, **values), sriov_manage=tool)


def test_nvidias_tool_makes_all_vfs_of_a_gpu_and_removes_them() -> None:
    assert told(planned(gpu(), GPU_RULES, Snapshot())) == ([run_sriov_manage(PF, 16)], [])
    none = (replace(RULES[0], num_vfs=0),)
    plan = planned(gpu(virtual(driver="nvidia", vgpu=True)), none)
    assert told(plan)[0] == [run_sriov_manage(PF, 0, (VF,))]
    assert plan.steps[0].action.takes == {VF}


@pytest.mark.parametrize(
    ("here", "number", "facts", "remedy"),
    [
        (gpu(), 8, (PF, 8, 16), "numVFs"),
        (gpu(total_vfs=None), 8, (PF, 8, "?"), "numVFs"),
        (gpu(tool=False), 16, (PF, "sriov-manage"), f"sriov-manage -e {PF}"),
        (gpu(virtual(), tool=False), 0, (PF, "sriov-manage"), f"sriov-manage -d {PF}"),
    ],
)
def test_a_rule_that_nvidias_driver_cannot_meet_is_refused_with_what_to_do(
    here: Host, number: int, facts: tuple[object, ...], remedy: str
) -> None:
    plan = planned(here, (replace(RULES[0], num_vfs=number),))
    assert (plan.steps, plan.waiting) == ((), ())
    (problem,) = plan.problems
    names(problem.message, *facts)
    names(problem.hint, remedy)


@pytest.mark.parametrize(
    ("here", "number", "facts"),
    [
        (replace(gpu(), mdevs={"u": Mdev("u", PF, "t-1")}), 16, (PF, "mdevs")),
        (replace(gpu(virtual(driver="nvidia")), mdevs={"u": Mdev("u", VF, "t-1")}), 0, (VF, "mdevs")),
        (gpu(virtual(driver="nvidia", vgpu=True, vgpu_type="256")), 0, (VF, "vGPU", "256")),
        (gpu(virtual(driver="vfio-pci", enable=1)), 0, (VF, "open")),
    ],
)
def test_nvidias_tool_is_not_run_on_a_card_that_is_not_empty(
    here: Host, number: int, facts: tuple[str, ...]
) -> None:
    plan = planned(here, (replace(RULES[0], num_vfs=number),))
    assert plan.steps == ()
    names(plan.waiting[0].why, *facts)
