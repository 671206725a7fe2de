# SPDX-License-Identifier: Apache-2.0
"""Who has what is behind a function: a USB device, a node, a CDI device, by whatever rule or plugin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.allocation import UNNAMED, Allocations, Holder
from nodeagent.model.host import Host, Loan, UsbDevice
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName
from nodeagent.model.nodes import CdiDevice, CdiFile, DevNode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, NodePath, NodeRule, Spec
from nodeagent.policy.change import guards
from tests.facts import contains, names

XHCI, CARD = PciAddress("0000:00:14.0"), PciAddress("0000:07:00.0")
STICK = UsbDevice("46f4:0001-A", "1-1", path=f"{XHCI}-usb-0:1", bus=1, number=4)
KEY = UsbDevice("1234:5678-B", "1-2", path=f"{XHCI}-usb-0:2", bus=1, number=5)
NAME, GPUS = ResourceName("example.com/tty"), ResourceName("vendor.example/gpu")
TTY = "/dev/ttyX"
ONE = Holder("ns", "one", NAME)
HOST = Host(
    usb={each.id: each for each in (STICK, KEY)},
    dev_nodes={TTY: DevNode(TTY, function=CARD), "/dev/kvm": DevNode("/dev/kvm")},
    cdi={"/etc/cdi/gpu.json": CdiFile("/etc/cdi/gpu.json", GPUS, (CdiDevice("0", (TTY,)),))},
)
FREE = Snapshot(HOST)


def held(device_id: str, *, nodes: tuple[str, ...] = (), cdi: tuple[str, ...] = ()) -> Snapshot:
    """A pod has the id, and was given this with it."""
    answers = ({NAME: {device_id: given}} if given else {} for given in (nodes, cdi))
    by_nodes, by_cdi = answers
    return replace(FREE, allocations=Allocations.of({device_id: ONE}, nodes=by_nodes, cdi=by_cdi))


LOANS = {DeviceId(STICK.id): tuple(Loan(each.id, each.node, each.place) for each in (STICK, KEY))}


@pytest.mark.parametrize(
    ("snapshot", "xhci", "card"),
    [
        pytest.param(FREE, None, None, id="nobody"),
        pytest.param(held(STICK.id), ("ns/one", STICK.id), None, id="a USB device"),
        pytest.param(
            replace(held(STICK.id), loans=LOANS),
            ("ns/one", KEY.id),
            None,
            id="a part of a set",
        ),
        pytest.param(replace(FREE, loans=LOANS), (UNNAMED,), None, id="a loan"),
        pytest.param(held("ttyX-0", nodes=("/dev/kvm", TTY)), None, ("ns/one", TTY), id="a node"),
        pytest.param(held("kvm-0", nodes=("/dev/kvm",)), None, None, id="a node of another"),
        pytest.param(
            held("gpu0", cdi=("vendor.example/gpu=0",)),
            None,
            ("ns/one", "vendor.example/gpu=0"),
            id="a CDI device",
        ),
        pytest.param(held("gpu1", cdi=("vendor.example/gpu=1",)), None, None, id="a CDI device of another"),
        pytest.param(
            replace(FREE, recently_allocated=frozenset({CARD})), None, ("pod",), id="given a moment ago"
        ),
    ],
)
def test_a_function_is_somebodys_by_what_is_behind_it(
    snapshot: Snapshot, xhci: tuple[str, ...] | None, card: tuple[str, ...] | None
) -> None:
    for address, facts in ((XHCI, xhci), (CARD, card)):
        found = guards.describe_indirect_user(address, snapshot)
        assert (found is None) is (facts is None)
        names(found, *(() if facts is None else (address, *facts)))


def test_what_a_pod_was_lent_and_is_unplugged_may_be_of_any_controller() -> None:
    unplugged = replace(held(STICK.id), loans=LOANS, host=replace(HOST, usb={KEY.id: KEY}))
    names(guards.describe_indirect_user(XHCI, unplugged), "ns/one", KEY.id, XHCI)
    names(guards.describe_indirect_user(CARD, unplugged), "ns/one", STICK.node)


def test_what_was_not_looked_for_yet_may_be_behind_any_function() -> None:
    known = held("ttyX-0", nodes=(TTY,))
    for address in (CARD, XHCI):
        unknown = guards.describe_indirect_user(address, replace(known, scanned_nodes=frozenset()))
        assert unknown is not None
        assert not contains(unknown, "ns/one")
    names(
        guards.describe_indirect_user(CARD, replace(known, scanned_nodes=frozenset({TTY}))),
        "ns/one",
        TTY,
        CARD,
    )


def test_only_those_nodes_are_looked_for_that_no_rule_names() -> None:
    known = held("ttyX-0", nodes=("/dev/ttyX", "/dev/kvm", "/dev/vfio/7", "/srv/file"))
    assert known.allocated_nodes_beyond_rules == ("/dev/kvm", "/dev/ttyX")
    rules = NodeRule("example.com/a", paths=(NodePath("/dev/tty*"),))
    assert replace(known, spec=Spec(rules=(rules,))).allocated_nodes_beyond_rules == ("/dev/kvm",)
    lent = replace(FREE, loans=LOANS)
    assert lent.allocated_nodes_beyond_rules == ("/dev/bus/usb/001/004", "/dev/bus/usb/001/005")


def test_all_functions_behind_a_node_are_its_holders() -> None:
    """An NVMe disk may have several controllers."""
    known = held("nvme0n1-0", nodes=("/dev/nvme0n1",))
    disk = DevNode("/dev/nvme0n1", function=CARD, others=(XHCI,))
    here = replace(known, host=replace(HOST, dev_nodes={disk.path: disk}))
    for each in (CARD, XHCI):
        names(guards.describe_indirect_user(each, here), "ns/one", "/dev/nvme0n1", each)


def test_what_is_in_no_file_yet_may_be_behind_any_function() -> None:
    """But for what is a device of this host itself."""
    known = Allocations.of({"port-0": ONE}, written=frozenset())
    found = guards.describe_indirect_user(CARD, replace(FREE, allocations=known))
    names(found, "ns/one", "port-0", NAME)
    itself = Allocations.of({STICK.id: ONE}, written=frozenset())
    assert guards.describe_indirect_user(CARD, replace(FREE, allocations=itself)) is None


OTHER = "/dev/ttyY"
GIVEN = held("port-0", nodes=(OTHER,))


@pytest.mark.parametrize("vacant", [False, True], ids=["gone", "there without its device"])
def test_a_node_that_a_pod_has_and_that_is_not_there_may_be_of_any_driver(vacant: bool) -> None:
    there = {**HOST.dev_nodes, **({OTHER: DevNode(OTHER, vacant=True)} if vacant else {})}
    away = replace(GIVEN, host=replace(HOST, dev_nodes=there))
    for each in (CARD, XHCI):
        names(guards.describe_indirect_user(each, away), "ns/one", OTHER)
    back = replace(HOST, dev_nodes={**there, OTHER: DevNode(OTHER)})
    assert guards.describe_indirect_user(CARD, replace(away, host=back)) is None


GPU_0 = "vendor.example/gpu=0"


def files(*nodes: str) -> Host:
    """The node, and a CDI file in which the device has these nodes; no file without any."""
    devices = (CdiDevice("0", nodes),)
    cdi = {"/etc/cdi/gpu.json": CdiFile("/etc/cdi/gpu.json", GPUS, devices)} if nodes else {}
    return replace(HOST, cdi=cdi)


def test_the_nodes_of_a_cdi_device_are_given_with_it() -> None:
    known = held("gpu0", cdi=(GPU_0,))
    assert known.allocated_nodes == (TTY,)
    names(guards.describe_indirect_user(CARD, known), "ns/one", GPU_0, CARD)
    away = replace(known, host=Host(cdi=HOST.cdi))
    names(guards.describe_indirect_user(CARD, away), "ns/one", TTY)


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("vendor.example/gpu", True), ("other.example/gpu", False)],
    ids=["a rule's", "none's"],
)
def test_a_cdi_device_that_no_file_has_may_be_behind_any_function_if_rules_offer_its_kind(
    kind: str, unknown: bool
) -> None:
    """The daemon was started anew since, and the file is torn."""
    rules = Spec(rules=(CdiRule(ResourceName("example.com/cuda"), kind),))
    known = replace(held("gpu0", cdi=(GPU_0,)), spec=rules, host=files())
    found = guards.describe_indirect_user(CARD, known)
    assert contains(found, "ns/one", GPU_0, "CDI") is unknown
    assert unknown or found is None
    named = replace(files(OTHER), dev_nodes={OTHER: DevNode(OTHER)})
    assert guards.describe_indirect_user(CARD, replace(known, host=named)) is None
