# SPDX-License-Identifier: Apache-2.0
"""Lines on devices name their group, and the pods that have it: who searches the log for a pod finds them."""

from __future__ import annotations

from nodeagent.agent.reporting import device_log
from nodeagent.base import log
from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import Allocations, Holder, Reservations, unnamed
from nodeagent.model.host import Group, Host, Kind, PciFunction
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from tests.conftest import Said
from tests.facts import names

GPU = ResourceName("example.com/gpu")
CARD, SOUND = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")
SEVEN = GroupNumber(7)
HOST = Host(
    functions={each: PciFunction(each, group=SEVEN) for each in (CARD, SOUND)},
    groups={SEVEN: Group(SEVEN, (CARD, SOUND))},
)
HELD = Reason(ReasonCode.GROUP_HELD, "IOMMU group in use by ns/p", "")


def snapshot(sound: Holder | None = None) -> Snapshot:
    """``sound`` holds the function of that name."""
    return Snapshot(HOST, Spec(), allocations=Allocations.of({SOUND: sound} if sound else {}))


def resource(*listed: Device) -> Resource:
    return Resource(GPU, Kind.PCI, listed)


def healthy(device_id: str = CARD) -> Device:
    return Device(DeviceId(device_id))


def test_an_unhealthy_device_is_found_by_the_pod_that_has_its_neighbour(said: Said) -> None:
    now = resource(Device(DeviceId(CARD), HELD))
    device_log.changes(resource(healthy()), now, Decision(snapshot(sound=Holder("ns", "p", GPU))))
    assert said(log.DEVICE_UNHEALTHY) == []
    assert said(log.DEVICE_WAITING) == [
        {
            "resource": GPU,
            "device": CARD,
            "pci_address": CARD,
            "group": ("7",),
            "pod": ("ns/p",),
            "text": HELD.message,
            "reason": "group-held",
        }
    ]


def test_a_group_that_two_pods_have_is_no_use_as_it_should_be(said: Said) -> None:
    now = resource(Device(DeviceId(SOUND), HELD))
    device_log.changes(resource(healthy(SOUND)), now, Decision(snapshot(sound=Holder("ns", "p", GPU))))
    assert [each["device"] for each in said(log.DEVICE_UNHEALTHY)] == [SOUND]
    assert said(log.DEVICE_WAITING) == []


def test_what_was_given_names_the_pod_only_where_the_kubelet_does(said: Said) -> None:
    given = {str(CARD): Holder("ns", "p", GPU), str(SOUND): unnamed(GPU, None)}
    now = Snapshot(HOST, Spec(), reservations=Reservations(pending=given))
    device_log.allocated(resource(), [CARD], now)
    device_log.allocated(resource(), [SOUND], now)
    first, second = said(log.ALLOCATED)
    assert first == {"resource": GPU, "device": (CARD,), "group": ("7",), "pod": ("ns/p",)}
    assert "pod" not in second


def test_a_refusal_has_the_reason_of_the_device_that_is_in_the_list(said: Said) -> None:
    now = resource(healthy(SOUND), Device(DeviceId(CARD), HELD))
    device_log.refused(
        now, [SOUND, CARD], AllocationRefused(f"{GPU}: {CARD}: no"), snapshot(sound=Holder("ns", "p", GPU))
    )
    (event,) = said(log.ALLOCATE_REFUSED)
    assert (event["reason"], event["group"], event["pod"]) == ("group-held", ("7",), ("ns/p",))
    assert event["device"] == (SOUND, CARD)
    assert event["cause"] == f"{CARD}: no", "the line begins with the resource"


def test_another_advice_on_the_same_device_is_no_news(said: Said) -> None:
    now = resource(Device(DeviceId(CARD), HELD._replace(hint="wait longer")))
    device_log.changes(resource(Device(DeviceId(CARD), HELD)), now, Decision(snapshot()))
    assert said(log.DEVICE_UNHEALTHY) == said(log.DEVICE_WAITING) == []


def test_a_share_of_a_node_has_neither_a_group_nor_an_address(said: Said) -> None:
    device_log.changes(resource(), resource(healthy("kvm-0")), Decision(snapshot()))
    assert said(log.DEVICE_ADDED) == [{"resource": GPU, "device": "kvm-0"}]


def test_shares_of_a_node_that_fare_alike_have_one_line(said: Said) -> None:
    gone, other = (
        Reason(ReasonCode.NODE_MISSING, text, "") for text in ("/dev/kvm is gone", "/dev/tun is gone")
    )
    before = Resource(GPU, Kind.NODE, tuple(healthy(f"kvm-{number}") for number in range(5)))
    reasons = (gone, gone, gone, other, None)
    after = tuple(Device(DeviceId(f"kvm-{number}"), reason) for number, reason in enumerate(reasons))
    device_log.changes(before, Resource(GPU, Kind.NODE, after), Decision(snapshot()))
    lines = [(each["device"], each["text"]) for each in said(log.DEVICE_UNHEALTHY)]
    assert lines == [("each of 3 shares (kvm-0 …)", gone.message), ("kvm-3", other.message)]


def test_what_is_as_before_is_not_said_again(said: Said) -> None:
    device_log.changes(resource(healthy()), resource(healthy()), Decision(snapshot()))
    assert [line for kind in log.catalogue() for line in said(kind)] == []


BOARD = ResourceName("example.com/board")
CARDS = PciRule(BOARD, (PciSelector(addresses=("0000:01:00.0",)),))


def why_gone(said: Said, now: Decision, gone: str = CARD, kind: Kind = Kind.PCI) -> str:
    """What is said of a device that its resource lists no more."""
    device_log.changes(Resource(GPU, kind, (healthy(gone),)), Resource(GPU, kind, ()), now)
    return str(said(log.DEVICE_REMOVED)[-1]["cause"])


def decided(*rules: PciRule) -> Decision:
    functions = {CARD: PciFunction(CARD, driver="vfio-pci", group=SEVEN)}
    host = Host(functions=functions, groups={SEVEN: Group(SEVEN, (CARD,))}, generation=1)
    return turn.decide_first(Snapshot(host, Spec(Discovery(enabled=False), (), rules)))


def test_only_what_the_host_has_no_more_is_said_to_have_left(said: Said) -> None:
    assert why_gone(said, decided(), SOUND) == device_log.LEFT
    names(why_gone(said, decided(CARDS)), BOARD)
    names(why_gone(said, decided()), "rule", "discovery")
    assert why_gone(said, decided(), "kvm-2", Kind.NODE) == device_log.FEWER


def test_a_resource_that_ends_names_those_that_have_its_devices_now() -> None:
    ending = resource(healthy())
    names(device_log.successors(ending, decided(CARDS)), BOARD)
    assert BOARD not in device_log.successors(ending, decided())
