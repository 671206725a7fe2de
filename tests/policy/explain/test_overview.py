# SPDX-License-Identifier: Apache-2.0
"""The host as a person looks at it: which groups are shown, and what is said of each member."""

from __future__ import annotations

from nodeagent.model.host import HostDevice, MdevType
from nodeagent.model.spec import Spec
from nodeagent.model.status import GroupStatus, MemberStatus
from nodeagent.policy.explain import groups
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import UUID, function, host, mdev, snapshot

GPU, SOUND, NIC = "0000:65:00.0", "0000:65:00.1", "0000:65:00.2"
NAMES = {"10de:1eb8": "TU104GL [Tesla T4]"}


def seen(*devices: HostDevice) -> tuple[GroupStatus, ...]:
    """The overview of a host, discovered, with the names of pci.ids."""
    return groups.overview(turn.decide_first(snapshot(host(*devices), Spec(), names=NAMES)))


def test_a_device_that_is_offered_says_what_it_is_and_as_which_device() -> None:
    (group,) = seen(function(GPU))
    assert (group.number, group.viable) == (1, True)
    assert group.members == (MemberStatus(GPU, "TU104GL [Tesla T4]", "vfio-pci", "vfio", None, GPU),)


def test_whatever_blocks_a_group_is_told_with_its_driver() -> None:
    (group,) = seen(function(GPU), function(NIC, pci_class="020000", driver="e1000e", device="10d3"))
    assert not group.viable
    blocker = group.members[1]
    assert (blocker.role, blocker.driver, blocker.device) == ("blocks", "e1000e", None)


def test_a_card_that_its_driver_splits_blocks_nothing_unless_vfio_is_to_have_its_group() -> None:
    card = function(GPU, driver="nvidia")
    sound = function(SOUND, pci_class="040300", device="10f8", driver="vfio-pci")
    for devices, role in (((card,), "splits"), ((card, sound), "blocks")):
        on = host(*devices, mdev_parents={GPU: (MdevType("nvidia-222", None, 16),)})
        (group,) = groups.overview(turn.decide_first(snapshot(on, Spec())))
        assert (group.viable, group.members[0].role) == (False, role)


def test_a_gpu_that_is_not_offered_says_why() -> None:
    (group,) = seen(function(GPU, driver="nvidia"))
    names(group.members[0].message, "nvidia", "VFIO driver")
    (group,) = seen(function(GPU), function(SOUND, pci_class="040300", device="10f8"))
    names(group.members[1].message, "audio device", GPU)


def test_groups_in_which_nobody_looks_for_a_device_are_left_out() -> None:
    disk = function("0000:02:00.0", 2, pci_class="010802", driver="nvme")
    bridge = function("0000:00:01.0", 3, pci_class="060400", driver="pcieport")
    assert seen(disk, bridge) == ()
    assert [group.number for group in seen(disk, function(GPU), bridge)] == [1]


def test_an_mdev_names_its_card_and_its_type() -> None:
    member = seen(function(GPU, driver="nvidia"), mdev())[1].members[0]
    assert (member.id, member.description, member.role) == (UUID, "GRID T4-1Q", "mdev")
    assert (member.parent, member.device) == (GPU, UUID)


def test_a_function_without_a_group_stands_alone() -> None:
    groups = seen(function(GPU, None), function("0000:66:00.0", None))
    assert [(group.number, len(group.members)) for group in groups] == [(None, 1), (None, 1)]
