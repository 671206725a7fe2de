# SPDX-License-Identifier: Apache-2.0
"""Captured hosts from end to end: scan, decide, explain; against the states in the README of this folder.

Widened discovery takes all classes that the hosts have, so that every function on VFIO is offered.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.cli import explain as shown
from nodeagent.cli import scan as scan_shown
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.host import Host, Kind, Recovery, Sight
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector, Spec
from nodeagent.policy import groups
from nodeagent.policy.explain.devices import explain, rows
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.looking import Looks
from tests.machines.capture import materialise

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))
WIDE = Spec(Discovery(classes=("01", "02", "03", "05", "12", "ff", "00")))
EVERYTHING = Spec(rules=(PciRule("example.com/all", (PciSelector(),)),))


@cache
def captured(name: str) -> Host:
    with TemporaryDirectory() as directory:
        materialise(HOSTS / f"{name}.json", directory)
        return Looks(Root(directory)).full()


KNOWN = Allocations(knowledge=Knowledge.COMPLETE)


def decided(name: str, wish: Spec = WIDE, held: tuple[str, ...] = ()) -> Decision:
    holders = {each: Holder("ns", "vm", ResourceName("example.com/all")) for each in held}
    return turn.decide_first(Snapshot(captured(name), wish, {}, Allocations.of(holders, Knowledge.COMPLETE)))


def devices(decision: Decision) -> dict[str, ReasonCode | None]:
    """Address without domain → code of the reason, of all that is offered."""
    return {
        device.id.removeprefix("0000:"): device.reason.code if device.reason else None
        for resource in decision.resources.values()
        for device in resource.devices
    }


@pytest.mark.parametrize("name", ["6.1-vfio", "6.12-vfio", "6.12-iommufd-vfio", "7.2-vfio"])
def test_of_five_devices_on_vfio_only_the_one_beside_a_host_driver_is_unhealthy(name: str) -> None:
    decision = decided(name)
    assert devices(decision) == {
        "01:00.0": None,
        "02:00.0": None,
        "03:00.0": ReasonCode.GROUP_NOT_VIABLE,
        "05:01.0": None,
        "06:00.1": None,
    }
    told = explain(PciAddress("0000:03:00.0"), decision)
    assert told is not None
    names(told.verdict, "0000:03:00.1", "e1000e")
    assert [(member.address, member.role) for member in told.members] == [
        ("0000:03:00.0", "vfio"),
        ("0000:03:00.1", "blocks"),
    ]


def test_groups_with_a_driverless_member_or_a_root_port_are_viable() -> None:
    assert devices(decided("6.12-groups")) == {"06:00.0": None, "07:00.0": None, "07:00.1": None}
    told = explain(PciAddress("0000:06:00.0"), decided("6.12-groups"))
    assert told is not None
    assert {member.role for member in told.members} == {"vfio", "bridge"}


@pytest.mark.parametrize("name", ["6.12-held", "6.12-iommufd-held"])
def test_what_a_process_holds_is_open_outside_and_so_is_its_group(name: str) -> None:
    """Where it can be seen: a count of opens alone may be what a former driver has left."""
    doubted = devices(decided(name, EVERYTHING))
    assert doubted["01:00.0"] is doubted["03:00.0"] is None
    decision = decided(name, EVERYTHING)
    host = decision.snapshot.host
    seen = {
        address: each._replace(sight=Sight("process 7 (qemu)")) if each.vfio and each.enable else each
        for address, each in host.functions.items()
    }
    snapshot = replace(decision.snapshot, host=replace(host, functions=seen))
    every = devices(turn.decide_first(snapshot))
    assert every["01:00.0"] is every["03:00.0"] is ReasonCode.HELD_OUTSIDE
    assert every["03:00.1"] is ReasonCode.DRIVER_CHANGED


@pytest.mark.parametrize("name", ["6.12-held", "6.12-iommufd-held"])
def test_what_a_pod_holds_stays_healthy(name: str) -> None:
    decision = decided(name, EVERYTHING, held=("0000:01:00.0", "0000:03:00.0"))
    assert devices(decision)["01:00.0"] is devices(decision)["03:00.0"] is None


def test_the_ready_sibling_of_a_device_that_a_pod_holds_waits_for_its_release() -> None:
    decision = decided("6.12-groups", EVERYTHING, held=("0000:07:00.0",))
    assert (devices(decision)["07:00.0"], devices(decision)["07:00.1"]) == (None, ReasonCode.GROUP_HELD)
    assert devices(decision)["06:00.0"] is None


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-blocked") and "mdev" not in name])
def test_a_removal_that_waits_for_its_holder_is_going_away(name: str) -> None:
    leaving = {"01:00.0"} if "unplug" in name else {"01:00.0", "03:00.0"}
    assert devices(decided(name)) == dict.fromkeys(leaving, ReasonCode.GOING_AWAY)


@pytest.mark.parametrize("wish", [WIDE, EVERYTHING])
@pytest.mark.parametrize("name", ["6.12-no-iommu", "6.12-iommufd-no-iommu-unsafe"])
def test_without_an_iommu_nothing_is_healthy(name: str, wish: Spec) -> None:
    found = devices(decided(name, wish))
    assert set(found.values()) <= {ReasonCode.NO_GROUP}
    assert ("01:00.0" in found) is (wish is EVERYTHING or "unsafe" in name)


def test_a_failed_recovery_is_seen_only_through_its_event() -> None:
    assert devices(decided("6.12-aer-failed")) == {"01:00.0": None}
    host, address = captured("6.12-aer-failed"), PciAddress("0000:01:00.0")
    failed = host.functions[address]._replace(recovery=Recovery.FAILED)
    snapshot = Snapshot(replace(host, functions={**host.functions, address: failed}), WIDE, {}, KNOWN)
    assert devices(turn.decide_first(snapshot)) == {"01:00.0": ReasonCode.RECOVERY_FAILED}


@pytest.mark.parametrize("name", [name for name in NAMES if "host" in name or name.endswith("-parents")])
def test_where_nothing_is_on_vfio_nothing_is_discovered(name: str) -> None:
    assert devices(decided(name)) == {}


@pytest.mark.parametrize(("name", "count"), [("6.1-mdev", 5), ("6.12-mdev", 5), ("6.12-iommufd-mdev", 4)])
def test_every_mdev_is_offered_under_the_name_of_its_type(name: str, count: int) -> None:
    decision = decided(name)
    assert list(devices(decision).values()) == [None] * count
    assert {each.kind for each in decision.resources.values()} == {Kind.MDEV}
    serial = decision.resources[ResourceName("mdev.nodeagent/Single_port_serial")]
    assert [device.id[:8] for device in serial.devices] == ["00000001", "00000002"]


def test_an_instance_without_a_driver_is_dead() -> None:
    found = devices(decided("6.12-mdev-unbound"))
    assert {key[:8]: code for key, code in found.items() if code is not None} == {
        "00000002": ReasonCode.DRIVER_CHANGED
    }
    assert len(found) == 4


def scanned(decision: turn.Decision, *, wide: bool = False) -> str:
    return scan_shown.text(decision.snapshot.host, tuple(rows(decision)), wide=wide)


@pytest.mark.parametrize("held", [False, True])
def test_an_instance_whose_removal_is_blocked_is_listed_for_who_holds_it_only(held: bool) -> None:
    ghost, types = "00000003-0000-4000-8000-000000000003", ("mtty-1", "mtty-2", "mdpy-vga", "mbochs-small")
    rule = MdevRule("example.com/all", (MdevSelector(types),))
    decision = decided("6.12-mdev-remove-blocked", Spec(rules=(rule,)), held=(ghost,) if held else ())
    found = devices(decision)
    assert len(found) == 13 + held
    assert {key: code for key, code in found.items() if code is not None} == (
        {ghost: ReasonCode.GOING_AWAY} if held else {}
    )
    assert f"{ghost}  19  " in scanned(decision, wide=True)


def test_an_mdev_has_a_node_of_its_own_where_the_kernel_makes_one() -> None:
    rule = MdevRule("a.b/c", (MdevSelector(types=("mtty-1",)),), iommufd=Iommufd.ONLY)
    told = explain("00000001-0000-4000-8000-000000000001", decided("6.12-iommufd-mdev", Spec(rules=(rule,))))
    assert told is not None
    assert told.nodes == ("/dev/vfio/vfio", "/dev/vfio/devices/vfio0", "/dev/iommu")
    assert told.env == "MDEV_PCI_RESOURCE_A_B_C=00000001-0000-4000-8000-000000000001"


def test_the_busy_host_has_no_device_that_may_be_given() -> None:
    assert None not in devices(decided("6.12-busy-host", EVERYTHING)).values()


@pytest.mark.parametrize("name", NAMES)
def test_every_function_and_mdev_of_every_captured_host_has_a_story(name: str) -> None:
    for wish in (WIDE, EVERYTHING):
        decision = decided(name, wish)
        for address, function in decision.snapshot.host.functions.items():
            told = explain(address, decision)
            assert told is not None
            assert told.rules
            blockers = groups.find_blockers(decision.snapshot.host.members(function.group) or (function,))
            assert told.viable is (blockers == ())
            assert (told.resource is None) is (
                all(says != "matches it" for _, says in told.rules) and told.env is None
            )
            assert shown.text(told).startswith(f"{address}  {told.verdict}")
        for uuid, mdev in decision.snapshot.host.mdevs.items():
            told = explain(uuid, decision)
            assert told is not None
            assert shown.text(told).startswith(f"{uuid}  {told.verdict}")
            assert told.type == mdev.type_id
        table = scanned(decision)
        assert all(address in table for address in decision.snapshot.host.functions)
