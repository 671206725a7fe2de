# SPDX-License-Identifier: Apache-2.0
"""A group by its number; a card that its driver splits blocks only what VFIO is to have."""

from __future__ import annotations

import pytest

from nodeagent.model.host import HostDevice, MdevType
from nodeagent.policy.explain import devices, groups
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.offer import turn
from tests.policy.samples import GPU, function, host, mdev, snapshot, vgpu

CARD, BESIDE, VF = "0000:65:00.0", "0000:65:00.1", "0000:65:00.4"
PARENTS = {CARD: (MdevType("nvidia-222", None, 16),)}


def told(*here: HostDevice, number: int = 1) -> GroupExplanation | None:
    return groups.explain(number, turn.decide_first(snapshot(host(*here, mdev_parents=PARENTS))))


def test_a_group_has_its_members_and_what_becomes_of_them() -> None:
    found = told(function(BESIDE), function("0000:66:00.0", 2))
    assert found is not None
    assert [(each.id, each.resource) for each in found.members] == [(BESIDE, GPU)]
    assert (found.viable, devices.is_blocked(each.role for each in found.members)) == (True, False)
    assert told(function(BESIDE), number=7) is None


@pytest.mark.parametrize(("beside", "role"), [("snd_hda_intel", "splits"), ("vfio-pci", "blocks")])
def test_a_card_that_is_split_blocks_only_if_vfio_has_something_beside_it(beside: str, role: str) -> None:
    found = told(function(CARD, driver="nvidia"), function(BESIDE, driver=beside, pci_class="040300"))
    assert found is not None
    assert {each.id: each.role for each in found.members}[CARD] == role
    assert not found.viable


def test_a_vf_that_waits_for_a_vgpu_type_blocks_nothing_nor_does_its_card() -> None:
    pf = function(CARD, driver="nvidia", vfs=(VF,), sriov_capable=True)
    for number, role in ((1, "splits"), (20, "vacant")):
        found = told(pf, vgpu(VF, vgpu_type=None), number=number)
        assert found is not None
        assert [each.role for each in found.members] == [role]
        assert not devices.is_blocked(each.role for each in found.members)


def test_the_group_of_an_mdev_has_no_function() -> None:
    found = told(mdev(), number=50)
    assert found is not None
    assert [each.role for each in found.members] == ["mdev"]
