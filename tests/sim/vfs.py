# SPDX-License-Identifier: Apache-2.0
"""VFs made to order in a tree of files: what is written to ``sriov_numvfs`` of a PF becomes so.

As the kernel has it, only 0 → n and n → 0 are done, up to ``sriov_totalvfs``. VFs come with ``driver``,
unless ``sriov_drivers_autoprobe`` is off.
``add_sriov_manage`` puts a program in the place of NVIDIA's tool.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from tests.sim import drivers

_FUNCTIONS = "/sys/bus/pci/devices"


_TOOL = """#!/bin/sh
root=${0%/usr/lib/nvidia/sriov-manage}
pf=$root/sys/bus/pci/devices/$2
echo "$1 $2" >>"$root/asked"
[ -e "$root/refuses" ] && { echo some words; echo "Cannot obtain unbindLock for $2" >&2; exit 1; }
case $1 in -e) cat "$pf/sriov_totalvfs";; -d) echo 0;; esac >"$pf/sriov_numvfs"
"""


def add_sriov_manage(host: SimulatedHost) -> None:
    """A tool that makes all VFs or none; what it was asked is in /asked; it fails where /refuses exists."""
    path = host.path("/usr/lib/nvidia/sriov-manage")
    files.write(path, _TOOL)
    os.chmod(path, 0o755)


def vf_addresses(pf: str, count: int) -> tuple[str, ...]:
    """The addresses of the VFs: functions 4, 5, … of the PF's bus."""
    return tuple(f"{pf[:8]}{number >> 3:02x}.{number & 7}" for number in range(4, 4 + count))


class SimulatedVfs:
    """The VFs of one PF; ``on_change`` is told after their number has changed."""

    def __init__(
        self,
        host: SimulatedHost,
        pf: str,
        watcher: DirectoryWatcher,
        *,
        group: int,
        driver: str | None = None,
        ids: tuple[str, str, str] = ("10de", "20f1", "030200"),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.made: tuple[str, ...] = ()
        self.host = host
        self._pf = pf
        self._group = group
        self._driver = driver
        self._ids = ids
        self._on_change = on_change
        watcher.watch(host.path(f"{_FUNCTIONS}/{pf}"), self._written, contents=True)

    def _written(self, change: Change) -> None:
        path = f"{change.directory}/sriov_numvfs"
        if change.name == "sriov_numvfs" and os.path.isfile(path) and not os.path.islink(path):
            text = files.read(path).decode().strip()
            wanted = int(text) if text.isdecimal() else len(self.made)
            most = int(files.read(f"{change.directory}/sriov_totalvfs"))
            if wanted != len(self.made) and 0 in (wanted, len(self.made)) and wanted <= most:
                self._make(wanted)

    def _make(self, count: int) -> None:
        for address in self.made:
            self.host.unplug(address)
        self.made = vf_addresses(self._pf, count)
        driver = self._driver if drivers.probes_vfs(self.host, self._pf) else None
        vendor, device, pci_class = self._ids
        for number, address in enumerate(self.made):
            self.host.add_function(
                address,
                vendor=vendor,
                device=device,
                pci_class=pci_class,
                driver=driver,
                group=self._group + number,
                port=None,
                physfn=self._pf,
            )
        self._on_change()
