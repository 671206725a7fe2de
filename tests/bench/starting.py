# SPDX-License-Identifier: Apache-2.0
"""exec to the first Register and to all lists, with the bundled pci.ids and with a large one of the host."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.bench import listing
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure

STARTS = 7
PCI_IDS_SIZE = 1_400_000
NVIDIA, NVIDIA_DEVICES = 0x10DE, range(0x0800, 0x1400)  # the simulated host's device ids are among them
OTHER_DEVICES = range(0x0100, 0x0109)


async def figures(host: SimulatedHost, kubelet: FakeKubelet) -> list[Figure]:
    """Both starts, each with the one and the other database of names."""
    measured = await _starts(host, kubelet, "bundled pci.ids")
    host.write_file("/usr/share/hwdata/pci.ids", large_pci_ids())
    return measured + await _starts(host, kubelet, "pci.ids of 1.4 MB")


async def _starts(host: SimulatedHost, kubelet: FakeKubelet, names: str) -> list[Figure]:
    registers: list[float] = []
    lists: list[float] = []
    cpu: list[float] = []
    for _ in range(STARTS):
        before = len(kubelet.statistics.registrations)
        daemon = Daemon(host.path("/"))
        lists.append(await listing.all_listed(kubelet, daemon.started) * 1e3)
        cpu.append(daemon.runtime())
        registers.append((kubelet.statistics.registrations[before].when - daemon.started) * 1e3)
        await threads.call(daemon.stop)
        await listing.all_gone(kubelet)
    all_lists = f"exec to all {listing.RESOURCES} lists, {names}"
    return [
        Figure(f"exec to first Register, {names}", statistics.median(registers), "ms", "<= 250"),
        Figure(f"exec to first Register, {names}, best of {STARTS}", min(registers), "ms"),
        Figure(all_lists, statistics.median(lists), "ms", "<= 450"),
        Figure(f"{all_lists}, best of {STARTS}", min(lists), "ms"),
        Figure(f"{all_lists}, CPU of the daemon, median", statistics.median(cpu), "ms"),
    ]


def large_pci_ids() -> str:
    """A database of the size that distributions ship: some 40,000 lines, NVIDIA among 2,000 vendors."""
    lines = ["#", "#\tList of PCI ID's", "#"]
    size = 0
    for line in _lines():
        lines.append(line)
        size += len(line) + 1
        if size >= PCI_IDS_SIZE:
            break
    return "\n".join([*lines, ""])


def _lines() -> Iterator[str]:
    """Vendors in the order of their numbers, each with its devices, some of these with a subsystem."""
    for vendor in range(NVIDIA % 0x11, 0xFFFF, 0x11):
        yield f"{vendor:04x}  Example Semiconductor Company {vendor}, Ltd."
        for device in NVIDIA_DEVICES if vendor == NVIDIA else OTHER_DEVICES:
            yield f"\t{device:04x}  EX{device} [Accelerator {device} PCIe {device % 96}GB]"
            if device % 5 == 0:
                yield f"\t\t{vendor:04x} {device:04x}  Example board {device}"
