# SPDX-License-Identifier: Apache-2.0
"""What could become a device of a resource that has none, and what is missing for it."""

from __future__ import annotations

import pytest

from nodeagent.model.host import HostDevice, MdevType
from nodeagent.model.problem import virt_handler_conflict
from nodeagent.model.spec import (
    MdevRule,
    MdevSelector,
    MdevSpec,
    PciRule,
    PciSelector,
    Spec,
    WantedType,
)
from nodeagent.policy.explain import suggestions
from nodeagent.policy.explain.suggestions import Suggestion
from tests.facts import each_names, names
from tests.policy.samples import function, host, mdev, snapshot, vgpu

CARD, VF = "0000:65:00.0", "0000:65:00.4"
SMALL = "nvidia.com/GRID_T4-1B"
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
CONFLICT = virt_handler_conflict("mdevs.manage", "virt-handler makes them", "tell it not to")
WANTED = MdevSpec(manage=True, types=(WantedType("nvidia-222"),))


def found(name: str, wish: Spec, *devices: HostDevice, room: int = 16) -> tuple[Suggestion, ...]:
    parents = {CARD: (MdevType("nvidia-222", "GRID T4-1B", room),)}
    here = host(*(devices or (function(CARD, driver="nvidia"),)), mdev_parents=parents)
    return suggestions.suggestions(name, snapshot(here, wish, names=NAMES))


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (MdevSpec(), (16, "mdevs.manage")),
        (MdevSpec(obstacle=CONFLICT), ("virt-handler makes them", "tell it not to")),
        (WANTED._replace(types=()), (16, "mdevs.types")),
        (WANTED, (16, "nodeagent plan")),
    ],
    ids=["not managed", "obstacle", "not wanted", "wanted"],
)
def test_a_card_that_offers_the_type_says_what_is_missing(
    wanted: MdevSpec, missing: tuple[object, ...]
) -> None:
    (told,) = found(SMALL, Spec(mdevs=wanted))
    names(told.message, CARD, "nvidia-222")
    names(told.missing, *missing)


def test_a_card_that_is_full_says_what_it_has() -> None:
    told = found(SMALL, Spec(mdevs=WANTED), function(CARD, driver="nvidia"), mdev(type_id="nvidia-8"), room=0)
    each_names([each.missing for each in told], ("room", 1, "nvidia-8"))


def test_rules_and_aliases_give_a_type_its_name() -> None:
    rule = MdevRule("x/vgpu", (MdevSelector(types=("nvidia-222",)),))
    assert len(found("x/vgpu", Spec(rules=(rule,)))) == 1
    assert found(SMALL, Spec(rules=(rule,))) == ()
    aliased = Spec(aliases=((SMALL, "x/small"),))
    each_names([each.message for each in found("x/small", aliased)], ("alias", SMALL), (CARD, "nvidia-222"))
    each_names([each.message for each in found(SMALL, aliased)], ("alias", "x/small"))


def test_a_vf_that_may_be_given_the_type_counts() -> None:
    pf = function(CARD, driver="nvidia", vfs=(VF,), sriov_capable=True)
    vf = vgpu(VF, vgpu_type=None, vgpu_types=(("1147", "NVIDIA A40-1B"),))
    told = found("nvidia.com/NVIDIA_A40-1B", Spec(), pf, vf)
    each_names([each.message for each in told], (CARD, 1147))


def test_a_function_on_another_driver_counts_and_one_that_is_offered_does_not() -> None:
    name = "nvidia.com/TU104GL_TESLA_T4"
    (told,) = found(name, Spec(), function("0000:10:00.0", driver="nouveau"))
    names(told.message, "0000:10:00.0", "VFIO driver")
    names(told.missing, "nouveau", "nodeagent explain 0000:10:00.0")
    assert found(name, Spec(), function("0000:10:00.0")) == ()


def test_what_virt_handler_offers_is_said_to_be_its() -> None:
    rule = PciRule("x/theirs", (PciSelector(devices=("1eb8",)),), place="KubeVirt CR: pciHostDevices[0]")
    told = found("x/theirs", Spec(virt_handler_rules={"10de:1eb8": rule}))
    names(told[0].message, "virt-handler", "x/theirs", "KubeVirt CR: pciHostDevices[0]")
