# SPDX-License-Identifier: Apache-2.0
"""One Snapshot without a daemon: of the present host, and of a saved one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent import config
from nodeagent.agent import oneshot
from nodeagent.agent.changing import ledger
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Allocations
from nodeagent.model.change import Ledger
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.policy import merge
from nodeagent.policy.offer import turn
from nodeagent.sim.host import SimulatedHost
from tests.sim import hosts

ONE = PciAddress(hosts.address(0))
MACHINE = "0123456789abcdef" * 2


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path, 2)


@pytest.fixture
def root(host: SimulatedHost) -> Root:
    return Root(host.directory)


async def test_a_snapshot_leads_to_what_the_daemon_would_decide(host: SimulatedHost, root: Root) -> None:
    host.write_file("/usr/share/hwdata/pci.ids", "10de  NVIDIA Corporation\n\t1000  Made-up Card")
    spec = merge.merge(config.load(config.Sources(host.directory, {}, {})).configuration)
    snapshot = await oneshot.snapshot(root, spec, timeouts=Timeouts())
    (resource,) = turn.decide_first(snapshot).resources.values()
    assert resource.name == "nvidia.com/MADEUP_CARD"
    assert len(resource.devices) == 2
    assert snapshot.spec is spec


async def test_who_holds_what_and_what_is_open_is_not_known(root: Root) -> None:
    snapshot = await oneshot.snapshot(root, Spec(), timeouts=Timeouts())
    assert snapshot.allocations == Allocations()
    assert not snapshot.allocations.complete
    assert snapshot.open == frozenset()


async def test_the_machine_and_what_we_did_to_it_are_in_the_snapshot(host: SimulatedHost, root: Root) -> None:
    host.write_file("/etc/machine-id", f"{MACHINE}\n")
    ledger.SECTION.save(root.prefix, Ledger({ONE: "7", "0000:ff:00.0": "7"}, {"7": "T4-1Q"}))
    snapshot = await oneshot.snapshot(root, Spec(), timeouts=Timeouts())
    assert snapshot.machine_id == MACHINE
    assert snapshot.ledger == Ledger({ONE: "7"}, {"7": "T4-1Q"})  # the other one has gone


async def test_a_saved_host_is_not_mixed_with_the_present_one(host: SimulatedHost, root: Root) -> None:
    ledger.SECTION.save(root.prefix, Ledger({ONE: "7"}, {"7": "T4-1Q"}))
    snapshot = await oneshot.snapshot(root, Spec(), Timeouts(), Host(iommu=True))
    assert snapshot.host == Host(iommu=True)
    assert snapshot.ledger == Ledger()


async def test_hints_are_read_for_one_function_only(host: SimulatedHost, root: Root) -> None:
    before = await oneshot.snapshot(root, Spec(), timeouts=Timeouts())
    assert before.host.functions[ONE].hints is None
    host.write(ONE, "aer_dev_fatal", "TOTAL_ERR_FATAL 2")
    functions = (await oneshot.with_hints(root, before, ONE, timeouts=Timeouts())).host.functions
    hints = functions[ONE].hints
    assert hints is not None
    assert hints.aer_fatal == 2
    assert functions[PciAddress(hosts.address(1))].hints is None


async def test_the_name_of_a_function_that_a_daemon_does_not_offer_is_searched_too(
    host: SimulatedHost, root: Root
) -> None:
    host.write_file("/usr/share/hwdata/pci.ids", "10de  NVIDIA Corporation\n\t1000  Made-up Card")
    of_daemon = Snapshot(
        (await oneshot.snapshot(root, Spec(), timeouts=Timeouts())).host,
        names={"10de": "as the daemon has it"},
    )
    names = (await oneshot.with_hints(root, of_daemon, ONE, timeouts=Timeouts())).names
    assert names == {"10de": "as the daemon has it", "10de:1000": "Made-up Card"}


async def test_an_unknown_function_has_no_hints(root: Root) -> None:
    assert (
        await oneshot.with_hints(root, Snapshot(), PciAddress("0000:ff:00.0"), timeouts=Timeouts())
        == Snapshot()
    )
