# SPDX-License-Identifier: Apache-2.0
"""Who has what is behind a function: a USB device, a node, a CDI device, by whatever rule or plugin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.allocation import UNNAMED, Allocations, Holder
from nodeagent.model.cdi import CdiDevice, CdiFile
from nodeagent.model.desired import CdiRule, Desired, NodePath, NodeRule
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Had, Snapshot
from nodeagent.model.usb import Loan, UsbDevice
from nodeagent.policy import containers
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
    return replace(FREE, allocations=Allocations({device_id: ONE}, nodes=by_nodes, cdi=by_cdi))


LOANS = {DeviceId(STICK.id): tuple(Loan(each.id, each.node, each.place) for each in (STICK, KEY))}


@pytest.mark.parametrize(
    ("snapshot", "xhci", "card"),
    [
        pytest.param(FREE, None, None, id="nobody"),
        pytest.param(held(STICK.id), ("ns/one", STICK.id), None, id="a USB device"),
        pytest.param(
            replace(held(STICK.id), loans=LOANS, host=replace(HOST, usb={KEY.id: KEY})),
            ("ns/one", KEY.id),
            None,
            id="a part of a set",
        ),
        pytest.param(replace(FREE, loans=LOANS), (UNNAMED,), None, id="a loan"),
        pytest.param(held("ttyX-0", nodes=("/dev/kvm", TTY)), None, ("ns/one", TTY), id="a node"),
        pytest.param(held("ttyY-0", nodes=("/dev/kvm", "/dev/ttyY")), None, None, id="a node of another"),
        pytest.param(
            held("gpu0", cdi=("vendor.example/gpu=0",)),
            None,
            ("ns/one", "vendor.example/gpu=0"),
            id="a CDI device",
        ),
        pytest.param(held("gpu1", cdi=("vendor.example/gpu=1",)), None, None, id="a CDI device of another"),
        pytest.param(replace(FREE, behind=frozenset({CARD})), None, ("pod",), id="given a moment ago"),
    ],
)
def test_a_function_is_somebodys_by_what_is_behind_it(
    snapshot: Snapshot, xhci: tuple[str, ...] | None, card: tuple[str, ...] | None
) -> None:
    for address, facts in ((XHCI, xhci), (CARD, card)):
        found = containers.part_of(address, snapshot)
        assert (found is None) is (facts is None)
        names(found, *(() if facts is None else (address, *facts)))


def test_what_was_not_looked_for_yet_may_be_behind_any_function() -> None:
    known = held("ttyX-0", nodes=(TTY,))
    for address in (CARD, XHCI):
        unknown = containers.part_of(address, replace(known, looked_for=frozenset()))
        assert unknown is not None
        assert not contains(unknown, "ns/one")
    names(containers.part_of(CARD, replace(known, looked_for=frozenset({TTY}))), "ns/one", TTY, CARD)


def test_only_those_nodes_are_looked_for_that_no_rule_names() -> None:
    known = held("ttyX-0", nodes=("/dev/ttyX", "/dev/kvm", "/dev/vfio/7", "/srv/file"))
    assert known.given_nodes == ("/dev/kvm", "/dev/ttyX")
    rules = NodeRule("example.com/a", paths=(NodePath("/dev/tty*"),))
    assert replace(known, desired=Desired(rules=(rules,))).given_nodes == ("/dev/kvm",)
    lent = replace(FREE, loans=LOANS)
    assert lent.given_nodes == ("/dev/bus/usb/001/004", "/dev/bus/usb/001/005")


def test_all_functions_behind_a_node_are_its_holders() -> None:
    """An NVMe disk may have several controllers."""
    known = held("nvme0n1-0", nodes=("/dev/nvme0n1",))
    disk = DevNode("/dev/nvme0n1", function=CARD, others=(XHCI,))
    here = replace(known, host=replace(HOST, dev_nodes={disk.path: disk}))
    for each in (CARD, XHCI):
        names(containers.part_of(each, here), "ns/one", "/dev/nvme0n1", each)


def test_what_is_in_no_file_yet_may_be_behind_any_function() -> None:
    """But for what is a device of this host itself."""
    known = Allocations({"port-0": ONE}, written=frozenset())
    found = containers.part_of(CARD, replace(FREE, allocations=known))
    names(found, "ns/one", "port-0", NAME)
    itself = Allocations({STICK.id: ONE}, written=frozenset())
    assert containers.part_of(CARD, replace(FREE, allocations=itself)) is None


OTHER = "/dev/ttyY"
GIVEN = held("port-0", nodes=(OTHER,))


@pytest.mark.parametrize(
    ("seen", "waits"),
    [({CARD}, True), ({XHCI, CARD}, True), ({XHCI}, False), (set(), False)],
    ids=["it", "it and another one", "another one", "none"],
)
def test_what_a_given_node_was_seen_behind_stays_its_holders_while_that_is_away(
    seen: set[PciAddress], waits: bool
) -> None:
    known = replace(GIVEN, seen_behind={OTHER: frozenset(seen)})
    for snapshot in (known, replace(known, let_go={CARD: frozenset()})):
        text = containers.part_of(CARD, snapshot)
        assert contains(text, "ns/one", "/dev/ttyY", CARD) is waits
        assert waits or text is None


def test_nothing_is_behind_what_a_vfio_driver_has() -> None:
    known = replace(GIVEN, seen_behind={OTHER: frozenset({CARD})})
    bound = PciFunction(CARD, driver="vfio-pci", vfio=True)
    assert containers.part_of(CARD, replace(known, host=replace(HOST, functions={CARD: bound}))) is None


@pytest.mark.parametrize("vacant", [False, True], ids=["gone", "there without its device"])
def test_a_given_node_that_nothing_was_seen_behind_may_have_gone_with_what_was_let_go_of(
    vacant: bool,
) -> None:
    there = {**HOST.dev_nodes, **({OTHER: DevNode(OTHER, vacant=True)} if vacant else {})}
    given = replace(GIVEN, host=replace(HOST, dev_nodes=there))
    assert containers.part_of(CARD, given) is None, "it need not have been let go of"
    let_go = replace(given, let_go={CARD: frozenset()})
    names(containers.part_of(CARD, let_go), "/dev/ttyY", CARD)
    before = replace(given, let_go={CARD: frozenset({OTHER})})
    assert containers.part_of(CARD, before) is None, "it was so before as well"
    back = replace(HOST, dev_nodes={**there, OTHER: DevNode(OTHER)})
    assert containers.part_of(CARD, replace(let_go, host=back)) is None


def host_with(*functions: PciAddress | None, path: str = TTY) -> Host:
    """A host with that node behind these; vacant, if that is None."""
    if functions == (None,):
        return Host(dev_nodes={path: DevNode(path, vacant=True)})
    first, *others = (*(each for each in functions if each is not None), None)
    return Host(dev_nodes={path: DevNode(path, function=first, others=tuple(filter(None, others)))})


def guess(*functions: PciAddress) -> Host:
    """A host with that node, which may be of each of these."""
    host = host_with(*functions)
    return replace(host, dev_nodes={TTY: host.dev_nodes[TTY]._replace(guessed=True)})


@pytest.mark.parametrize(
    ("hosts", "seen"),
    [
        pytest.param([host_with(CARD), Host()], {CARD}, id="it is away"),
        pytest.param([host_with(CARD), Host(), host_with(CARD)], {CARD}, id="it is back"),
        pytest.param([host_with(CARD), host_with(None)], {CARD}, id="its device is away"),
        pytest.param([host_with(CARD), host_with()], {CARD}, id="nothing is behind it any more"),
        pytest.param([host_with(CARD, XHCI), host_with(XHCI)], {CARD, XHCI}, id="a part is away"),
        pytest.param([host_with(XHCI), host_with(CARD, XHCI)], {CARD, XHCI}, id="another part comes"),
        pytest.param([host_with(CARD), Host(), host_with(XHCI)], {XHCI}, id="it is something else by now"),
        pytest.param([host_with(), Host()], set(), id="nothing of PCI"),
        pytest.param([Host(), host_with(None)], None, id="never seen"),
        pytest.param([Host(), host_with(XHCI)], {XHCI}, id="it comes late"),
        pytest.param([host_with(CARD), guess(XHCI), host_with(CARD)], {CARD}, id="a guess beside it"),
        pytest.param([guess(CARD, XHCI), host_with(XHCI)], {XHCI}, id="a guess before"),
        pytest.param([guess(CARD, XHCI)], None, id="a guess alone"),
    ],
)
def test_what_was_behind_a_given_node_is_known_for_as_long_as_somebody_has_it(
    hosts: list[Host], seen: set[PciAddress] | None
) -> None:
    now = replace(held("ttyX-0", nodes=(TTY,)), host=hosts[0])
    for host in hosts:
        now = replace(containers.remembering(now, host, {}), host=host)
    assert now.seen_behind == ({} if seen is None else {TTY: frozenset(seen)})
    assert containers.remembering(now, hosts[-1], {}) is now
    assert containers.remembering(replace(now, allocations=Allocations()), hosts[-1], {}).seen_behind == {}


def test_what_the_kernel_has_by_the_name_of_a_node_is_behind_it_where_the_node_is_not_seen() -> None:
    hidden = {OTHER: DevNode(OTHER, function=CARD)}
    assert containers.remembering(GIVEN, HOST, hidden).seen_behind == {OTHER: frozenset({CARD})}
    assert GIVEN.unplaced == (OTHER,)
    assert replace(GIVEN, seen_behind={OTHER: frozenset()}).unplaced == ()


GPU_0 = "vendor.example/gpu=0"


def files(*nodes: str) -> Host:
    """The node, and a CDI file in which the device has these nodes; no file without any."""
    devices = (CdiDevice("0", nodes),)
    cdi = {"/etc/cdi/gpu.json": CdiFile("/etc/cdi/gpu.json", GPUS, devices)} if nodes else {}
    return replace(HOST, cdi=cdi)


def test_the_nodes_of_a_cdi_device_are_given_with_it() -> None:
    known = held("gpu0", cdi=(GPU_0,))
    assert known.given_paths == (TTY,)
    away = replace(containers.remembering(known, Host(), {}), host=Host(cdi=HOST.cdi))
    names(containers.part_of(CARD, away), "ns/one", GPU_0, CARD)


@pytest.mark.parametrize("nodes", [(), ("/dev/ttyY",)], ids=["the file is gone", "it names another node"])
def test_a_cdi_device_stands_for_what_it_stood_for_while_a_pod_has_it(nodes: tuple[str, ...]) -> None:
    known, now = held("gpu0", cdi=(GPU_0,)), files(*nodes)
    for _ in range(2):
        known = replace(containers.remembering(known, now, {}), host=now)
        assert known.stood_for == {Had(GPU_0, ONE): (TTY, *nodes)}
        names(containers.part_of(CARD, known), "ns/one", GPU_0, CARD)
    free = replace(known, allocations=Allocations())
    assert containers.remembering(free, now, {}).stood_for == {}


def test_what_a_cdi_device_stood_for_is_charged_to_those_alone_who_had_it_then() -> None:
    """Another plugin gives one name to several pods, and the file is written anew between two."""
    known = held("gpu0", cdi=(GPU_0,))
    now = files("/dev/ttyY")
    known = replace(containers.remembering(known, now, {}), host=now)
    two = Holder("ns", "two", NAME)
    later = Allocations({"gpu1": two}, cdi={NAME: {"gpu1": (GPU_0,)}})
    known = containers.remembering(replace(known, allocations=later), now, {})
    assert known.stood_for == {Had(GPU_0, two): ("/dev/ttyY",)}


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("vendor.example/gpu", True), ("other.example/gpu", False)],
    ids=["a rule's", "none's"],
)
def test_a_cdi_device_that_no_file_has_may_be_behind_any_function_if_rules_offer_its_kind(
    kind: str, unknown: bool
) -> None:
    """The daemon was started anew since, and the file is torn."""
    rules = Desired(rules=(CdiRule(ResourceName("example.com/cuda"), kind),))
    known = replace(held("gpu0", cdi=(GPU_0,)), desired=rules, host=files())
    found = containers.part_of(CARD, known)
    assert contains(found, "ns/one", GPU_0, "CDI") is unknown
    assert unknown or found is None
    assert (containers.part_of(CARD, replace(known, host=files(OTHER))) is None) is True
