# SPDX-License-Identifier: Apache-2.0
"""Which drivers a group is to get: as a whole, not from under anybody, and its own when nobody wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import ActionKind, Ledger, Move, Plan
from nodeagent.model.host import Host, HostUse, HostUses, PciFunction, UseKind
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import GroupScope, PassthroughRule, PciSelector, Spec, SriovRule
from nodeagent.policy.change import bindings, guards
from tests import ROOT
from tests.facts import contains, each_names, names
from tests.policy.samples import function, holders, host, reserved

GPU, AUDIO, PORT = PciAddress("0000:3b:00.0"), PciAddress("0000:3b:00.1"), PciAddress("0000:3a:00.0")
RULE = PassthroughRule((PciSelector(classes=("03",)),))
KNOWN = Snapshot(allocations=Allocations.of({}, Knowledge.COMPLETE))
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
    spec = Spec(passthrough=rules)
    return bindings.plan(replace(known, host=on, spec=spec, ledger=ledger or Ledger()))


def moves(plan: Plan) -> Sequence[Move]:
    (step,) = plan.steps
    assert step.action.kind in (ActionKind.BIND_DRIVERS, ActionKind.RESTORE_DRIVERS)
    return step.action.moves


def test_without_a_rule_or_a_memory_there_is_nothing_to_do() -> None:
    assert planned(here(gpu(), audio())) == Plan()


def test_a_whole_group_is_bound_the_functions_behind_the_first_one_first() -> None:
    plan = planned(here(gpu(), audio()), RULE)
    assert moves(plan) == (
        Move(AUDIO, "snd_hda_intel", "vfio-pci", "snd_hda_intel"),
        Move(GPU, "nouveau", "vfio-pci", "nouveau"),
    )
    assert plan.steps[0].action.text == f"bind {GPU}, {AUDIO} to vfio-pci"


def test_only_what_was_matched_is_bound_where_that_is_wanted() -> None:
    rule = replace(RULE, group=GroupScope.MATCHED)
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
    assert plan.steps[0].action.text == f"bind {GPU} to vfio-pci"


def used(kind: UseKind, what: str = "eth0", how: str = "default route") -> HostUses:
    return HostUses((HostUse(kind, what, how),))


class Guarded(NamedTuple):
    """A host on which a function is not bound, the facts that the problem names, and whether force helps."""

    host: Host
    facts: tuple[str, ...]
    firm: bool = True

    def told(self, plan: Plan) -> bool:
        return any(contains(problem.message, *self.facts) for problem in plan.problems)


SHOWN = used(UseKind.DISPLAY, "boot display", "the firmware and the console use this display")
LPC = function("0000:00:1f.0", 7, driver="lpc_ich", pci_class="060100")
GUARDED = {
    "network": Guarded(
        here(gpu(), audio(uses=used(UseKind.NETWORK))), (AUDIO, "eth0", "default route"), firm=False
    ),
    "mounted": Guarded(
        here(gpu(), audio(uses=used(UseKind.MOUNTED, "sda", "mounted on /"))), (AUDIO, "sda", "mounted on /")
    ),
    "swap": Guarded(here(gpu(uses=used(UseKind.SWAP, "sda2", "swap"))), (GPU, "sda2", "swap")),
    "open": Guarded(here(gpu(uses=used(UseKind.OPEN, "sda", "open by 7"))), (GPU, "sda", "open by 7")),
    "stacked": Guarded(
        here(gpu(uses=used(UseKind.STACKED, "sda", "part of md0"))), (GPU, "sda", "part of md0"), firm=False
    ),
    "display": Guarded(here(gpu(uses=SHOWN)), (GPU, "boot display"), firm=False),
    "unseen": Guarded(
        here(gpu(uses=HostUses((), ("what is mounted",)))), (GPU, "what is mounted"), firm=False
    ),
    "bridge": Guarded(
        here(gpu(), function(PORT, 8, driver="pcieport", pci_class="060400")), (PORT, "bridge")
    ),
    "VFs": Guarded(here(gpu(vfs=(PciAddress("0000:3b:00.4"),), sriov_capable=True)), (GPU, "1 VF")),
    "left behind": Guarded(here(gpu(physfn=PORT, left_behind=True)), (GPU, "PF")),
    "no IOMMU": Guarded(here(gpu()._replace(group=None), iommu=False), (GPU, "IOMMU")),
    "not loaded": Guarded(here(gpu(), vfio_loaded=False), (GPU, "vfio-pci")),
    "bridge of the group": Guarded(here(gpu(), LPC), (GPU, "0000:00:1f.0", "bridge", "lpc_ich")),
}
ALL = PassthroughRule((PciSelector(addresses=("0000:3*",)),))


@pytest.mark.parametrize("case", GUARDED)
def test_a_guard_names_its_evidence_and_the_way_out_and_nothing_is_done(case: str) -> None:
    plan = planned(GUARDED[case].host, ALL)
    assert GUARDED[case].told(plan), plan
    assert all(problem.hint for problem in plan.problems)
    assert all(GPU not in step.action.targets for step in plan.steps) or case == "bridge"


@pytest.mark.parametrize("case", GUARDED)
def test_no_other_guard_is_taken_for_this_one(case: str) -> None:
    plan = planned(GUARDED[case].host, ALL)
    assert [other for other in GUARDED if GUARDED[other].told(plan)] == [case]


@pytest.mark.parametrize(
    "evidence",
    [
        "eth0, default route",
        "mounted on /",
        "swap)",
        "open by",
        "part of md0",
        "boot display",
        "hostPID",
        "bridge of any kind",
        "1 VF",
        "a VF whose PF was removed",
        "[switch it on](#the-iommu)",
        "lsmod",
        "lpc_ich",
    ],
)
def test_the_page_on_host_preparation_tells_of_each_guard(evidence: str) -> None:
    assert evidence in (ROOT / "docs/host-preparation.md").read_text()


@pytest.mark.parametrize("case", GUARDED)
def test_force_is_for_what_an_operator_can_answer_for(case: str) -> None:
    plan = planned(GUARDED[case].host, replace(ALL, force=(GPU, AUDIO, PORT)))
    assert GUARDED[case].told(plan) is GUARDED[case].firm


def test_a_group_of_which_a_pod_or_a_process_has_a_part_waits() -> None:
    half = here(gpu(driver="vfio-pci"), audio())
    held = replace(KNOWN, allocations=Allocations.of(holders(GPU), Knowledge.COMPLETE))
    given = replace(KNOWN, reservations=reserved([GPU]))
    silent = replace(KNOWN, allocations=Allocations.of({}, Knowledge.NO_ANSWER))
    assert guards.UNKNOWN in planned(here(gpu(), audio()), RULE, known=silent).waiting[0].why
    for plan, facts in (
        (planned(half, RULE, known=held), (GPU, "ns/vm")),
        (planned(half, RULE, known=given), (GPU, "pod")),
        (planned(half, RULE, known=Snapshot()), (guards.UNKNOWN,)),
        (planned(here(gpu(driver="vfio-pci", enable=1), audio()), RULE), (GPU, "open")),
    ):
        assert plan.steps == ()
        names(plan.waiting[0].why, *facts)


def test_what_a_pod_misses_gets_its_own_driver_while_it_cannot_be_bound() -> None:
    """Its driver did not take it again when a change was taken back."""
    on = here(gpu(driver=None), audio())
    node = Allocations.of(holders("port-0"), Knowledge.COMPLETE, nodes={NAME: {"port-0": ("/dev/gone",)}})
    missed = replace(KNOWN, allocations=node)
    plan = planned(on, RULE, known=missed, ledger=OURS)
    assert moves(plan) == (Move(GPU, None, "nouveau", None),)
    names(plan.waiting[0].why, "/dev/gone", "driver")
    assert planned(on, RULE, known=missed).steps == (), "it had no driver before"
    assert (
        planned(on, RULE, known=replace(missed, recently_allocated=frozenset({GPU})), ledger=OURS).steps == ()
    )
    assert planned(here(gpu(), audio()), RULE, known=missed, ledger=OURS).steps == ()
    silent = replace(missed, allocations=replace(node, knowledge=Knowledge.NO_ANSWER))
    assert planned(on, RULE, known=silent, ledger=OURS).steps == ()


def test_before_the_kubelet_is_there_a_group_on_its_own_drivers_can_be_bound() -> None:
    assert len(moves(planned(here(gpu(), audio()), RULE, known=Snapshot()))) == 2


def test_what_was_not_looked_at_yet_waits_for_that() -> None:
    (waiting,) = planned(here(gpu(uses=None), audio()), RULE).waiting
    names(waiting.why, GPU, "yet")


def test_what_was_refused_waits_for_its_time() -> None:
    known = replace(KNOWN, failures={f"{GPU}/bind to vfio-pci": "the kernel refused"})
    (waiting,) = planned(here(gpu(), audio()), RULE, known=known).waiting
    names(waiting.why, "the kernel refused")


def test_a_function_of_which_vfs_are_wanted_is_not_taken_from_the_driver_that_makes_them() -> None:
    on = here(gpu(sriov_capable=True))
    wish = Spec(passthrough=(RULE,), sriov=(SriovRule((PciSelector(addresses=(GPU,)),), 4),))
    plan = bindings.plan(replace(KNOWN, host=on, spec=wish))
    assert plan.steps == ()
    each_names([each.message for each in plan.problems], (GPU, "sriov", "VFs"))
    none = replace(wish.sriov[0], num_vfs=0)
    assert bindings.plan(replace(KNOWN, host=on, spec=wish._replace(sriov=(none,)))).steps


@pytest.mark.parametrize("pf", ["ens1f0", PORT])
def test_a_vf_keeps_its_driver_while_the_interface_that_a_rule_names_is_not_visible(pf: str) -> None:
    """In another network namespace, or while its driver creates it again; an address is always visible."""
    vf = gpu(driver="vfio-pci", physfn=PciAddress("0000:3a:00.1"))
    rule = PassthroughRule((PciSelector(pfs=(pf,)),))
    plan = planned(here(vf), rule, ledger=Ledger(drivers={GPU: "nouveau"}))
    assert bool(plan.steps or plan.waiting) == (pf == PORT)
    seen = planned(
        here(vf._replace(pf_interfaces=("ens2f0",))), rule, ledger=Ledger(drivers={GPU: "nouveau"})
    )
    assert seen.steps or seen.waiting
