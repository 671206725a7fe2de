# SPDX-License-Identifier: Apache-2.0
"""Names stay for a life of the process, and what the life before called otherwise is decided once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import names_record
from nodeagent.agent.names import NameKeeper
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import vgpus
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.sim.host import SimulatedHost
from tests.conftest import Said
from tests.reports import EMPTY

PCI_IDS = "/usr/share/hwdata/pci.ids"
FIRST, SECOND = PciAddress("0000:10:00.0"), PciAddress("0000:11:00.0")
KNOWN = {"10de": "NVIDIA Corporation"}
CONFIG = '<vgpuType id="1147" name="NVIDIA A40-1B">\n'


class Life:
    """One life of a keeper, on a host."""

    def __init__(self, host: SimulatedHost, again: float = 60.0) -> None:
        nobody = Allocations(knowledge=Knowledge.COMPLETE)
        self.snapshots = Snapshots(Snapshot(allocations=nobody))
        self.keeper = NameKeeper(Root(host.directory), self.snapshots, again=again)

    async def sees(self, *functions: PciFunction) -> dict[str, str]:
        """The names after a scan that shows these."""
        host = Host({function.address: function for function in functions})
        names = await self.keeper.names(host, self.snapshots.now.names)
        snapshot = self.snapshots.now
        self.snapshots.publish(Snapshot(host, names=names, allocations=snapshot.allocations))
        return dict(names)


async def until(seen: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not seen():  # noqa: ASYNC110 - lines and files tell nobody
            await anyio.sleep(0.01)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(tmp_path)


def text(host: SimulatedHost, *texts: str) -> None:
    """The host's own pci.ids, with texts of devices fff0, fff1 …"""
    lines = [f"\tfff{number}  {each}" for number, each in enumerate(texts)]
    host.write_file(PCI_IDS, "\n".join(["10de  Somebody", *lines, ""]))


def card(address: PciAddress, number: int = 0) -> PciFunction:
    return PciFunction(
        address, vendor="10de", device=f"fff{number}", pci_class="030200", driver="vfio-pci", vfio=True
    )


def vgpu(number: str, *listed: tuple[str, str]) -> PciFunction:
    return PciFunction(
        FIRST, vendor="10de", device="2235", driver="nvidia", vgpu=True, vgpu_type=number, vgpu_types=listed
    )


async def test_a_name_stays_when_another_device_is_looked_up_in_other_files(host: SimulatedHost) -> None:
    life = Life(host)
    text(host, "One")
    assert await life.sees(card(FIRST)) == {**KNOWN, "10de:fff0": "One"}
    text(host, "Renamed", "Two")
    wanted = {**KNOWN, "10de:fff0": "One", "10de:fff1": "Two"}
    assert await life.sees(card(FIRST), card(SECOND, 1)) == wanted


async def test_a_vendor_that_is_known_is_not_looked_up_again(host: SimulatedHost) -> None:
    life, unbundled = Life(host), "abc1"
    host.write_file(PCI_IDS, f"{unbundled}  Somebody\n")
    one, two = (each._replace(vendor=unbundled) for each in (card(FIRST), card(SECOND, 1)))
    assert await life.sees(one) == {unbundled: "Somebody"}
    host.write_file(PCI_IDS, f"{unbundled}  Somebody Else\n\tfff1  Two\n")
    assert await life.sees(one, two) == {unbundled: "Somebody", f"{unbundled}:fff1": "Two"}


async def test_what_had_no_text_gets_none_in_this_life(host: SimulatedHost) -> None:
    life = Life(host)
    assert await life.sees(card(FIRST)) == KNOWN
    text(host, "One", "Two")
    assert await life.sees(card(FIRST), card(SECOND, 1)) == {**KNOWN, "10de:fff1": "Two"}


async def test_the_name_of_the_life_before_counts_until_holders_are_known(
    host: SimulatedHost, said: Said
) -> None:
    await one_life(host, "One")
    life = Life(host)
    text(host, "Renamed")
    assert (await life.sees(card(FIRST)))["10de:fff0"] == "One"
    life.keeper.settle()
    assert life.snapshots.now.names["10de:fff0"] == "Renamed"
    (line,) = said(log.NAME_CHANGED)
    assert (line["resource"], line["name"]) == ("nvidia.com/ONE", "nvidia.com/RENAMED")
    (rename,) = life.keeper.report(EMPTY).names.changed
    assert (rename.old, rename.new) == ("nvidia.com/ONE", "nvidia.com/RENAMED")


async def one_life(host: SimulatedHost, *texts: str) -> None:
    """A life that ends with its names on disk."""
    text(host, *texts)
    life = Life(host)
    await life.sees(*(card(PciAddress(f"0000:1{number}:00.0"), number) for number in range(len(texts))))
    await life.keeper.one_turn()


async def test_what_is_seen_later_is_decided_when_it_comes(host: SimulatedHost, said: Said) -> None:
    await one_life(host, "One", "Two")
    life = Life(host)
    text(host, "One", "Renamed")
    await life.sees(card(FIRST))
    life.keeper.settle()
    assert (await life.sees(card(FIRST), card(SECOND, 1)))["10de:fff1"] == "Renamed"
    assert [line["resource"] for line in said(log.NAME_CHANGED)] == ["nvidia.com/TWO"]


async def test_what_is_away_stays_on_record(host: SimulatedHost, said: Said) -> None:
    await one_life(host, "One", "Two")
    other = Life(host)
    await other.sees(card(SECOND, 1))
    await other.keeper.one_turn()
    text(host, "Renamed", "Two")
    life = Life(host)
    await life.sees(card(FIRST))
    life.keeper.settle()
    assert [line["resource"] for line in said(log.NAME_CHANGED)] == ["nvidia.com/ONE"]


@pytest.mark.parametrize("content", ["{", "[]", '{"sha256": "", "body": "{}"}'])
async def test_a_damaged_record_is_told_and_set_aside(host: SimulatedHost, said: Said, content: str) -> None:
    host.write_file(names_record.PATH, content)
    text(host, "One")
    assert (await Life(host).sees(card(FIRST)))["10de:fff0"] == "One"
    (line,) = said(log.NAMES_RECORD_BROKEN)
    assert "names.json.broken" in str(line["error"])
    assert os.listdir(host.path("/var/lib/nodeagent")) == ["names.json.broken"]


async def test_a_pipe_in_place_of_the_record_is_not_waited_for(host: SimulatedHost) -> None:
    state = host.path("/var/lib/nodeagent")
    os.makedirs(state)
    os.mkfifo(host.path(names_record.PATH))
    text(host, "One")
    life = Life(host)
    assert (await life.sees(card(FIRST)))["10de:fff0"] == "One"
    await life.keeper.one_turn()
    assert os.listdir(state) == ["names.json"]
    assert (await Life(host).sees(card(FIRST)))["10de:fff0"] == "One"


async def test_a_record_that_cannot_be_written_is_told_once(host: SimulatedHost, said: Said) -> None:
    host.write_file("/var/lib/nodeagent", "a file in the way")
    life = Life(host)
    for functions in ([card(FIRST)], [card(FIRST), card(SECOND, 1)]):
        await life.sees(*functions)
        await life.keeper.one_turn()
    assert len(said(log.NAMES_UNRECORDED)) == 1


async def test_a_record_that_could_not_be_written_is_written_when_it_can_be(
    host: SimulatedHost, said: Said
) -> None:
    host.write_file("/var/lib/nodeagent", "a file in the way")
    life, record = Life(host, again=0.01), Path(host.path(names_record.PATH))
    await life.sees(card(FIRST))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.keeper.run)
        await until(lambda: said(log.NAMES_UNRECORDED))
        host.remove_node("/var/lib/nodeagent")
        await until(record.is_file)
        tasks.cancel_scope.cancel()


async def test_a_type_without_a_name_is_looked_up_again_when_the_files_are_others(
    host: SimulatedHost,
) -> None:
    life = Life(host)
    assert "vgpu:1147" not in await life.sees(vgpu("1147"))
    before = life.snapshots.now.names
    assert await life.keeper.names(life.snapshots.now.host, before) is before
    host.write_file(vgpus.FILES[1], CONFIG)
    assert (await life.sees(vgpu("1147")))["vgpu:1147"] == "NVIDIA A40-1B"
    host.write_file(vgpus.FILES[1], CONFIG.replace("A40", "A41"))
    assert (await life.sees(vgpu("1147")))["vgpu:1147"] == "NVIDIA A40-1B"


async def test_a_type_that_nobody_names_any_more_has_the_name_that_it_had(host: SimulatedHost) -> None:
    life = Life(host)
    await life.sees(vgpu("1147", ("1147", "NVIDIA A40-1B")))
    await life.keeper.one_turn()
    life = Life(host)
    assert (await life.sees(vgpu("1147")))["vgpu:1147"] == "NVIDIA A40-1B"
    life.keeper.settle()
    assert life.snapshots.now.names["vgpu:1147"] == "NVIDIA A40-1B"
    assert life.keeper.report(EMPTY).names.changed == ()
