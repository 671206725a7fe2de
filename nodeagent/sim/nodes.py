# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts of the documentation: one with whole GPUs, one with cards that are split into vGPUs."""

from __future__ import annotations

import os
from typing import NamedTuple

from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, Type, add_card


class _Part(NamedTuple):
    """One PCI function of a multi-function card."""

    vendor: str
    device: str
    pci_class: str


_RTX_2060 = (
    _Part("10de", "1f08", "030000"),
    _Part("10de", "10f9", "040300"),
    _Part("10de", "1ada", "0c0330"),
    _Part("10de", "1adb", "0c8000"),
)
_T4_TYPES = (
    Type("nvidia-222", 16, "GRID T4-1B"),
    Type("nvidia-223", 8, "GRID T4-2B"),
    Type("nvidia-228", 2, "GRID T4-8A"),
    Type("nvidia-234", 1, "GRID T4-16Q"),
)
_CARDS = (("3b", 0, 10), ("5e", 0, 11), ("86", 1, 12), ("af", 1, 13))


def demo_node(directory: str | os.PathLike[str], *, mknod: bool = False) -> SimulatedHost:
    """Create the node that the documentation describes.

    It has four GeForce RTX 2060 Rev. A on vfio-pci, each with its audio, USB and UCSI functions in one
    group; an NVMe disk on its host driver; a Tesla T4 whose group is not viable because of a network card;
    and /dev/kvm.
    """
    host = SimulatedHost(directory, mknod=mknod, numa_nodes=(0, 1))
    for bus, numa, group in _CARDS:
        for number, part in enumerate(_RTX_2060):
            host.add_function(
                f"0000:{bus}:00.{number}",
                **part._asdict(),
                driver="vfio-pci",
                group=group,
                numa=numa,
                port=f"0000:{_root_bus(bus)}:00.0",
                subsystem=("10de", "12a2"),
                revision="a1",
            )
    _other_cards(host)
    host.node("/dev/kvm")
    return host


def _root_bus(bus: str) -> str:
    return f"{int(bus, 16) - 1:02x}"


def _other_cards(host: SimulatedHost) -> None:
    host.add_function(
        "0000:02:00.0",
        vendor="144d",
        device="a808",
        pci_class="010802",
        driver="nvme",
        group=1,
        numa=0,
        port="0000:00:1d.0",
    )
    tesla, network = ("1eb8", "10de", "030200", "vfio-pci"), ("10d3", "8086", "020000", "e1000e")
    for number, (device, vendor, pci_class, driver) in enumerate((tesla, network)):
        host.add_function(
            f"0000:d8:0{number}.0",
            vendor=vendor,
            device=device,
            pci_class=pci_class,
            driver=driver,
            group=14,
            numa=1,
            port="0000:d7:00.0",
        )


def vgpu_cards() -> list[Card]:
    """Return three Tesla T4 with types of NVIDIA's vGPU documentation and their maximum per card."""
    return [Card(f"0000:{bus}:00.0", _T4_TYPES) for bus in ("3b", "5e", "86")]


def vgpu_node(directory: str | os.PathLike[str]) -> SimulatedHost:
    """Create a node with the three Tesla T4 on the host driver; ``mdev.SimulatedCards`` splits them."""
    host = SimulatedHost(directory, numa_nodes=(0, 1))
    for number, card in enumerate(vgpu_cards()):
        add_card(host, card, 10 + number, numa=number // 2)
    host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    return host
