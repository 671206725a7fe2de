# SPDX-License-Identifier: Apache-2.0
"""What could become a device of a resource that has none, and what is missing for it."""

from __future__ import annotations

import pytest

from nodeagent.model.desired import (
    Desired,
    MdevRule,
    MdevSelector,
    MdevsWanted,
    PciRule,
    PciSelector,
    WantedType,
)
from nodeagent.model.host import HostDevice, MdevType
from nodeagent.policy.explaining import possibilities
from nodeagent.policy.explaining.possibilities import Possibility
from nodeagent.policy.offer import turn
from tests.policy.samples import function, host, mdev, snapshot, vgpu

CARD, VF = "0000:65:00.0", "0000:65:00.4"
SMALL = "nvidia.com/GRID_T4-1B"
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
WANTED = MdevsWanted(manage=True, types=(WantedType("nvidia-222"),))


def found(name: str, wish: Desired, *devices: HostDevice, room: int = 16) -> tuple[Possibility, ...]:
    parents = {CARD: (MdevType("nvidia-222", "GRID T4-1B", room),)}
    here = host(*(devices or (function(CARD, driver="nvidia"),)), mdev_parents=parents)
    return possibilities.possibilities(name, turn.first(snapshot(here, wish, names=NAMES)))


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (MdevsWanted(), "up to 16 fit, but none is made: mdevs.manage is false"),
        (MdevsWanted(obstacle="virt-handler makes them"), "virt-handler makes them"),
        (WANTED._replace(types=()), "up to 16 fit, but the type is not wanted on this card: see mdevs.types"),
        (WANTED, "up to 16 fit; nodeagent plan says what becomes of it"),
    ],
    ids=["not managed", "obstacle", "not wanted", "wanted"],
)
def test_a_card_that_offers_the_type_says_what_is_missing(wanted: MdevsWanted, missing: str) -> None:
    assert found(SMALL, Desired(mdevs=wanted)) == (
        Possibility(f"{CARD} offers its type nvidia-222", missing),
    )


def test_a_card_that_is_full_says_what_it_has() -> None:
    told = found(
        SMALL, Desired(mdevs=WANTED), function(CARD, driver="nvidia"), mdev(type_id="nvidia-8"), room=0
    )
    assert [each.missing for each in told] == ["it has no room while it has 1 of nvidia-8"]


def test_rules_and_aliases_give_a_type_its_name() -> None:
    rule = MdevRule("x/vgpu", (MdevSelector(types=("nvidia-222",)),))
    assert len(found("x/vgpu", Desired(rules=(rule,)))) == 1
    assert found(SMALL, Desired(rules=(rule,))) == ()
    aliased = Desired(aliases=((SMALL, "x/small"),))
    assert [each.what for each in found("x/small", aliased)] == [
        f"an alias makes it of {SMALL}",
        f"{CARD} offers its type nvidia-222",
    ]
    assert [each.what for each in found(SMALL, aliased)] == ["an alias gives it the name x/small"]


def test_a_vf_that_may_be_given_the_type_counts() -> None:
    pf = function(CARD, driver="nvidia", vfs=(VF,), sriov_capable=True)
    vf = vgpu(VF, vgpu_type=None, vgpu_types=(("1147", "NVIDIA A40-1B"),))
    told = found("nvidia.com/NVIDIA_A40-1B", Desired(), pf, vf)
    assert [each.what for each in told] == [f"{CARD} offers its type 1147"]


def test_a_function_on_another_driver_counts_and_one_that_is_offered_does_not() -> None:
    name = "nvidia.com/TU104GL_TESLA_T4"
    assert found(name, Desired(), function("0000:10:00.0", driver="nouveau")) == (
        Possibility(
            "0000:10:00.0 would be one on a VFIO driver",
            "its driver is nouveau: nodeagent explain 0000:10:00.0",
        ),
    )
    assert found(name, Desired(), function("0000:10:00.0")) == ()


def test_what_virt_handler_offers_is_said_to_be_its() -> None:
    rule = PciRule("x/theirs", (PciSelector(devices=("1eb8",)),), place="KubeVirt CR: pciHostDevices[0]")
    told = found("x/theirs", Desired(foreign={"10de:1eb8": rule}))
    assert told[0].what == "virt-handler offers it (rule x/theirs (KubeVirt CR: pciHostDevices[0]))"
