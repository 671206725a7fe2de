# SPDX-License-Identifier: Apache-2.0
"""The record of the lowest counts of opens: of this binding of the function, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.base import log, sealed
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import baselines
from nodeagent.kernel.baselines import Baseline, Baselines
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.runner import ScanRunner
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests import exhausted
from tests.conftest import Said
from tests.facts import names

ONE, TWO, THREE = (PciAddress(nodes.address(number)) for number in range(3))


async def scanned(root: Root) -> Host:
    """What a daemon that has just started sees."""
    return await ScanRunner(root, Wakes(), deadline=1.0, timeouts=Timeouts()).scan(None, Host(), (), {})


async def start(root: Root) -> Host:
    """The first Host of a new daemon."""
    return await Baselines(root, 0.5).kept(await scanned(root), Host())


def inode(root: Root) -> int:
    """Of the record: each is a new file."""
    return Path(root.path(baselines.PATH)).stat().st_ino


def idle(host: Host) -> list[int | None]:
    return [host.functions[each].idle for each in (ONE, TWO, THREE)]


async def test_the_next_daemon_knows_what_was_closed(root: Root, host: SimulatedHost) -> None:
    assert idle(await start(root)) == [0, 0, 0]
    host.hold(ONE)
    assert idle(await scanned(root)) == [1, 0, 0]
    assert idle(await start(root)) == [0, 0, 0]


async def test_the_lowest_count_of_all_daemons_stays_on_record(root: Root, host: SimulatedHost) -> None:
    host.write(ONE, "enable", "2")
    await start(root)
    host.write(ONE, "enable", "1")
    await start(root)
    host.write(ONE, "enable", "3")
    assert idle(await start(root)) == [1, 0, 0]


async def test_a_function_that_was_bound_anew_or_replaced_meanwhile_has_no_record(
    root: Root, host: SimulatedHost
) -> None:
    await start(root)
    host.bind(ONE, "nouveau")
    host.bind(ONE, "vfio-pci")
    host.unplug(TWO)
    host.plug(TWO)
    host.bind(TWO, "vfio-pci")
    for address in (ONE, TWO, THREE):
        host.write(address, "enable", "1")
    assert idle(await start(root)) == [1, 1, 0]


async def test_what_a_driver_of_the_host_has_is_on_record_no_more(root: Root, host: SimulatedHost) -> None:
    daemon, first = Baselines(root, 0.5), await scanned(root)
    await daemon.kept(first, Host())
    host.bind(ONE, "nouveau")
    host.unplug(TWO)
    await daemon.kept(await scanned(root), first)
    assert baselines.look(root).keys() == {THREE}


async def test_of_what_cannot_be_read_the_record_stays(root: Root, host: SimulatedHost) -> None:
    await start(root)
    seen = await scanned(root)
    hanging = seen.functions[ONE]._replace(unreadable="it does not answer", idle=None)
    record = baselines.look(root)
    assert baselines.updated(record, Host({ONE: hanging}), [ONE]) == record


async def test_nothing_is_written_while_nothing_is_lower(root: Root, host: SimulatedHost) -> None:
    daemon, first = Baselines(root, 0.5), await scanned(root)
    await daemon.kept(first, Host())
    written = inode(root)
    host.hold(ONE)
    await daemon.kept(await scanned(root), first)
    assert inode(root) == written


@pytest.mark.parametrize(
    "content",
    [
        {"x": 1},
        {"0000:01:00.0": []},
        {"0000:01:00.0": ["", "", "", ""]},
        {"0000:01:00.0": [0, "vfio-pci", None, 1]},
    ],
)
def test_a_record_that_makes_no_sense_is_none(root: Root, content: dict[str, object]) -> None:
    sealed.write(root.path(baselines.PATH), content, "")
    assert baselines.look(root) == {}


def test_what_was_damaged_is_none(root: Root) -> None:
    sealed.write(root.path(baselines.PATH), {ONE: [0, "vfio-pci", 1, 1]}, "")
    path = Path(root.path(baselines.PATH))
    assert baselines.look(root) == {ONE: Baseline(0, "vfio-pci", 1, 1)}
    path.write_text(path.read_text().replace("[0,", "[9,"))
    assert baselines.look(root) == {}


def test_whoever_writes_it_sets_aside_what_is_damaged_and_says_so(root: Root, said: Said) -> None:
    path = Path(root.path(baselines.PATH))
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert baselines.read(root) == {}
    (broken,) = said(log.BASELINES_RECORD_BROKEN)
    names(str(broken["error"]), path, f"{path}.broken")
    assert not path.exists()


async def test_a_process_that_may_open_no_more_files_does_not_take_it_for_an_empty_record(root: Root) -> None:
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        baselines.look(root)
