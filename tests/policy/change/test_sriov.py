# SPDX-License-Identifier: Apache-2.0
"""How many VFs a function is to have: from none to n at once, else over none, and never under anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.desired import Desired, PciSelector, SriovRule
from nodeagent.model.host import Host, Mdev, PciFunction, Sight
from nodeagent.model.ids import PciAddress
from nodeagent.model.plan import Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.vf_action import SetNumVfs
from nodeagent.policy.change import sriov
from tests.policy.samples import function, holders, host, reserved

PF = PciAddress("0000:3b:00.0")
VF = PciAddress("0000:3b:00.2")
RULES = (SriovRule((PciSelector(addresses=("0000:3b:*",)),), 8),)
KNOWN = Snapshot(allocations=Allocations({}, Knowledge.COMPLETE))
GIVEN = replace(KNOWN, reservations=reserved([VF]), open=frozenset({VF}))


def physical(*vfs: PciFunction, **other: Any) -> Host:
    values = {"driver": "ice", "sriov_capable": True, "vfs": tuple(vf.address for vf in vfs)} | other
    return host(function(PF, 1, **values), *vfs)


def virtual(**other: Any) -> PciFunction:
    return function(VF, 2, **({"physfn": PF, "driver": None} | other))


def planned(here: Host, rules: tuple[SriovRule, ...] = RULES, known: Snapshot = KNOWN) -> Plan:
    """The plan for this host under these rules; ``known`` is what else there is to know."""
    return sriov.plan(replace(known, host=here, desired=Desired(sriov=rules)))


def held(*ids: str) -> Snapshot:
    return replace(KNOWN, allocations=Allocations(holders(*ids), Knowledge.COMPLETE))


def told(plan: Plan) -> tuple[list[str], list[str]]:
    return [each.action.describe() for each in plan.steps], [each.why for each in plan.waiting]


def test_vfs_are_made_where_there_are_none() -> None:
    assert told(planned(physical(), RULES, Snapshot())) == (
        ["set the number of VFs of 0000:3b:00.0 to 8"],
        [],
    )


def test_another_number_goes_over_none() -> None:
    assert told(planned(physical(virtual()))) == (
        ["set the number of VFs of 0000:3b:00.0 to 0"],
        [],
    )


def test_nothing_is_written_to_a_function_that_left_vfs_behind_and_a_person_is_told() -> None:
    here = host(function(PF, 1, driver="nvme", sriov_capable=True), virtual(left_behind=True))
    plan = planned(here)
    assert (plan.steps, plan.waiting) == ((), ())
    (problem,) = plan.problems
    assert problem == "0000:3b:00.0: its VFs 0000:3b:00.2 were left behind when it was removed"
    assert "reboot the node" in plan.remedies[problem]
    assert planned(here, ()) == Plan()


@pytest.mark.parametrize("vfs", [(), (virtual(),)], ids=["none yet", "some"])
@pytest.mark.parametrize(
    ("pf", "known", "what"),
    [
        ({}, Snapshot(), "who holds what is not known"),
        ({}, held(PF), f"{PF} is held by ns/vm"),
        ({}, held("1"), f"{PF} is held by ns/vm"),
        ({}, replace(KNOWN, reservations=reserved([PF])), f"{PF} was given to a pod a moment ago"),
        ({}, replace(KNOWN, open=frozenset({PF})), f"something on this host has {PF} open"),
        ({"enable": 1}, KNOWN, f"something on this host has {PF} open"),
    ],
)
def test_the_number_stays_while_a_pod_or_an_open_file_has_the_function_itself(
    vfs: tuple[PciFunction, ...], pf: dict[str, Any], known: Snapshot, what: str
) -> None:
    plan = planned(physical(*vfs, driver="vfio-pci", **pf), RULES, known)
    assert plan.steps == ()
    assert plan.waiting[0].why.endswith(f"; {what}")


@pytest.mark.parametrize(
    ("sight", "steps", "waiting"),
    [
        (Sight(whole=True), 1, []),
        (Sight(), 0, ["whether something on this host has {} open cannot be seen"]),
        (None, 0, ["whether something on this host has {} open cannot be seen"]),
        (Sight("qemu (4711)", whole=True), 0, ["something on this host has {} open"]),
    ],
    ids=["nobody is seen", "not all is seen", "nobody has looked", "somebody is seen"],
)
@pytest.mark.parametrize("left", [PF, VF])
def test_a_count_that_a_former_driver_left_is_no_open_file(
    left: PciAddress, sight: Sight | None, steps: int, waiting: list[str]
) -> None:
    """i915 leaves it above zero; what is open is looked for where it can be seen."""
    counts = {"driver": "vfio-pci", "enable": 1, "idle": 1, "sight": sight}
    here = physical(virtual(), **counts) if left == PF else physical(virtual(**counts))
    plan = planned(here)
    assert len(plan.steps) == steps
    assert [each.why.rpartition("; ")[2] for each in plan.waiting] == [each.format(left) for each in waiting]


def test_nobody_gets_a_function_of_vfio_while_its_number_is_changed() -> None:
    (step,) = planned(physical(driver="vfio-pci")).steps
    assert step.action.takes == {PF}
    (step,) = planned(physical()).steps
    assert step.action.takes == frozenset()


def test_the_right_number_is_left_alone_and_so_is_what_no_rule_picks() -> None:
    one = (replace(RULES[0], num_vfs=1),)
    assert planned(physical(virtual()), one) == Plan()
    assert planned(physical(sriov_capable=False)) == Plan()
    assert planned(physical(), ()) == Plan()


@pytest.mark.parametrize(
    ("vf", "known", "what"),
    [
        (virtual(), Snapshot(), "who holds what is not known"),
        (virtual(), held(VF), "0000:3b:00.2 is held by ns/vm"),
        (virtual(), held("2"), "0000:3b:00.2 is held by ns/vm"),
        (virtual(), replace(KNOWN, open=frozenset({VF})), "something on this host has 0000:3b:00.2 open"),
        (virtual(), GIVEN, "0000:3b:00.2 was given to a pod a moment ago"),
        (virtual(driver="vfio-pci", enable=1), KNOWN, "something on this host has 0000:3b:00.2 open"),
        (virtual(driver="iavf"), KNOWN, "0000:3b:00.2 is bound to iavf"),
        (virtual(vgpu_type="256"), KNOWN, "0000:3b:00.2 has the vGPU type 256"),
    ],
)
def test_vfs_stay_while_anybody_uses_one(vf: PciFunction, known: Snapshot, what: str) -> None:
    plan = planned(physical(vf), RULES, known)
    assert plan.steps == ()
    assert plan.waiting[0].why == f"it is to have 8 VFs, and has 1; {what}" + (
        " who holds what" if "told" in what else ""
    )


@pytest.mark.parametrize("vfs", [(), (virtual(),)], ids=["none yet", "some"])
def test_more_vfs_than_the_function_can_have_are_not_tried(vfs: tuple[PciFunction, ...]) -> None:
    steps, why = told(planned(physical(*vfs, total_vfs=7)))
    assert steps == []
    assert why == [f"it is to have 8 VFs, and has {len(vfs)}; it can have 7 at most"]
    assert told(planned(physical(*vfs, total_vfs=8)))[1] == []


def test_vfs_with_mdevs_stay() -> None:
    here = replace(physical(virtual()), mdevs={"u": Mdev("u", VF, "t-1")})
    assert told(planned(here))[0] == []


def test_a_function_without_a_driver_and_one_that_failed_wait() -> None:
    assert "has no driver" in told(planned(physical(driver=None)))[1][0]
    failed = replace(KNOWN, failures={SetNumVfs(PF, 8).attempt: "the kernel said ENOSPC"})
    assert "the kernel said ENOSPC" in told(planned(physical(), RULES, failed))[1][0]


GPU_RULES = (replace(RULES[0], num_vfs=16),)


def gpu(*vfs: PciFunction, tool: bool = True, **other: Any) -> Host:
    """A GPU on NVIDIA's driver."""
    values = {"driver": "nvidia", "total_vfs": 16} | other
    return replace(physical(*vfs, **values), sriov_manage=tool)


def test_nvidias_tool_makes_all_vfs_of_a_gpu_and_removes_them() -> None:
    assert told(planned(gpu(), GPU_RULES, Snapshot())) == (
        ["have sriov-manage make the 16 VFs of 0000:3b:00.0"],
        [],
    )
    none = (replace(RULES[0], num_vfs=0),)
    plan = planned(gpu(virtual(driver="nvidia", vgpu=True)), none)
    assert told(plan)[0] == ["have sriov-manage remove the VFs of 0000:3b:00.0"]
    assert plan.steps[0].action.takes == {VF}


@pytest.mark.parametrize(
    ("here", "number", "what", "remedy"),
    [
        (gpu(), 8, "makes all 16 or none", "numVFs"),
        (gpu(total_vfs=None), 8, "makes all ? or none", "numVFs"),
        (gpu(tool=False), 16, "sriov-manage is not where nodeagent runs", f"run sriov-manage -e {PF}"),
        (gpu(virtual(), tool=False), 0, "sriov-manage is not where nodeagent runs", f"sriov-manage -d {PF}"),
    ],
)
def test_a_rule_that_nvidias_driver_cannot_meet_is_refused_with_what_to_do(
    here: Host, number: int, what: str, remedy: str
) -> None:
    plan = planned(here, (replace(RULES[0], num_vfs=number),))
    assert (plan.steps, plan.waiting) == ((), ())
    (problem,) = plan.problems
    assert what in problem
    assert remedy in plan.remedies[problem]


@pytest.mark.parametrize(
    ("here", "number", "what"),
    [
        (replace(gpu(), mdevs={"u": Mdev("u", PF, "t-1")}), 16, f"{PF} has mdevs"),
        (replace(gpu(virtual(driver="nvidia")), mdevs={"u": Mdev("u", VF, "t-1")}), 0, f"{VF} has mdevs"),
        (gpu(virtual(driver="nvidia", vgpu=True, vgpu_type="256")), 0, f"{VF} has the vGPU type 256"),
        (gpu(virtual(driver="vfio-pci", enable=1)), 0, f"something on this host has {VF} open"),
    ],
)
def test_nvidias_tool_is_not_run_on_a_card_that_is_not_empty(here: Host, number: int, what: str) -> None:
    plan = planned(here, (replace(RULES[0], num_vfs=number),))
    assert plan.steps == ()
    assert plan.waiting[0].why.endswith(f"; {what}")
