# SPDX-License-Identifier: Apache-2.0
"""Health: every Reason comes and goes with its cause, and the nearest cause is the one that is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Holder, unnamed
from nodeagent.model.host import NO_IOMMU, Group, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.nodes import CONTAINER_NODE
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode
from nodeagent.policy.offer import health
from nodeagent.policy.offer.health import Unit, Use
from tests.facts import contains, names
from tests.policy.samples import GPU, NODES, function, holders

A, B = "0000:65:00.0", "0000:65:00.1"
VF_OR_PF = PciAddress("0000:65:02.0")
CARD = function(A)
SIBLING = function(B)
VF = function(VF_OR_PF, 2, physfn=PciAddress(A))
GROUP = Group(GroupNumber(1), (A, B), node=True)
FINE = Unit(GROUP, (CARD, SIBLING), (CARD, SIBLING), complete=True, nodes=NODES)
CDEV = CARD._replace(cdev=True, vfio_device="vfio3")
BOTH = NODES | {"/dev/iommu"}


def reason(found: PciFunction = CARD, use: Use = Use(), **other: Any) -> Reason | None:  # noqa: B008 - frozen
    members = tuple(found if member.address == found.address else member for member in FINE.functions)
    return health.check_function(found, FINE._replace(**({"functions": members} | other)), use)


def code(*args: Any, **other: Any) -> ReasonCode | None:
    found = reason(*args, **other)
    return None if found is None else found.code


def beside(**change: Any) -> dict[str, Any]:
    """The situation in which the sibling differs."""
    return {"functions": (CARD, SIBLING._replace(**change))}


CAUSES: list[tuple[str, ReasonCode, PciFunction, dict[str, Any], tuple[object, ...]]] = [
    ("unreadable", ReasonCode.UNREADABLE, CARD._replace(unreadable="no answer"), {}, ("no answer",)),
    ("leaving", ReasonCode.GOING_AWAY, function(A, driver=None, enable=1), {}, ()),
    ("left behind", ReasonCode.GONE, function(A, physfn=B, left_behind=True), {}, (B,)),
    ("no group", ReasonCode.NO_GROUP, CARD, {"group": None}, ("IOMMU group",)),
    ("no IOMMU", ReasonCode.NO_GROUP, CARD, {"group": None, "no_iommu": NO_IOMMU}, ("IOMMU",)),
    ("noiommu", ReasonCode.NO_GROUP, CARD, {"group": GROUP._replace(name="vfio-noiommu")}, ("vfio-noiommu",)),
    ("firmware", ReasonCode.FIRMWARE_MAPPED, CARD, {"firmware": True}, ("firmware", "IOMMU group 1")),
    (
        "boot framebuffer",
        ReasonCode.USED_BY_HOST,
        CARD,
        {"boot_framebuffers": ((A, "BOOTFB, simpledrm"),)},
        ("BOOTFB", "simpledrm"),
    ),
    ("domain", ReasonCode.EXCLUDED, function("10000:65:00.0"), {}, ("PCI domain", "virt-launcher")),
    (
        "token",
        ReasonCode.NEEDS_TOKEN,
        CARD._replace(physfn=VF_OR_PF, pf_driver="vfio-pci"),
        {},
        (VF_OR_PF, "vfio-pci", "VF token"),
    ),
    ("driver", ReasonCode.DRIVER_CHANGED, function(A, driver="nvidia"), {}, ("nvidia", "VFIO driver")),
    ("unbound", ReasonCode.DRIVER_CHANGED, function(A, driver=None), {}, ("VFIO driver",)),
    (
        "unfinished VF",
        ReasonCode.MDEV_TYPE_CHANGED,
        function(A, driver="nvidia", vfio=True, physfn=VF_OR_PF),
        {},
        ("VF", "vGPU", "nvidia/current_vgpu_type"),
    ),
    (
        "failed",
        ReasonCode.RECOVERY_FAILED,
        CARD._replace(recovery=Recovery.FAILED),
        {},
        ("fatal PCIe error",),
    ),
    ("unheard", ReasonCode.RECOVERY_FAILED, CARD._replace(recovery=Recovery.UNHEARD), {}, ("PCIe error",)),
    ("fallen", ReasonCode.GONE, CARD._replace(recovery=Recovery.FALLEN), {}, ("configuration space",)),
    ("dead in a pod", ReasonCode.GONE, CARD._replace(answers=False), {}, ("configuration space",)),
    ("recovering", ReasonCode.RECOVERY_FAILED, CARD._replace(recovery=Recovery.RUNNING), {}, ("PCIe error",)),
    (
        "blocked",
        ReasonCode.GROUP_NOT_VIABLE,
        CARD,
        beside(driver="e1000e", vfio=False),
        ("IOMMU group 1", B, "e1000e"),
    ),
    (
        "group node",
        ReasonCode.NODE_MISSING,
        CARD,
        {"group": GROUP._replace(node=False)},
        ("/dev/vfio/1",),
    ),
    (
        "node of another group",
        ReasonCode.NODE_MISSING,
        CARD,
        {"group": GROUP._replace(node=False, stale=True)},
        ("/dev/vfio/1",),
    ),
    ("container node", ReasonCode.NODE_MISSING, CARD, {"nodes": frozenset()}, (CONTAINER_NODE,)),
    ("held", ReasonCode.GROUP_HELD, CARD, {"holders": holders(B)}, ("ns/vm", B)),
    ("held by number", ReasonCode.GROUP_HELD, CARD, {"holders": holders("1")}, ("ns/vm", 1)),
    ("outside", ReasonCode.HELD_OUTSIDE, CARD._replace(enable=1), {}, ("open",)),
    ("sibling", ReasonCode.HELD_OUTSIDE, CARD, beside(enable=2), (B, "open")),
    (
        "held VF",
        ReasonCode.GROUP_HELD,
        CARD,
        {"vfs": (VF,), "vf_holders": holders(VF.address)},
        (VF_OR_PF, "ns/vm"),
    ),
    ("open VF", ReasonCode.HELD_OUTSIDE, CARD, {"vfs": (VF._replace(enable=1),)}, (VF_OR_PF, "open")),
    (
        "VF whose unbind waits",
        ReasonCode.HELD_OUTSIDE,
        CARD,
        {"vfs": (VF._replace(driver=None, vfio=False, enable=1, lowest=0),)},
        (VF_OR_PF, "open"),
    ),
    (
        "open VF of whomever",
        ReasonCode.GROUP_HELD,
        CARD,
        {"vfs": (VF._replace(enable=1),), "complete": False},
        (VF_OR_PF, "open", "kubelet"),
    ),
    (
        "unknown holder",
        ReasonCode.GROUP_HELD,
        CARD,
        {**beside(enable=1), "complete": False},
        (B, "open", "kubelet"),
    ),
]


@pytest.mark.parametrize(
    ("expected", "found", "other", "facts"), [row[1:] for row in CAUSES], ids=[row[0] for row in CAUSES]
)
def test_a_cause_makes_its_reason_and_takes_it_away_again(
    expected: ReasonCode, found: PciFunction, other: dict[str, Any], facts: tuple[object, ...]
) -> None:
    told = reason(found, **other)
    assert told is not None
    assert told.code is expected
    names(told.message, *facts)
    assert told.hint
    assert reason(CARD) is None


def test_causes_of_one_code_are_told_apart() -> None:
    """But for those that mean the same: a card that does not answer, and a VF that somebody has open."""
    texts = {row[0]: told.message for row in CAUSES if (told := reason(row[2], **row[3])) is not None}
    assert len(set(texts.values())) == len(CAUSES) - 2
    assert texts["fallen"] == texts["dead in a pod"]
    assert texts["open VF"] == texts["VF whose unbind waits"]


def test_only_where_no_iommu_is_active_a_missing_group_is_the_firmwares_matter() -> None:
    reasons = (reason(CARD, group=None, no_iommu=missing) for missing in (None, NO_IOMMU))
    hints = [each.hint for each in reasons if each is not None]
    assert ["firmware" in hint for hint in hints] == [False, True]


def test_the_table_shows_every_reason_that_a_function_can_have() -> None:
    elsewhere = {ReasonCode.APPLY_FAILED, ReasonCode.TYPE_NAME_UNKNOWN, ReasonCode.CDI_CONFLICT}
    elsewhere |= {ReasonCode.RE_ENUMERATED}  # of USB devices
    elsewhere |= {ReasonCode.OTHER_API}  # in test_handover
    assert {row[1] for row in CAUSES} == set(ReasonCode) - elsewhere


def test_the_nearest_cause_is_told_first() -> None:
    worst = CARD._replace(unreadable="no answer", driver=None, vfio=False, enable=1, recovery=Recovery.FAILED)
    blocked = SIBLING._replace(driver="e1000e", vfio=False)
    held = holders(B)
    steps: list[tuple[PciFunction, dict[str, Any], ReasonCode]] = [
        (worst, {}, ReasonCode.UNREADABLE),
        (worst._replace(unreadable=None), {}, ReasonCode.GOING_AWAY),
        (worst._replace(unreadable=None, enable=0), {"group": None}, ReasonCode.NO_GROUP),
        (worst._replace(unreadable=None, enable=0), {"firmware": True}, ReasonCode.FIRMWARE_MAPPED),
        (worst._replace(unreadable=None, enable=0), {}, ReasonCode.DRIVER_CHANGED),
        (CARD._replace(recovery=Recovery.FAILED, enable=1), {}, ReasonCode.RECOVERY_FAILED),
        (CARD._replace(enable=1), {}, ReasonCode.GROUP_NOT_VIABLE),
        (CARD._replace(enable=1), {"functions": (CARD, SIBLING)}, ReasonCode.NODE_MISSING),
        (CARD._replace(enable=1), {"functions": (CARD, SIBLING), "nodes": NODES}, ReasonCode.GROUP_HELD),
        (
            CARD._replace(enable=1),
            {"functions": (CARD, SIBLING), "nodes": NODES, "holders": {}},
            ReasonCode.HELD_OUTSIDE,
        ),
    ]
    bad = {"functions": (CARD, blocked), "nodes": frozenset(), "holders": held}
    for found, other, expected in steps:
        members = tuple(found if m.address == A else m for m in {**bad, **other}["functions"])
        assert code(found, **{**bad, **other, "functions": members}) is expected


def test_a_held_device_stays_as_it_is_and_the_others_wait_for_its_release() -> None:
    opened = (CARD._replace(enable=1), SIBLING)
    assert code(opened[0], functions=opened, holders=holders(A)) is None
    assert code(SIBLING, functions=opened, holders=holders(A)) is ReasonCode.GROUP_HELD


def test_the_group_is_still_open_to_the_pod_that_is_being_admitted_for_what_it_has_not_got() -> None:
    admitted = {"holders": holders(A), "admitting": frozenset({A})}
    assert code(SIBLING, Use(resource="example.com/usb"), **admitted) is None
    assert code(SIBLING, Use(resource=GPU), **admitted) is ReasonCode.GROUP_HELD
    opened = (CARD._replace(enable=1), SIBLING)
    assert code(SIBLING, Use(resource="example.com/usb"), functions=opened, **admitted) is None


def test_two_pods_in_one_group_are_both_named_and_neither_gets_more_of_it() -> None:
    both = {**holders(A, pod="one"), **holders(B, pod="two")}
    for found, other in ((CARD, B), (SIBLING, A)):
        told = reason(found, Use(resource=GPU), holders=both)
        assert told is not None
        assert told.code is ReasonCode.GROUP_HELD
        names(told.message, "ns/one", "ns/two", other)
    assert code(CARD, Use(Isolation.NONE, resource=GPU), holders=both) is None
    assert code(CARD, Use(resource=GPU), holders=holders(A, B)) is None


def test_a_pod_without_a_name_may_be_the_one_that_has_the_rest_of_the_group() -> None:
    nobody = unnamed(ResourceName(GPU), None)
    assert code(CARD, Use(resource=GPU), holders={A: nobody, B: nobody}) is None
    assert code(CARD, Use(resource=GPU), holders={A: nobody, **holders(B)}) is None


def test_a_device_that_a_pod_got_under_another_name_is_not_given_a_second_time() -> None:
    other = {A: Holder("ns", "vm", ResourceName("example.com/old"))}
    for isolation in Isolation:
        told = reason(CARD, Use(isolation, resource=GPU), holders=other)
        assert told is not None
        assert told.code is ReasonCode.GROUP_HELD
        names(told.message, "ns/vm", "example.com/old")
        assert code(CARD, Use(isolation, resource="example.com/old"), holders=other) is None


def test_without_isolation_only_the_device_itself_counts() -> None:
    alone = Use(Isolation.NONE)
    assert code(CARD, alone, holders=holders(B)) is None
    assert code(CARD, alone, **beside(enable=1)) is None
    assert code(CARD._replace(enable=1), alone) is ReasonCode.HELD_OUTSIDE
    assert code(CARD, alone, **beside(driver="e1000e", vfio=False)) is ReasonCode.GROUP_NOT_VIABLE


def test_what_came_with_a_device_is_not_given_a_second_time_whatever_the_isolation_is() -> None:
    came = Holder("ns", "vm", ResourceName(GPU), came_with=B)
    for isolation in Isolation:
        found = reason(use=Use(isolation, resource=GPU), holders={CARD.address: came})
        assert found is not None
        names(found.message, "ns/vm", GPU, B)
        whole = reason(use=Use(isolation, resource=GPU), holders={CARD.address: replace(came, came_with="1")})
        assert whole is not None
        names(whole.message, "ns/vm", GPU)
        assert not contains(whole.message, 1), "the number of the group says nothing more"


def test_a_bundle_that_a_pod_has_is_open_in_all_its_functions() -> None:
    bundle = Use(Isolation.BUNDLE, resource=GPU, host_devices=(A, B))
    opened = (CARD._replace(enable=1), SIBLING._replace(enable=1))
    assert {code(each, bundle, functions=opened, holders=holders(A)) for each in opened} == {None}
    assert {code(each, bundle, functions=opened) for each in opened} == {ReasonCode.HELD_OUTSIDE}
    elsewhere = holders("0000:65:00.2", resource="example.com/audio")
    assert code(CARD, bundle, holders=elsewhere) is ReasonCode.GROUP_HELD


def test_nobody_is_accused_before_the_kubelet_has_told_who_holds_what() -> None:
    opened = CARD._replace(enable=1)
    assert code(opened, complete=False) is None
    assert code(opened, complete=True) is ReasonCode.HELD_OUTSIDE


@pytest.mark.parametrize(
    ("iommufd", "found", "nodes", "group_node", "expected"),
    [
        (Iommufd.NEVER, CDEV, BOTH, True, None),
        (Iommufd.NEVER, CDEV, BOTH, False, ReasonCode.NODE_MISSING),
        (Iommufd.AUTO, CDEV, BOTH, False, None),
        (Iommufd.AUTO, CARD, NODES, True, None),
        (Iommufd.AUTO, CARD, NODES, False, ReasonCode.NODE_MISSING),
        (Iommufd.ONLY, CDEV, BOTH, False, None),
        (Iommufd.ONLY, CDEV, NODES, True, ReasonCode.NODE_MISSING),
        (Iommufd.ONLY, CARD, BOTH, True, ReasonCode.NODE_MISSING),
    ],
)
def test_only_the_nodes_that_would_be_handed_out_must_exist(
    iommufd: Iommufd, found: PciFunction, nodes: frozenset[str], group_node: bool, expected: ReasonCode | None
) -> None:
    group = GROUP._replace(node=group_node)
    assert code(found, Use(iommufd=iommufd), nodes=nodes, group=group) is expected


def test_iommufd_alone_on_a_kernel_without_it_is_told_as_that() -> None:
    without = reason(CARD, Use(iommufd=Iommufd.ONLY), nodes=NODES)
    assert without is not None
    names(without.message, "/dev/iommu", "iommufd: only")
    names(without.hint, "iommufd: auto")
    unbound = reason(CARD, Use(iommufd=Iommufd.ONLY), nodes=BOTH)
    assert unbound is not None
    names(unbound.message, "/dev/vfio/devices/vfio?")


def test_a_vf_of_another_pf_is_nothing_to_a_function_and_a_pod_keeps_the_pf_that_it_has() -> None:
    opened = VF._replace(enable=1)
    assert reason(CARD, vfs=(opened._replace(physfn=PciAddress(B)),)) is None
    assert reason(CARD, vfs=(VF,)) is None
    assert reason(CARD, vfs=(opened,), holders=holders(A)) is None


@pytest.mark.parametrize("driver", ["mlx5_core", "nvidia", "mlx5_vfio_pci", None])
def test_a_vf_that_vfio_pci_has_not_made_needs_no_token(driver: str | None) -> None:
    assert reason(CARD._replace(physfn=VF_OR_PF, pf_driver=driver)) is None
