# SPDX-License-Identifier: Apache-2.0
"""Device nodes of a simulated host with numbers, and what the kernel says stands behind them.

Only root can make them; they lead to whatever driver this machine has for the number, so nobody opens them.
"""

from __future__ import annotations

import os
import stat

from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost


def add(host: SimulatedHost, path: str, number: tuple[int, int], behind: str | None = None) -> None:
    """A character device ``path``; ``behind``: the device in sysfs, whose directory is made if need be.

    The node comes last, as ``device_add`` does it (drivers/base/core.c): who sees it finds all of it.
    """
    shown = f"/sys/dev/char/{number[0]}:{number[1]}"
    if behind is not None and not os.path.lexists(host.path(f"{shown}/device")):
        files.directory(host.path(shown))
        files.directory(host.path(behind))
        host.tree.link(f"{shown}/device", behind)
    files.directory(host.path(path.rpartition("/")[0]))
    os.mknod(host.path(path), stat.S_IFCHR | 0o600, os.makedev(*number))


def named(host: SimulatedHost, name: str, kind: str, behind: str) -> None:
    """What the kernel calls ``name`` in /dev, of a class such as ``tty``: shown by its own directory."""
    host.write_file(f"{behind}/uevent", f"DEVNAME={name}\n")
    host.tree.link(f"/sys/class/{kind}/{name.rpartition('/')[2]}", behind)


def real_directory(host: SimulatedHost, address: str) -> str:
    """Where a PCI function stands in sysfs."""
    return host.tree.real(f"/sys/bus/pci/devices/{address}")


def link(host: SimulatedHost, path: str, to: str) -> None:
    """A link as udev makes it."""
    files.directory(host.path(path.rpartition("/")[0]))
    host.tree.link(path, to)
