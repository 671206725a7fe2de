# SPDX-License-Identifier: Apache-2.0
"""Which drivers a group is to get: as a whole, not from under anybody, and its own when nobody wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.action import BindDrivers, Move, RestoreDrivers
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.desired import Desired, Extent, PassthroughRule, PciSelector, SriovRule
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.ledger import Ledger
from nodeagent.model.plan import Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.uses import HostUse, HostUses, UseKind
from nodeagent.policy.change import bindings
from tests import ROOT
from tests.policy.samples import function, holders, host, reserved

GPU, AUDIO, PORT = PciAddress("0000:3b:00.0"), PciAddress("0000:3b:00.1"), PciAddress("0000:3a:00.0")
RULE = PassthroughRule((PciSelector(classes=("03",)),))
KNOWN = Snapshot(allocations=Allocations({}, Knowledge.COMPLETE))
NAME = ResourceName("vendor.example/serial")
OURS = Ledger(drivers={GPU: "nouveau", AUDIO: "snd_hda_intel"})
FREE = HostUses()


def gpu(**other: Any) -> PciFunction:
    return function(GPU, 7, **({"driver": "nouveau", "pci_class": "030000", "uses": FREE} | other))


def audio(**other: Any) -> PciFunction:
    values = {"driver": "snd_hda_intel", "device": "10f9", "pci_class": "040300", "uses": FREE} | other
    return function(AUDIO, 7, **values)


def here(*functions: PciFunction, **other: Any) -> Host:
    return host(*functions, **({"vfio_loaded": True} | other))


def planned(on: Host, *rules: PassthroughRule, known: Snapshot = KNOWN, ledger: Ledger | None = None) -> Plan:
    desired = Desired(passthrough=rules)
    return bindings.plan(replace(known, host=on, desired=desired, ledger=ledger or Ledger()))


def moves(plan: Plan) -> Sequence[Move]:
    (step,) = plan.steps
    assert isinstance(step.action, BindDrivers | RestoreDrivers)
    return step.action.moves


def test_without_a_rule_or_a_memory_there_is_nothing_to_do() -> None:
    assert planned(here(gpu(), audio())) == Plan()


def test_a_whole_group_is_bound_the_functions_behind_the_first_one_first() -> None:
    plan = planned(here(gpu(), audio()), RULE)
    assert moves(plan) == (
        Move(AUDIO, "snd_hda_intel", "vfio-pci", "snd_hda_intel"),
        Move(GPU, "nouveau", "vfio-pci", "nouveau"),
    )
    assert plan.steps[0].action.describe() == f"bind {GPU}, {AUDIO} to vfio-pci"


def test_only_what_was_matched_is_bound_where_that_is_wanted() -> None:
    rule = replace(RULE, group=Extent.MATCHED)
    assert [move.address for move in moves(planned(here(gpu(), audio()), rule))] == [GPU]


def test_a_variant_driver_is_for_its_own_devices_and_vfio_pci_for_the_rest_of_their_group() -> None:
    rule = replace(RULE, driver="mlx5_vfio_pci")
    twin = function("0000:3b:00.2", 7, driver="nouveau", uses=FREE)
    plan = planned(here(gpu(), audio(), twin), rule)
    assert {move.address: move.to for move in moves(plan)} == {
        GPU: "mlx5_vfio_pci",
        AUDIO: "vfio-pci",
        "0000:3b:00.2": "mlx5_vfio_pci",
    }


def test_bridges_and_what_vfio_suffers_stay_where_they_are() -> None:
    bridge = function(PORT, 7, driver="pcieport", pci_class="060400")
    stub = function("0000:3b:00.3", 7, driver="pci-stub", pci_class="0c0330", uses=FREE)
    plan = planned(here(gpu(), audio(), bridge, stub), RULE)
    assert {move.address for move in moves(plan)} == {GPU, AUDIO}


def test_what_has_a_vfio_driver_is_left_to_whoever_has_bound_it() -> None:
    bound = here(gpu(driver="vfio-pci"), audio(driver="vfio-pci"))
    assert planned(bound, RULE) == Plan()
    assert planned(bound, replace(RULE, driver="mlx5_vfio_pci")) == Plan()
    assert planned(bound) == Plan()


def test_what_is_ours_gets_the_other_driver_that_its_rule_says() -> None:
    bound = here(gpu(driver="vfio-pci"))
    plan = planned(bound, replace(RULE, driver="nvgrace_gpu_vfio_pci"), ledger=OURS)
    assert moves(plan) == (Move(GPU, "vfio-pci", "nvgrace_gpu_vfio_pci", "nouveau"),)


def test_what_nobody_wants_any_more_gets_its_own_driver_back_the_first_function_first() -> None:
    bound = here(gpu(driver="vfio-pci"), audio(driver="vfio-pci"))
    plan = planned(bound, ledger=OURS)
    assert moves(plan) == (
        Move(GPU, "vfio-pci", "nouveau", "vfio-pci"),
        Move(AUDIO, "vfio-pci", "snd_hda_intel", "vfio-pci"),
    )
    assert plan.steps[0].action.takes == {GPU, AUDIO}


def test_what_somebody_else_has_given_a_driver_keeps_it() -> None:
    other = here(gpu(driver="nvidia"))
    assert moves(planned(other, ledger=OURS)) == (Move(GPU, "nvidia", "nvidia", "nvidia"),)


def test_a_function_that_had_no_driver_has_none_again() -> None:
    bound = here(gpu(driver="vfio-pci"))
    plan = planned(bound, ledger=Ledger(drivers={GPU: ""}))
    assert moves(plan) == (Move(GPU, "vfio-pci", None, "vfio-pci"),)


def test_a_rule_that_names_the_own_driver_does_not_undo_itself() -> None:
    rule = PassthroughRule((PciSelector(drivers=("nouveau",)),))
    bound = here(gpu(driver="vfio-pci"), audio(driver="vfio-pci"))
    assert planned(bound, rule, ledger=OURS) == Plan()


def test_what_has_arrived_before_a_crash_goes_back_with_the_rest_if_that_cannot_follow() -> None:
    plan = planned(here(gpu(), audio(driver="vfio-pci")), RULE, ledger=OURS)
    assert moves(plan) == (
        Move(AUDIO, "vfio-pci", "vfio-pci", "snd_hda_intel"),
        Move(GPU, "nouveau", "vfio-pci", "nouveau"),
    )
    assert plan.steps[0].action.describe() == f"bind {GPU} to vfio-pci"


def used(kind: UseKind, what: str = "eth0", how: str = "default route") -> HostUses:
    return HostUses((HostUse(kind, what, how),))


GUARDED = {
    "in use by the host (eth0, default route)": here(gpu(), audio(uses=used(UseKind.NETWORK))),
    "in use by the host (sda, mounted on /)": here(
        gpu(), audio(uses=used(UseKind.MOUNTED, "sda", "mounted on /"))
    ),
    "in use by the host (sda2, swap)": here(gpu(uses=used(UseKind.SWAP, "sda2", "swap"))),
    "in use by the host (sda, open by 7)": here(gpu(uses=used(UseKind.OPEN, "sda", "open by 7"))),
    "in use by the host (sda, part of md0)": here(gpu(uses=used(UseKind.STACKED, "sda", "part of md0"))),
    "in use by the host (boot display, its firmware": here(
        gpu(uses=used(UseKind.DISPLAY, "boot display", "its firmware and console show there"))
    ),
    "cannot be seen from here: what is mounted": here(gpu(uses=HostUses((), ("what is mounted",)))),
    "it is a bridge": here(gpu(), function(PORT, 8, driver="pcieport", pci_class="060400")),
    "it has 1 VF": here(gpu(vfs=(PciAddress("0000:3b:00.4"),), sriov_capable=True)),
    "its PF has left it behind": here(gpu(physfn=PORT, left_behind=True)),
    "no IOMMU separates it": here(gpu()._replace(group=None), iommu=False),
    "vfio-pci is not loaded": here(gpu(), vfio_loaded=False),
    "is a bridge, and its driver lpc_ich needs it": here(
        gpu(), function("0000:00:1f.0", 7, driver="lpc_ich", pci_class="060100")
    ),
}
ALL = PassthroughRule((PciSelector(addresses=("0000:3*",)),))
FIRM = ("mounted on", "swap", "open by", "bridge", "VF", "left", "IOMMU", "loaded")


@pytest.mark.parametrize("evidence", GUARDED)
def test_a_guard_names_its_evidence_and_the_way_out_and_nothing_is_done(evidence: str) -> None:
    plan = planned(GUARDED[evidence], ALL)
    assert any(evidence in problem for problem in plan.problems), plan
    assert all(plan.remedies[problem] for problem in plan.problems)
    assert all(GPU not in step.action.targets for step in plan.steps) or "it is a bridge" in evidence


@pytest.mark.parametrize("evidence", GUARDED)
def test_the_page_on_host_preparation_tells_of_each_guard(evidence: str) -> None:
    page = (ROOT / "docs/host-preparation.md").read_text()
    assert evidence.partition(" (")[0].partition(": what")[0] in page.replace("`", "")


@pytest.mark.parametrize("evidence", GUARDED)
def test_force_is_for_what_an_operator_can_answer_for(evidence: str) -> None:
    plan = planned(GUARDED[evidence], replace(ALL, force=(GPU, AUDIO, PORT)))
    assert any(evidence in problem for problem in plan.problems) == any(word in evidence for word in FIRM)


def test_a_group_of_which_a_pod_or_a_process_has_a_part_waits() -> None:
    half = here(gpu(driver="vfio-pci"), audio())
    held = replace(KNOWN, allocations=Allocations(holders(GPU), Knowledge.COMPLETE))
    given = replace(KNOWN, reservations=reserved([GPU]))
    silent = replace(KNOWN, allocations=Allocations({}, Knowledge.SILENT))
    assert "who holds what is not known" in planned(here(gpu(), audio()), RULE, known=silent).waiting[0].why
    waits = {
        "is held by": planned(half, RULE, known=held),
        "was given to a pod": planned(half, RULE, known=given),
        "who holds what is not known": planned(half, RULE, known=Snapshot()),
        "has 0000:3b:00.0 open": planned(here(gpu(driver="vfio-pci", enable=1), audio()), RULE),
    }
    for why, plan in waits.items():
        assert plan.steps == ()
        assert why in plan.waiting[0].why


def test_what_a_pod_misses_gets_its_own_driver_while_it_cannot_be_bound() -> None:
    """Its driver did not take it again when a change was taken back."""
    on = here(gpu(driver=None), audio())
    node = Allocations(holders("port-0"), Knowledge.COMPLETE, nodes={NAME: {"port-0": ("/dev/gone",)}})
    missed = replace(KNOWN, allocations=node, let_go={GPU: frozenset(), AUDIO: frozenset()})
    plan = planned(on, RULE, known=missed, ledger=OURS)
    assert moves(plan) == (Move(GPU, None, "nouveau", None),)
    assert "may have gone with the driver" in plan.waiting[0].why
    assert planned(on, RULE, known=missed).steps == (), "it had no driver before"
    assert planned(on, RULE, known=replace(missed, behind=frozenset({GPU})), ledger=OURS).steps == ()
    assert planned(here(gpu(), audio()), RULE, known=missed, ledger=OURS).steps == ()
    silent = replace(missed, allocations=replace(node, knowledge=Knowledge.SILENT))
    assert planned(on, RULE, known=silent, ledger=OURS).steps == ()


def test_before_the_kubelet_is_there_a_group_on_its_own_drivers_can_be_bound() -> None:
    assert len(moves(planned(here(gpu(), audio()), RULE, known=Snapshot()))) == 2


def test_what_was_not_looked_at_yet_waits_for_that() -> None:
    (waiting,) = planned(here(gpu(uses=None), audio()), RULE).waiting
    assert "has not been seen yet" in waiting.why


def test_what_was_refused_waits_for_its_time() -> None:
    known = replace(KNOWN, failures={f"{GPU}/bind": "the kernel refused"})
    (waiting,) = planned(here(gpu(), audio()), RULE, known=known).waiting
    assert "the kernel refused; it is tried again later" in waiting.why


def test_a_function_of_which_vfs_are_wanted_is_not_taken_from_the_driver_that_makes_them() -> None:
    on = here(gpu(sriov_capable=True))
    wish = Desired(passthrough=(RULE,), sriov=(SriovRule((PciSelector(addresses=(GPU,)),), 4),))
    plan = bindings.plan(replace(KNOWN, host=on, desired=wish))
    assert plan.steps == ()
    assert plan.problems == (f"{GPU} is not bound: a rule of sriov wants VFs of it",)
    none = replace(wish.sriov[0], num_vfs=0)
    assert bindings.plan(replace(KNOWN, host=on, desired=wish._replace(sriov=(none,)))).steps
