# SPDX-License-Identifier: Apache-2.0
"""Lines on devices name their group, and the pods that have it: who searches the log for a pod finds them."""

from __future__ import annotations

from nodeagent.agent.tell import devices
from nodeagent.base import log
from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Allocations, Holder, Reservations, unnamed
from nodeagent.model.desired import Desired
from nodeagent.model.host import Group, Host, Kind, PciFunction
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from tests.conftest import Said

GPU = ResourceName("example.com/gpu")
CARD, SOUND = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")
SEVEN = GroupNumber(7)
HOST = Host(
    functions={each: PciFunction(each, group=SEVEN) for each in (CARD, SOUND)},
    groups={SEVEN: Group(SEVEN, (CARD, SOUND))},
)
HELD = Reason(ReasonCode.GROUP_HELD, "IOMMU group held by ns/p")


def snapshot(sound: Holder | None = None) -> Snapshot:
    """``sound`` holds the function of that name."""
    return Snapshot(HOST, Desired(), allocations=Allocations({SOUND: sound} if sound else {}))


def resource(*listed: Device) -> Resource:
    return Resource(GPU, Kind.PCI, listed)


def healthy(device_id: str = CARD) -> Device:
    return Device(DeviceId(device_id))


def test_an_unhealthy_device_is_found_by_the_pod_that_has_its_neighbour(said: Said) -> None:
    now = resource(Device(DeviceId(CARD), HELD))
    devices.changes(resource(healthy()), now, snapshot(sound=Holder("ns", "p", GPU)))
    assert said(log.DEVICE_UNHEALTHY) == [
        {
            "resource": GPU,
            "device": CARD,
            "pci_address": CARD,
            "group": ("7",),
            "pod": ("ns/p",),
            "text": HELD.what,
            "reason": "group-held",
        }
    ]


def test_what_was_given_names_the_pod_only_where_the_kubelet_does(said: Said) -> None:
    given = {str(CARD): Holder("ns", "p", GPU), str(SOUND): unnamed(GPU, None)}
    now = Snapshot(HOST, Desired(), reservations=Reservations(given=given))
    devices.allocated(resource(), [CARD], now)
    devices.allocated(resource(), [SOUND], now)
    first, second = said(log.ALLOCATED)
    assert first == {"resource": GPU, "device": (CARD,), "group": ("7",), "pod": ("ns/p",)}
    assert "pod" not in second


def test_a_refusal_has_the_reason_of_the_device_that_is_in_the_list(said: Said) -> None:
    now = resource(healthy(SOUND), Device(DeviceId(CARD), HELD))
    devices.refused(now, [SOUND, CARD], Refused("no"), snapshot(sound=Holder("ns", "p", GPU)))
    (event,) = said(log.ALLOCATE_REFUSED)
    assert (event["reason"], event["group"], event["pod"]) == ("group-held", ("7",), ("ns/p",))
    assert event["device"] == (SOUND, CARD)


def test_a_share_of_a_node_has_neither_a_group_nor_an_address(said: Said) -> None:
    devices.changes(resource(), resource(healthy("kvm-0")), snapshot())
    assert said(log.DEVICE_ADDED) == [{"resource": GPU, "device": "kvm-0"}]


def test_what_is_as_before_is_not_said_again(said: Said) -> None:
    devices.changes(resource(healthy()), resource(healthy()), snapshot())
    assert [line for kind in log.catalogue() for line in said(kind)] == []
