# SPDX-License-Identifier: Apache-2.0
"""Which USB devices make which Devices: KubeVirt's own cases (U1 to U7), and sets that pods have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Knowledge
from nodeagent.model.configuration import Configuration, KubeVirt
from nodeagent.model.host import NODES, Host, HostUse, HostUses, Loan, UsbDevice, UseKind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import ReasonCode, Resources
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import UsbRule, UsbSelector
from nodeagent.policy import merge
from nodeagent.policy.offer import grants, turn, units
from nodeagent.sim.host import SimulatedHost
from tests.cluster.crs import read
from tests.looking import Looks
from tests.policy import samples
from tests.sim.usb import Plug, UsbBuses

A, B = {"vendor": "1234", "product": "5678"}, {"vendor": "4321", "product": "8765"}
A_AT, B1, B2 = "3:11", "4:7", "2:10"


def entry(name: str, *selectors: dict[str, str], external: bool = True) -> dict[str, Any]:
    return {
        "resourceName": f"kubevirt.io/{name}",
        "selectors": list(selectors),
        "externalResourceProvider": external,
    }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Upstream's fixture: A 1234:5678 at 3:11, B 4321:8765 at 4:7, the same once more at 2:10."""
    simulated = SimulatedHost(tmp_path)
    usb = UsbBuses(simulated.tree)
    usb.plug("3-1", Plug("1234", "5678"), 11)
    usb.plug("4-1", Plug("4321", "8765"), 7)
    usb.plug("2-1", Plug("4321", "8765"), 10)
    return Looks(Root(tmp_path)).full(nodes=(NODES,))


def sets(host: Host, *usb: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Resource → bus and number of the devices of each of its Devices, as this node offers them by the CR."""
    on = Configuration(kubevirt=KubeVirt(enabled="auto"))
    decision = turn.decide_first(Snapshot(host, merge.merge(on, read({"usb": list(usb)}))))
    return {
        name.removeprefix("kubevirt.io/"): [
            dict(grants.grant(resource, [device.id], decision).envs)[_variable(name)].split(",")
            for device in resource.devices
        ]
        for name, resource in decision.resources.items()
    }


def _variable(name: str) -> str:
    return "USB_RESOURCE_" + name.upper().replace("/", "_").replace(".", "_")


@pytest.mark.parametrize(
    ("usb", "expected"),
    [
        pytest.param([entry("r1", A)], {"r1": [[A_AT]]}, id="U1"),
        pytest.param([entry("r1", B)], {"r1": [[B2], [B1]]}, id="U2"),
        pytest.param([entry("r1", A, B)], {"r1": [[A_AT, B1]]}, id="U3"),
        pytest.param([entry("r1", A), entry("r2", B)], {"r1": [[A_AT]], "r2": [[B2], [B1]]}, id="U4"),
        pytest.param([entry("r1", A, external=False), entry("r2", B)], {"r2": [[B2], [B1]]}, id="U5"),
        pytest.param([entry("r1", A), entry("r2", A, B)], {"r1": [[A_AT]]}, id="U6"),
        pytest.param([entry("r1", B, B)], {"r1": [[B1, B2]]}, id="two equal selectors take two devices"),
        pytest.param([entry("r1", A, A)], {}, id="two equal selectors and one device"),
    ],
)
def test_the_entries_of_a_cr_make_the_sets_that_kubevirt_makes(
    host: Host, usb: list[dict[str, Any]], expected: dict[str, list[list[str]]]
) -> None:
    assert sets(host, *usb) == expected


def test_without_a_usb_bus_there_is_nothing(tmp_path: Path) -> None:
    host = Looks(Root(tmp_path)).full(nodes=(NODES,))
    assert sets(host, entry("r1", A)) == {}


def device(number: int, device_id: str, vendor: str = "46f4") -> UsbDevice:
    return UsbDevice(
        device_id, f"1-{number}", f"port-{number}", 1, number, vendor, "0001", device_id, present=True
    )


KEY, STICK, OTHER = device(2, "key", "1234"), device(3, "stick"), device(4, "other")
SET = UsbRule("a.b/set", (UsbSelector(vendors=("1234",)), UsbSelector(vendors=("46f4",))), bundle=True)


def of(
    *devices: UsbDevice, lent: tuple[Loan, ...] = (), holder: bool = True, rules: Any = (SET,)
) -> Resources:
    """The resources of these devices, of which a pod was lent some."""
    held = samples.holders("key", resource="a.b/set") if lent and holder else {}
    begin = samples.snapshot(samples.host(*devices), samples.WISH._replace(rules=rules), holders=held)
    loans = {DeviceId("key"): lent} if lent else {}
    return {**turn.decide_first(replace(begin, loans=loans)).resources}


def loan(each: UsbDevice) -> Loan:
    return Loan(each.id, each.node, each.place)


def code(resources: Resources, name: str, device_id: str) -> ReasonCode | None:
    found = resources[ResourceName(name)].device(device_id)
    assert found is not None, resources
    return None if found.reason is None else found.reason.code


def test_a_set_that_a_pod_has_is_not_mixed_with_what_was_plugged_in_before() -> None:
    lent = (loan(KEY), loan(OTHER))
    rules = (SET, UsbRule("a.b/one", (UsbSelector(vendors=("46f4",)),)))
    found = of(KEY, STICK, OTHER, lent=lent, rules=rules)
    assert code(found, "a.b/set", "key") is None
    assert [each.id for each in found[ResourceName("a.b/one")].devices] == ["stick"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: (KEY, STICK._replace(number=9)), ReasonCode.RE_ENUMERATED),
        (lambda: (KEY._replace(number=9), STICK), ReasonCode.RE_ENUMERATED),
        (lambda: (KEY, OTHER), ReasonCode.GONE),
        (lambda: (KEY, STICK), None),
    ],
    ids=["its second part came back", "its first part came back", "its second part is gone", "nothing"],
)
def test_what_became_of_one_part_is_told_of_the_set(
    change: Callable[[], tuple[UsbDevice, ...]], expected: ReasonCode | None
) -> None:
    lent = (loan(KEY), loan(STICK))
    assert code(of(*change(), lent=lent), "a.b/set", "key") is expected


def test_a_part_with_other_ids_at_its_port_stays_out_of_other_sets() -> None:
    changed, key, free = STICK._replace(id="changed"), device(5, "key2", "1234"), device(6, "free")
    lent = (loan(KEY), loan(STICK)._replace(name=STICK.name))
    found = of(KEY, changed, key, free, lent=lent)
    sets = found[ResourceName("a.b/set")].devices
    assert [(each.id, each.reason and each.reason.code) for each in sets] == [
        ("key", ReasonCode.GONE),
        ("key2", None),
    ]


def test_a_loan_that_nobody_has_any_more_says_nothing() -> None:
    found = of(KEY._replace(number=9), STICK, lent=(loan(KEY), loan(STICK)), holder=False)
    assert code(found, "a.b/set", "key") is None


@pytest.mark.parametrize("complete", [True, False])
def test_what_is_being_lent_stays_a_set_though_something_goes_before(complete: bool) -> None:
    """Its pod does not hold it yet; ``complete``: who holds what is known for certain."""
    begin = samples.snapshot(samples.host(KEY, STICK, OTHER), samples.WISH._replace(rules=(SET,)))
    known = Knowledge.COMPLETE if complete else Knowledge.PARTIAL
    allocations = replace(begin.allocations, knowledge=known)
    loans = {DeviceId("key"): (loan(KEY), loan(OTHER))}
    found = turn.decide_first(replace(begin, loans=loans, allocations=allocations))
    assert found.offers[units.USB][0].host_devices == ("key", "other")


def test_what_a_pod_has_is_kept_before_what_is_left_of_a_loan() -> None:
    key = device(5, "key2", "1234")
    held = samples.holders("key2", resource="a.b/set")
    begin = samples.snapshot(samples.host(KEY, STICK, key), samples.WISH._replace(rules=(SET,)), holders=held)
    loans = {DeviceId("key"): (loan(KEY), loan(STICK)), DeviceId("key2"): (loan(key), loan(STICK))}
    found = turn.decide_first(replace(begin, loans=loans))
    assert [each.host_devices for each in found.offers[units.USB]] == [("key2", "stick")]


def test_a_set_is_made_of_what_can_be_given_first() -> None:
    used = STICK._replace(uses=HostUses((HostUse(UseKind.MOUNTED, "sdb", "mounted on /srv"),)))
    found = of(KEY, used, OTHER)
    assert code(found, "a.b/set", "key") is None
    assert code(of(KEY, used), "a.b/set", "key") is ReasonCode.USED_BY_HOST


def test_the_reason_of_an_allocated_device_changes_when_another_is_plugged_in_at_its_port() -> None:
    rule = UsbRule("a.b/one", (UsbSelector(vendors=("1234",)),))
    lent = Loan(KEY.id, KEY.node, KEY.place, name=KEY.name)
    known = samples.snapshot(
        samples.host(),
        samples.WISH._replace(rules=(rule,)),
        holders=samples.holders("key", resource="a.b/one"),
    )
    gone = turn.decide_first(replace(known, loans={DeviceId("key"): (lent,)}))
    other = OTHER._replace(name=KEY.name)
    now = turn.decide_next(gone, replace(gone.snapshot, host=samples.host(other)))
    assert code({**gone.resources}, "a.b/one", "key") is not ReasonCode.RE_ENUMERATED
    assert code({**now.resources}, "a.b/one", "key") is ReasonCode.RE_ENUMERATED
