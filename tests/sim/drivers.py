# SPDX-License-Identifier: Apache-2.0
"""Drivers of a simulated host that can be changed through its files, as those of a kernel are.

``driver_override`` is a file of each function; ``unbind`` of each driver and ``drivers_probe`` are FIFOs, so
that no write is lost among others. As with the kernel, a write that names what is not there or is not bound
does nothing, and ``drivers_probe`` says nothing of a probe that has failed. Unlike there, the effect comes a
moment later, and no write has an errno: one that is refused has no effect (``FAULTS``). Each function has a
driver of its own, on which it was seen first, and which takes it where no override says otherwise.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio

from nodeagent.base.latest import Latest
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.sim import files
from nodeagent.sim.faults import Faults
from nodeagent.sim.host import BUS, DRIVERS, VFIO_DRIVERS, SimulatedHost

PROBE = "/sys/bus/pci/drivers_probe"
FAULTS = {
    "lost": "the write returns, and nothing happens",
    "torn": "somebody else takes the driver away in that moment, and the override as well",
    "undone": "it happens, and then somebody takes the driver away, and the override as well",
}
"""For ``<kind>:<address>``, with a kind of ``KINDS``: what happens to each such write.

A number for ``unbind`` and ``release``: so many seconds later the driver has let go.
"""
KINDS = ("override", "unbind", "probe", "clear", "release", "reprobe")
"""Setting an override, unbinding from a driver of the host, probing with an override; and the way back."""
_UNSET = "(null)"


class Wrote(NamedTuple):
    """One write: its kind, and the function that it was about."""

    kind: str
    address: str


class SimulatedDrivers:
    """Who has which driver. ``writes`` are all that came; ``around`` is called before and after each effect.

    ``around`` gets the number of the write, from 1, and whether it has had its effect.
    """

    def __init__(self, host: SimulatedHost, addresses: Iterable[str], watcher: DirectoryWatcher) -> None:
        self.host = host
        self.writes: list[Wrote] = []
        self.faults = Faults(Latest(0))
        self.around: Callable[[int, bool], None] = lambda number, done: None
        self.leaves: dict[str, int] = {}  # of the count of opens, once the own driver had it
        self.own = {address: self.driver(address) for address in addresses}
        self._overrides: dict[str, str] = {}
        self._watcher = watcher
        for address, driver in self.own.items():
            self.follow(address, driver)

    def follow(self, address: str, own: str | None) -> None:
        """A function is there, or there again, which that driver takes."""
        self.own[address] = own
        self._overrides[address] = ""
        self._watcher.watch(self.host.path(f"{BUS}/{address}"), self._written, contents=True)

    def driver(self, address: str) -> str | None:
        """The driver that has a function now."""
        return files.target(self.host.path(f"{BUS}/{address}/driver"))

    def override(self, address: str) -> str:
        """What ``driver_override`` says now; "" for none."""
        text = files.read(self.host.path(f"{BUS}/{address}/driver_override")).decode().strip()
        return "" if text == _UNSET else text

    def unbind(self, driver: str, address: str) -> None:
        """``unbind`` of a driver was written."""
        if address in self.own:
            self._overridden(address)  # it was written before, and may be heard of later
        if self.driver(address) == driver:
            kind = "unbind" if driver == self.own.get(address) else "release"
            self._happens(Wrote(kind, address), lambda: self._bind(address, None))

    def probe(self, address: str) -> None:
        """``drivers_probe`` was written: who is to have the function takes it, if that driver is there."""
        if address not in self.own:
            return
        self._overridden(address)
        if self.driver(address) is not None:
            return
        override = self.override(address)
        driver = override or (self.own[address] if _probed(self.host, address) else None)
        if driver is not None and driver in self._loaded():
            kind = "probe" if override else "reprobe"
            self._happens(Wrote(kind, address), lambda: self._bind(address, driver))

    def _loaded(self) -> list[str]:
        return os.listdir(self.host.path(DRIVERS))

    def _written(self, change: Change) -> None:
        address = change.directory.rpartition("/")[2]
        if change.name == "driver_override" and os.path.lexists(change.directory):
            self._overridden(address)

    def _overridden(self, address: str) -> None:
        """What was written to ``driver_override``, if anything was."""
        now = self.override(address)
        if now != self._overrides[address]:
            before, self._overrides[address] = self._overrides[address], now
            self._happens(Wrote("override" if now else "clear", address), lambda: None, before)
        if not self._overrides[address]:
            self._show(address, "")  # as the kernel writes nothing

    def _happens(self, wrote: Wrote, effect: Callable[[], None], before: str = "") -> None:
        self.writes.append(wrote)
        fault = self.faults.get(wrote.kind, wrote.address)
        self.around(len(self.writes), False)
        if isinstance(fault, float):
            asyncio.get_running_loop().call_later(fault, effect)
        elif fault in (None, "undone"):
            effect()
        if fault in ("torn", "undone"):
            self._bind(wrote.address, None)
            self._show(wrote.address, "")
        elif fault == "lost" and wrote.kind in ("override", "clear"):
            self._show(wrote.address, before)
        self.around(len(self.writes), True)

    def _bind(self, address: str, driver: str | None) -> None:
        """A driver disables the function as it goes, but for what it leaves of the count; VFIO finds that."""
        counted = driver is not None and driver not in VFIO_DRIVERS
        self.host.bind(address, driver, None if counted else str(self.leaves.get(address, 0)))

    def _show(self, address: str, override: str) -> None:
        self._overrides[address] = override
        path = self.host.attribute(address, "driver_override")
        if files.read(path).decode() != f"{override or _UNSET}\n":
            files.write_unseen(path, f"{override or _UNSET}\n", self.host.path("/.aside-override"))


def _probed(host: SimulatedHost, address: str) -> bool:
    """False for a VF that drivers are kept from, unless an override names one."""
    physical = files.target(host.path(f"{BUS}/{address}/physfn"))
    return physical is None or probes_vfs(host, physical)


def probes_vfs(host: SimulatedHost, physical: str) -> bool:
    """Whether drivers are asked about the VFs of a PF; they are where there is no such switch."""
    path = host.path(f"{BUS}/{physical}/sriov_drivers_autoprobe")
    return not os.path.lexists(path) or files.read(path).strip() != b"0"


@asynccontextmanager
async def simulated(host: SimulatedHost, *addresses: str) -> AsyncIterator[SimulatedDrivers]:
    """The drivers of these functions, which answer to writes until the end of the block."""
    watcher = DirectoryWatcher()
    try:
        drivers = SimulatedDrivers(host, addresses, watcher)
        written = {host.path(PROBE): drivers.probe}
        names = {each for each in drivers.own.values() if each is not None}
        for name in names | set(os.listdir(host.path(DRIVERS))):
            written[host.path(f"{DRIVERS}/{name}/unbind")] = partial(drivers.unbind, name)
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            for path, listener in written.items():
                group.start_soon(_serve, _fifo(path), listener)
            yield drivers
            group.cancel_scope.cancel()
    finally:
        watcher.close()


async def _serve(fd: int, written: Callable[[str], None]) -> None:
    """A FIFO in the place of a file that is written; each line is one write."""
    try:
        while True:
            await anyio.wait_readable(fd)
            for line in os.read(fd, 1 << 16).decode().splitlines():
                written(line.strip())
    finally:
        os.close(fd)


def _fifo(path: str) -> int:
    """The FIFO, made if it is not there, open for reading and for writing, so that it never ends."""
    if not os.path.lexists(path):
        os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)
