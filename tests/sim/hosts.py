# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts of any size."""

from __future__ import annotations

import os

from nodeagent.sim.host import SimulatedHost


def many(directory: str | os.PathLike[str], n: int, resources: int = 1) -> SimulatedHost:
    """``n`` functions on vfio-pci, each alone in its group, with ``resources`` distinct device ids."""
    host = SimulatedHost(directory, numa_nodes=(0, 1))
    for index in range(n):
        host.add_function(
            address(index),
            vendor="10de",
            device=f"{0x1000 + index % resources:04x}",
            pci_class="030200",
            driver="vfio-pci",
            group=index,
            numa=index % 2,
            port=port(index),
        )
    return host


def address(index: int) -> str:
    """The address of function number ``index`` of ``many``."""
    domain, bus, device = _place(index)
    return f"{domain:04x}:{bus + 1:02x}:{device:02x}.0"


def port(index: int) -> str:
    """The root port above function number ``index`` of ``many``: eight buses are below each."""
    domain, bus, _ = _place(index)
    return f"{domain:04x}:00:{bus >> 3:02x}.0"


def _place(index: int) -> tuple[int, int, int]:
    """Domain, bus (from 0) and device number: 255 buses of 32 devices in a domain."""
    domain, rest = divmod(index, 255 * 32)
    return domain, *divmod(rest, 32)
