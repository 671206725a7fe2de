# SPDX-License-Identifier: Apache-2.0
"""Which functions a boot may give to VFIO: what the host would miss afterwards stays with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.change import AtBoot, BindAction, Outcome, Request
from nodeagent.model.host import Host, HostUse, HostUses, UseKind
from nodeagent.model.ids import PciAddress
from nodeagent.policy.change import at_boot
from nodeagent.policy.change.at_boot import BootPlan
from tests.facts import each_names, names
from tests.policy.change.test_bindings import AUDIO, GPU, KNOWN, audio, gpu, here
from tests.policy.samples import function

OTHER = PciAddress("0000:5e:00.0")
BIND, RELEASE = Request(BindAction.BIND, (GPU,)), Request(BindAction.RELEASE, (GPU,))
KNOWN_ONE = AtBoot(OTHER, "8086", "10d3", "vfio-pci")


def planned(on: Host, request: Request = BIND, *known: AtBoot) -> BootPlan:
    return at_boot.plan(request, replace(KNOWN, host=on), known)


def used(kind: UseKind) -> HostUses:
    return HostUses((HostUse(kind, "thing", "somehow"),))


def test_the_whole_group_joins_what_is_known_also_while_no_driver_is_loaded() -> None:
    plan = planned(here(gpu(), audio(), vfio_loaded=False), BIND, KNOWN_ONE)
    assert [each.address for each in plan.entries] == [GPU, AUDIO, OTHER]
    assert plan.results[0].outcome is Outcome.PLANNED
    assert planned(here(gpu(), audio()), BIND, *plan.entries).results[0].outcome is Outcome.NOTHING


def test_a_variant_driver_is_for_what_was_named() -> None:
    plan = planned(here(gpu(), audio()), BIND._replace(driver="nvgrace_gpu_vfio_pci"))
    assert [each.driver for each in plan.entries] == ["nvgrace_gpu_vfio_pci", "vfio-pci"]


@pytest.mark.parametrize("kind", sorted(set(UseKind) - {UseKind.OPEN}))
def test_what_the_host_uses_it_would_miss(kind: UseKind) -> None:
    plan = planned(here(gpu(), audio(uses=used(kind))), BIND, KNOWN_ONE)
    assert plan.results[0].outcome is Outcome.REFUSED
    each_names([problem.message for problem in plan.results[0].refusals], (AUDIO, "thing", "somehow"))
    assert plan.entries == (KNOWN_ONE,)


def test_what_is_open_ends_with_the_boot() -> None:
    assert planned(here(gpu(uses=used(UseKind.OPEN)), audio())).results[0].outcome is Outcome.PLANNED


def test_without_an_iommu_nothing_is_taken() -> None:
    plan = planned(here(gpu(), audio(), iommu=False))
    (problem,) = plan.results[0].refusals
    names(problem.message, "IOMMU")


def test_a_release_takes_the_group_and_leaves_the_others_also_of_what_has_gone() -> None:
    known = (*planned(here(gpu(), audio())).entries, KNOWN_ONE)
    snapshot = replace(KNOWN, host=here(gpu(), audio(), function(OTHER, 9)))
    assert at_boot.remove_entries(RELEASE._replace(names=(AUDIO,)), snapshot, known) == (KNOWN_ONE,)
    assert at_boot.remove_entries(RELEASE._replace(names=("8086:10d3",)), snapshot, known) == known[:2]
    gone = replace(KNOWN, host=here())
    assert at_boot.remove_entries(RELEASE._replace(names=("5e:00.0",)), gone, known) == known[:2]
