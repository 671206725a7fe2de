# SPDX-License-Identifier: Apache-2.0
"""One Plan of all kinds of change: what comes first, and when there is none."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.change import Plan
from nodeagent.model.ids import PciAddress
from nodeagent.model.problem import virt_handler_conflict
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import MdevSpec, PciSelector, Spec, SriovRule
from nodeagent.policy.change import mdevs, plan
from tests.policy.change.splitting import snapshot, t4, wanted
from tests.policy.samples import function
from tests.sim.mdevs import ModelKernel

PF = PciAddress("0000:3b:00.0")
RULE = SriovRule((PciSelector(addresses=(PF,)),), 4)


def both() -> Snapshot:
    """A card to be split into mdevs, and a function that is to have VFs."""
    mdevs_only = snapshot(ModelKernel([t4(1)]), wanted("228"))
    there = function(PF, 1, driver="ice", sriov_capable=True)
    host = replace(mdevs_only.host, functions={**mdevs_only.host.functions, PF: there})
    return replace(mdevs_only, host=host, spec=mdevs_only.spec._replace(sriov=(RULE,)))


def test_vfs_come_before_what_is_made_on_them() -> None:
    verbs = [step.action.text.partition(" ")[0] for step in plan.plan(both()).steps]
    assert verbs == ["set", "create", "create"]


def test_without_a_machine_id_only_vfs_are_planned_and_that_is_said() -> None:
    planned = plan.plan(replace(both(), machine_id=""))
    assert [step.action.card for step in planned.steps] == [PF]
    assert (planned.cards, [each.message for each in planned.problems]) == ((), [mdevs.NO_MACHINE])


def test_a_machine_id_is_not_missed_where_no_mdevs_are_managed() -> None:
    planned = plan.plan(replace(both(), machine_id="", spec=Spec(sriov=(RULE,))))
    assert (len(planned.steps), planned.problems) == (1, ())


def test_where_nothing_is_to_be_changed_there_is_no_plan() -> None:
    assert plan.plan(replace(both(), spec=Spec())) == Plan()


def test_an_obstacle_to_wishes_for_mdevs_is_a_problem_beside_the_vfs_and_alone() -> None:
    conflict = virt_handler_conflict("mdevs.manage", "virt-handler makes them", "tell it not to")
    kept = MdevSpec(obstacle=conflict)
    for rules in ((RULE,), ()):
        planned = plan.plan(replace(both(), spec=Spec(mdevs=kept, sriov=rules)))
        assert [each.message for each in planned.problems] == ["mdevs.manage: virt-handler makes them"]
        assert [each.hint for each in planned.problems] == ["tell it not to"]
        assert len(planned.steps) == len(rules)
