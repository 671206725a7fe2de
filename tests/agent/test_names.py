# SPDX-License-Identifier: Apache-2.0
"""Names stay for a life of the process; a vGPU type without one is looked up again."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent.names import NameKeeper
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import nvidia
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Names
from nodeagent.sim.host import SimulatedHost

PCI_IDS = "/usr/share/hwdata/pci.ids"
FIRST, SECOND = PciAddress("0000:10:00.0"), PciAddress("0000:11:00.0")
KNOWN = {"10de": "NVIDIA Corporation"}
CONFIG = '<vgpuType id="1147" name="NVIDIA A40-1B">\n'


class Life:
    """One life of a keeper, on a host."""

    def __init__(self, host: SimulatedHost) -> None:
        self.host = Host()
        self.names: Names = {}
        self.keeper = NameKeeper(Root(host.directory))

    async def sees(self, *functions: PciFunction) -> dict[str, str]:
        """The names after a scan that shows these."""
        self.host = Host({function.address: function for function in functions})
        self.names = await self.keeper.names(self.host, self.names)
        return dict(self.names)


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


async def test_a_type_without_a_name_is_looked_up_again_when_the_files_are_others(
    host: SimulatedHost,
) -> None:
    life = Life(host)
    assert "vgpu:1147" not in await life.sees(vgpu("1147"))
    assert await life.keeper.names(life.host, life.names) is life.names
    host.write_file(nvidia.FILES[1], CONFIG)
    assert (await life.sees(vgpu("1147")))["vgpu:1147"] == "NVIDIA A40-1B"
    host.write_file(nvidia.FILES[1], CONFIG.replace("A40", "A41"))
    assert (await life.sees(vgpu("1147")))["vgpu:1147"] == "NVIDIA A40-1B"
