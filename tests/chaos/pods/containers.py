# SPDX-License-Identifier: Apache-2.0
"""What the container of a machine has open, as the host shows it: descriptors in /proc, and ``enable``.

A process that ends shows no descriptors any more before the kernel closes what it had: that is the moment in
which only ``enable`` tells. Knows no kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio

from nodeagent.sim import files
from tests.chaos.pods.board import Board
from tests.chaos.pods.machines import Machine

_ENDING = 4  # PF_EXITING in include/linux/sched.h
_FIRST = 7  # descriptor


class Containers:
    """The processes of all machines on one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._host = board.node.host

    def open(self, machine: Machine) -> None:
        """It opens all that its pod was given and that is there."""
        self._show(machine)
        for number, path in enumerate(self._paths(machine), _FIRST):
            self._host.tree.link(f"/proc/{machine.pid}/fd/{number}", path)
        for address in machine.given.addresses - self._board.away:
            self._host.hold(address)
            machine.open.add(address)
        machine.open |= {unit for unit in machine.given.units if unit.startswith("usb:")}
        machine.started = True

    def _paths(self, machine: Machine) -> Iterator[str]:
        """The nodes of what it has."""
        for unit in sorted(machine.given.units):
            if unit.startswith("usb:"):
                yield self._board.sticks.path(unit)
            elif "iommufd" not in self._board.modes:
                yield f"/dev/vfio/{unit}"
        for address in sorted(machine.given.addresses) if "iommufd" in self._board.modes else ():
            there = self._host.path(f"/sys/bus/pci/devices/{address}/vfio-dev")
            for name in os.listdir(there) if os.path.isdir(there) else ():
                yield f"/dev/vfio/devices/{name}"

    def crash(self, machine: Machine) -> None:
        """It has ended, and its pod will start another."""
        self._forget_descriptors(machine)
        self._close(machine)

    async def end(self, machine: Machine, lasts: float) -> None:
        """It ends, and so many seconds after its last descriptor has gone all that it had open is closed."""
        self._forget_descriptors(machine)
        self._show(machine, _ENDING, "D")
        await anyio.sleep(lasts)
        self.vanish(machine)

    def vanish(self, machine: Machine) -> None:
        """Nothing is left of it."""
        self._close(machine)
        files.remove_tree(self._host.path(f"/proc/{machine.pid}"))

    def _close(self, machine: Machine) -> None:
        for address in machine.open & self._board.functions.keys() - self._board.away:
            self._host.release(address)
        machine.open.clear()

    def _forget_descriptors(self, machine: Machine) -> None:
        there = self._host.path(f"/proc/{machine.pid}/fd")
        for name in os.listdir(there) if os.path.isdir(there) else ():
            files.remove(f"{there}/{name}")

    def _show(self, machine: Machine, flags: int = 0, state: str = "S") -> None:
        pid = machine.pid
        files.directory(self._host.path(f"/proc/{pid}/fd"))
        self._host.write_file(f"/proc/{pid}/comm", "qemu-system-x86")
        text = f"{pid} (qemu-system-x86) {state} 1 {pid} {pid} 0 -1 {flags} {'0 ' * 10}1 0 {pid}"
        self._host.write_file(f"/proc/{pid}/stat", text)
