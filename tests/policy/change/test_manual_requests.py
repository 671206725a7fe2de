# SPDX-License-Identifier: Apache-2.0
"""What becomes of a request by hand: a wish beside the rules, refused at once where it cannot be had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import Asked, BindAction, Ledger, Outcome, Request
from nodeagent.model.host import Host, HostUse, HostUses, UseKind
from nodeagent.model.ids import VFIO_PCI, PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import GroupScope, PassthroughRule, PciSelector, Spec
from nodeagent.policy.change import manual_requests
from nodeagent.policy.change.bindings import MANUAL
from nodeagent.policy.change.manual_requests import GroupPlan
from tests.facts import names
from tests.policy.change.test_bindings import AUDIO, GPU, KNOWN, audio, gpu, here
from tests.policy.samples import function, holders

BOUND = here(gpu(driver=VFIO_PCI, vfio=True, enable=0), audio(driver=VFIO_PCI, vfio=True, enable=0))
FREE = here(gpu(), audio())
OURS = Ledger(drivers={GPU: "nouveau", AUDIO: "snd_hda_intel"})
BY_HAND = OURS._replace(asked={GPU: Asked(VFIO_PCI, gpu().vendor, gpu().device)})
RULE = PassthroughRule((PciSelector(addresses=(GPU,)),), place="config.yaml:4")
BIND, RELEASE = Request(BindAction.BIND, (GPU,)), Request(BindAction.RELEASE, (GPU,))


def planned(
    request: Request,
    on: Host,
    *rules: PassthroughRule,
    ledger: Ledger | None = None,
    known: Snapshot = KNOWN,
) -> GroupPlan:
    spec = Spec(passthrough=rules)
    snapshot = replace(known, host=on, spec=spec, ledger=ledger or Ledger())
    (group,) = manual_requests.plan(request, snapshot)
    return group


def became(group: GroupPlan, on: Host) -> Outcome:
    return manual_requests.build_result(group, on).outcome


def refusals(group: GroupPlan) -> str:
    result = manual_requests.build_result(group, Host())
    assert result.outcome is Outcome.REFUSED
    assert not group.due
    return " ".join(problem.message for problem in result.refusals)


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("3B:00.0", PciSelector(addresses=("0000:3b:00.0",))),
        ("10DE:1eb8", PciSelector(vendors=("10de",), devices=("1eb8",))),
        ("3b:*", PciSelector(addresses=("0000:3b:*",))),
        ("*:00.?", PciSelector(addresses=("0000:*:00.?",))),
        ("*", PciSelector(addresses=("*",))),
    ],
)
def test_a_name_is_an_address_a_pattern_or_ids(name: str, selector: PciSelector) -> None:
    assert manual_requests.parse_name(name) == selector


@pytest.mark.parametrize("name", ["", "gpu", "3b:00", "10de:1eb8:", "vfio*", "vendor=10de"])
def test_what_is_neither_is_a_mistake(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        manual_requests.parse_name(name)
    assert name in str(error.value)


def test_a_name_that_fits_nothing_is_told() -> None:
    with pytest.raises(NodeagentError) as error:
        manual_requests.find_functions(["99:*"], FREE)
    names(str(error.value), "99:*")


def test_a_binding_is_asked_for_and_its_whole_group_moves() -> None:
    group = planned(BIND, FREE)
    assert group.due
    assert became(group, FREE) is Outcome.PLANNED
    assert group.functions == (GPU, AUDIO)
    assert group.asked == {GPU: Asked(VFIO_PCI, gpu().vendor, gpu().device)}
    names(group.plan.steps[0].why, MANUAL)


def test_what_is_bound_already_is_not_asked_for() -> None:
    for group in (
        planned(BIND, BOUND),
        planned(BIND, BOUND, ledger=BY_HAND),
        planned(BIND, BOUND, RULE, ledger=OURS),
    ):
        assert not group.due
        assert became(group, BOUND) is Outcome.NOTHING


def test_what_is_about_to_go_back_is_kept_when_it_is_asked_for() -> None:
    group = planned(BIND, BOUND, ledger=OURS)
    assert became(group, BOUND) is Outcome.PLANNED
    assert (group.plan.steps, set(group.asked)) == ((), {GPU})


def test_another_driver_than_that_of_a_rule_or_of_another_hand_is_refused() -> None:
    other = BIND._replace(driver="mlx5_vfio_pci")
    names(refusals(planned(other, FREE, RULE)), GPU, "mlx5_vfio_pci", "config.yaml:4", "vfio-pci")
    by_another = refusals(planned(other, BOUND))
    names(by_another, GPU, "mlx5_vfio_pci", "vfio-pci")
    assert "config.yaml" not in by_another


def test_what_would_have_to_wait_is_refused_with_the_ids_that_it_waits_for() -> None:
    held = replace(KNOWN, allocations=Allocations.of(holders(GPU), Knowledge.COMPLETE))
    group = planned(RELEASE, BOUND, ledger=BY_HAND, known=held)
    names(refusals(group), GPU, "ns/vm")
    assert group.waits_for == {GPU, AUDIO}


def test_a_release_forgets_what_was_asked_of_the_group_by_whichever_function_it_is_named() -> None:
    for name in (GPU, AUDIO):
        group = planned(RELEASE._replace(names=(name,)), BOUND, ledger=BY_HAND)
        assert group.asked == {GPU: None}
        assert {move.to for move in group.plan.steps[0].action.moves} == {
            "nouveau",
            "snd_hda_intel",
        }


def test_what_a_rule_wants_is_not_released_and_what_it_does_not_want_is() -> None:
    names(refusals(planned(RELEASE, BOUND, RULE, ledger=OURS)), GPU, "config.yaml:4")
    alone = replace(RULE, group=GroupScope.MATCHED)
    asked = OURS._replace(asked={AUDIO: Asked(VFIO_PCI, audio().vendor, audio().device)})
    result = manual_requests.build_result(
        planned(RELEASE._replace(names=(AUDIO,)), BOUND, alone, ledger=asked), BOUND
    )
    assert result.outcome is Outcome.PLANNED
    names(result.message, AUDIO, "snd_hda_intel")


def test_what_was_bound_elsewhere_is_not_released_but_what_a_boot_has_bound_stays_without_a_word() -> None:
    names(refusals(planned(RELEASE, BOUND)), GPU, "nodeagent", "vfio-pci")
    of_boot = RELEASE._replace(at_boot=(GPU,))
    assert became(planned(of_boot, BOUND), BOUND) is Outcome.NOTHING
    assert became(planned(RELEASE, FREE), FREE) is Outcome.NOTHING


def test_what_has_left_the_host_can_be_forgotten() -> None:
    host = here(function(PciAddress("0000:5e:00.0"), 9))
    group = planned(RELEASE, host, ledger=BY_HAND)
    assert (group.functions, group.asked) == ((GPU,), {GPU: None})
    assert became(group, host) is Outcome.PLANNED


def test_what_was_asked_for_another_device_does_not_count() -> None:
    asked = Ledger(asked={GPU: Asked(VFIO_PCI, "144d", "a808")})
    assert planned(RELEASE, FREE, ledger=asked).plan.steps == ()
    assert planned(BIND, FREE, ledger=asked).asked == {GPU: Asked(VFIO_PCI, gpu().vendor, gpu().device)}


def test_changes_of_manual_requests_replace_add_and_drop() -> None:
    before: dict[str, Asked] = {GPU: Asked("mlx5_vfio_pci"), AUDIO: Asked(VFIO_PCI)}
    changes = {GPU: Asked(VFIO_PCI), AUDIO: None, "0000:5e:00.0": None}
    assert manual_requests.with_requests(before, changes) == {GPU: Asked(VFIO_PCI)}


def test_the_plan_of_now_has_what_is_left_or_is_in_the_way() -> None:
    group = planned(BIND, FREE)
    used = HostUses((HostUse(UseKind.MOUNTED, "nvme0n1", "mounted on /srv"),))
    for host, left, refused in (
        (FREE, True, False),
        (BOUND, False, False),
        (here(gpu(uses=used), audio()), False, True),
        (here(), False, True),
    ):
        plan = manual_requests.plan_now(group, replace(KNOWN, host=host, ledger=BY_HAND))
        assert bool(manual_requests.find_refusals(plan)) is refused
        assert bool(plan.steps) is left or refused
