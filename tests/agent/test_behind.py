# SPDX-License-Identifier: Apache-2.0
"""What is behind nodes and USB devices is given, or gets another driver, and never both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.agent.behind import Behind
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import Allocations, Holder
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Snapshot

STICKS, OTHERS = ResourceName("example.com/stick"), ResourceName("example.com/other")
ONE, TWO = (STICKS, "46f4:0001-A"), (STICKS, "46f4:0001-B")
XHCI, CARD = "0000:00:14.0", "0000:07:00.0"
NODE = "/dev/bus/usb/001/004"


def named(*possessions: tuple[ResourceName, str], written: bool = True) -> Allocations:
    """The kubelet names a pod with each of them, and its file has the nodes if it is ``written``."""
    holders = {each: Holder("ns", "pod", name) for name, each in possessions}
    nodes = {name: {each: (NODE,) for _, each in possessions} for name, _ in possessions}
    return Allocations(holders, nodes=nodes if written else {})


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots(Snapshot())


async def test_no_driver_is_changed_behind_what_was_given_until_that_is_named(snapshots: Snapshots) -> None:
    behind = Behind(snapshots, Timeouts().foreign_allocate)
    behind.give([ONE], [XHCI])
    behind.give([TWO], [XHCI])
    assert snapshots.now.behind == {XHCI}
    assert not behind.withdraw([CARD, XHCI])
    behind.named(named(ONE, (OTHERS, TWO[1])))
    assert not behind.withdraw([XHCI])
    behind.named(named(ONE, TWO, written=False))
    assert not behind.withdraw([XHCI])
    behind.named(named(ONE, TWO))
    assert snapshots.now.behind == frozenset()
    assert behind.withdraw([XHCI])


async def test_nothing_is_given_behind_which_a_driver_is_being_changed(snapshots: Snapshots) -> None:
    behind = Behind(snapshots, Timeouts().foreign_allocate)
    assert behind.withdraw([XHCI])
    with pytest.raises(Refused, match=XHCI):
        behind.give([ONE], [XHCI])
    assert snapshots.now.behind == frozenset()
    behind.give([TWO], [CARD])
    behind.restore([XHCI])
    behind.give([ONE], [XHCI])
    assert snapshots.now.behind == {XHCI, CARD}


async def test_what_has_no_function_behind_it_leaves_no_mark(snapshots: Snapshots) -> None:
    behind, version = Behind(snapshots, Timeouts().foreign_allocate), snapshots.version
    behind.give([ONE], [])
    behind.named(named(ONE))
    assert snapshots.version == version


def with_card(snapshots: Snapshots, driver: str | None, *nodes: str) -> None:
    """The card has this driver, and the host these nodes."""
    card = PciFunction(PciAddress(CARD), driver=driver, vfio=driver == "vfio-pci")
    here = Host({card.address: card}, dev_nodes={each: DevNode(each) for each in nodes})
    snapshots.publish(replace(snapshots.now, host=here))


async def test_what_was_let_go_of_is_on_record_with_what_was_away_before_until_vfio_has_it(
    snapshots: Snapshots,
) -> None:
    behind = Behind(snapshots, Timeouts().foreign_allocate)
    snapshots.publish(replace(snapshots.now, allocations=named(ONE)))
    with_card(snapshots, "nvidia", NODE)
    behind.withdraw([CARD])
    assert snapshots.now.let_go == {CARD: frozenset()}, "it was there"
    with_card(snapshots, None)
    behind.restore([CARD])
    behind.withdraw([CARD])
    assert snapshots.now.let_go == {CARD: frozenset()}, "it may have gone with the driver"
    with_card(snapshots, "nvidia")
    behind.restore([CARD])
    behind.withdraw([CARD, XHCI])
    assert snapshots.now.let_go == {CARD: {NODE}, XHCI: frozenset()}, "it is none of its"
    with_card(snapshots, "vfio-pci")
    behind.restore([CARD, XHCI])
    assert snapshots.now.let_go == {XHCI: frozenset()}


async def test_what_was_away_before_vfio_had_a_function_does_not_come_with_its_driver(
    snapshots: Snapshots,
) -> None:
    """What is given while VFIO has it may: another plugin does not know it yet."""
    behind = Behind(snapshots, Timeouts().foreign_allocate)
    snapshots.publish(replace(snapshots.now, allocations=named(ONE)))
    with_card(snapshots, "nvidia")
    for given, away in ((named(ONE), {NODE}), (Allocations(), set()), (named(ONE), set())):
        behind.withdraw([CARD])
        with_card(snapshots, "vfio-pci")
        behind.restore([CARD])
        behind.named(given)
        snapshots.publish(replace(snapshots.now, allocations=given))
        behind.withdraw([CARD])
        assert snapshots.now.let_go == {CARD: away}
