# SPDX-License-Identifier: Apache-2.0
"""How many VFs a function is to have: from none to n at once, else over none, and never under anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.action import SetNumVfs
from nodeagent.model.desired import PciSelector, SriovRule
from nodeagent.model.host import Host, Mdev, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.policy.change import sriov
from nodeagent.policy.change.card_states import Basis
from tests.policy.samples import function, holders, host

PF = PciAddress("0000:3b:00.0")
VF = PciAddress("0000:3b:00.2")
RULES = (SriovRule((PciSelector(addresses=("0000:3b:*",)),), 8),)
KNOWN = Basis("machine", holders_known=True)


def physical(*vfs: PciFunction, **other: Any) -> Host:
    values = {"driver": "ice", "sriov_capable": True, "vfs": tuple(vf.address for vf in vfs)} | other
    return host(function(PF, 1, **values), *vfs)


def virtual(**other: Any) -> PciFunction:
    return function(VF, 2, **({"physfn": PF, "driver": None} | other))


def told(plan: sriov.Plan) -> tuple[list[str], list[str]]:
    return [each.action.describe() for each in plan.steps], [each.why for each in plan.waiting]


def test_vfs_are_made_where_there_are_none() -> None:
    assert told(sriov.plan(physical(), RULES, Basis("machine"))) == (
        ["set the number of VFs of 0000:3b:00.0 to 8"],
        [],
    )


@pytest.mark.shows("HP-16")
def test_another_number_goes_over_none() -> None:
    assert told(sriov.plan(physical(virtual()), RULES, KNOWN)) == (
        ["set the number of VFs of 0000:3b:00.0 to 0"],
        [],
    )


def test_the_right_number_is_left_alone_and_so_is_what_no_rule_picks() -> None:
    one = (replace(RULES[0], num_vfs=1),)
    assert sriov.plan(physical(virtual()), one, KNOWN) == sriov.Plan()
    assert sriov.plan(physical(sriov_capable=False), RULES, KNOWN) == sriov.Plan()
    assert sriov.plan(physical(), (), KNOWN) == sriov.Plan()


@pytest.mark.shows("HP-16")
@pytest.mark.parametrize(
    ("vf", "basis", "what"),
    [
        (virtual(), Basis("machine"), "who holds what is not known"),
        (virtual(), replace(KNOWN, holders=holders(VF)), "0000:3b:00.2 is held by ns/vm"),
        (virtual(), replace(KNOWN, holders=holders("2")), "0000:3b:00.2 is held by ns/vm"),
        (virtual(), replace(KNOWN, in_use=frozenset({VF})), "something on this host has 0000:3b:00.2 open"),
        (virtual(driver="vfio-pci", enable=1), KNOWN, "something on this host has 0000:3b:00.2 open"),
        (virtual(driver="iavf"), KNOWN, "0000:3b:00.2 is bound to iavf"),
        (virtual(vgpu_type="256"), KNOWN, "0000:3b:00.2 has the vGPU type 256"),
    ],
)
def test_vfs_stay_while_anybody_uses_one(vf: PciFunction, basis: Basis, what: str) -> None:
    plan = sriov.plan(physical(vf), RULES, basis)
    assert plan.steps == ()
    assert plan.waiting[0].why == f"it is to have 8 VFs, and has 1; {what}" + (
        " who holds what" if "told" in what else ""
    )


@pytest.mark.parametrize("vfs", [(), (virtual(),)], ids=["none yet", "some"])
def test_more_vfs_than_the_function_can_have_are_not_tried(vfs: tuple[PciFunction, ...]) -> None:
    steps, why = told(sriov.plan(physical(*vfs, total_vfs=7), RULES, KNOWN))
    assert steps == []
    assert why == [f"it is to have 8 VFs, and has {len(vfs)}; it can have 7 at most"]
    assert told(sriov.plan(physical(*vfs, total_vfs=8), RULES, KNOWN))[1] == []


def test_vfs_with_mdevs_stay() -> None:
    here = replace(physical(virtual()), mdevs={"u": Mdev("u", VF, "t-1")})
    assert told(sriov.plan(here, RULES, KNOWN))[0] == []


def test_a_function_without_a_driver_and_one_that_failed_wait() -> None:
    assert "has no driver" in told(sriov.plan(physical(driver=None), RULES, KNOWN))[1][0]
    failed = replace(KNOWN, failed={SetNumVfs(PF, 8).attempt: "the kernel said ENOSPC"})
    assert "the kernel said ENOSPC" in told(sriov.plan(physical(), RULES, failed))[1][0]
