# SPDX-License-Identifier: Apache-2.0
"""The watcher of a chaos run: sees who has what all the time, and plays the virtual machines.

While a container with a function runs, the function is open on the simulated host: the kernel counts it, and
a process has the node of its group open. Afterwards it is closed. That is all the host ever shows of a
virtual machine. What was unplugged meanwhile is lost to its container: the function that comes back is
another device.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards
from tests.e2e.boards import Life, Sight

PAUSE = 0.05  # seconds between two looks
_NOTES = 5  # that are told with a shared board
DRIVER, OTHER = "vfio-pci", "nvidia"


class Devices:
    """The functions of the simulated host: opened and closed, taken away and given back, from two threads."""

    def __init__(self, host: SimulatedHost, addresses: Iterable[str]) -> None:
        self.addresses = frozenset(addresses)
        self.open: frozenset[str] = frozenset()  # as the host shows it
        self.unplugged: frozenset[str] = frozenset()
        self.rebound: frozenset[str] = frozenset()
        self._host = host
        self._lock = threading.Lock()

    def show(self, opened: frozenset[str]) -> None:
        """Show these as open, and no others."""
        with self._lock:
            opened &= self.addresses - self.unplugged - self.rebound
            for address in opened - self.open:
                self._host.hold(address)
                self._host.tree.link(_open_file(address), self._node(address))
            for address in self.open - opened - self.unplugged - self.rebound:
                self._host.tree.remove(_open_file(address))
                self._host.release(address)
            self.open = opened

    def unplug(self, address: str) -> None:
        """It leaves the machine."""
        with self._lock:
            self._host.tree.remove(_open_file(address))
            self._host.unplug(address)
            self.unplugged |= {address}
            self.open -= {address}

    def rebind(self, address: str) -> None:
        """A driver of the host takes it."""
        with self._lock:
            self._host.tree.remove(_open_file(address))
            self._host.bind(address, OTHER)
            self.rebound |= {address}
            self.open -= {address}

    def give_back(self, address: str) -> None:
        """It is there again, on its VFIO driver, and closed."""
        with self._lock:
            if address in self.unplugged:
                self._host.plug(address)
            self._host.bind(address, DRIVER)
            self.unplugged -= {address}
            self.rebound -= {address}

    def _node(self, address: str) -> str:
        """The device node of its IOMMU group."""
        group = os.readlink(self._host.path(f"/sys/bus/pci/devices/{address}/iommu_group"))
        return f"/dev/vfio/{os.path.basename(group)}"


def _open_file(address: str) -> str:
    """A file that QEMU has open: a daemon that was started a moment ago finds it there, as on a real host."""
    return f"/proc/4711/fd/{address}"


class Watch:
    """Looks for ever. ``shared`` has each board that ever had two owners, once for the same pods.

    ``note`` takes down what is done meanwhile: the end of it is told with each shared board.
    """

    def __init__(self, kubelet_directory: Path, devices: Devices) -> None:
        self.sight = Sight(frozenset(), None)
        self.looks = 0
        self.blind = 0  # looks without an answer of the kubelet
        self.shared: dict[str, str] = {}  # board and pods → what was seen first, and what came before
        self.ending = threading.Event()
        self._directory = kubelet_directory
        self._devices = devices
        self._lost: frozenset[tuple[str, str, str]] = frozenset()  # pod, uid if it ran, address
        self._since: dict[str, float] = {}  # uid → when a process of it was seen first
        self._notes: list[tuple[float, str]] = []

    def run(self) -> None:
        """Look until the end."""
        while not self.ending.wait(PAUSE):
            self._look()

    def _look(self) -> None:
        seen = boards.look(self._directory)
        seen = replace(seen, lives=frozenset(map(self._left, seen.lives)))
        self._devices.show(seen.opened())
        self.sight = seen
        self.looks += 1
        self.blind += seen.named is None
        for life in seen.lives:
            self._since.setdefault(life.uid, time.monotonic())
        for board, owners in seen.shared().items():
            key = f"{board} {' '.join(sorted({owner.partition(' ')[0] for owner in owners}))}"
            self.shared.setdefault(key, self._told(board, owners))

    def note(self, text: str) -> None:
        """Take down what is done."""
        self._notes.append((time.monotonic(), text))

    def _told(self, board: str, owners: set[str]) -> str:
        now = time.monotonic()
        pods = {owner.partition(" ")[0] for owner in owners}
        lost = {
            f"{address} was lost to {pod}"
            for pod, _, address in self._lost
            if pod in pods and board in address
        }
        runs = (f"{owner} runs for {now - self._since[uid]:.1f} s" for owner, uid in _running(owners))
        shown = self.sight.named or {}
        named = (
            f"{owner} is named with {' '.join(sorted(shown.get(owner, ())))}"
            for owner in owners
            if " " not in owner
        )
        before = (f"{text} {now - at:.1f} s ago" for at, text in self._notes[-_NOTES:])
        return f"{', '.join((*runs, *named, *sorted(lost)))}; before: {', '.join(before)}"

    def _left(self, life: Life) -> Life:
        """Without what is lost to it."""
        left = (each for each in life.addresses if (life.pod, life.uid, each) not in self._lost)
        return replace(life, addresses=frozenset(left))

    def lose(self, address: str) -> None:
        """It was unplugged: who runs with it has it no more; the kubelet goes on naming the pod."""
        seen = self.sight
        self._lost |= {(life.pod, life.uid, address) for life in seen.lives if address in life.addresses}
        self._lost |= {(pod, "", address) for pod, given in (seen.named or {}).items() if address in given}

    def opens_all(self, pod: str, uid: str) -> bool:
        """True if the host shows all as open that the kubelet has given to the pod."""
        seen = self.sight
        lives = (life.addresses for life in seen.lives if life.uid == uid)
        opened = frozenset().union(*lives) & self._devices.open
        named = (seen.named or {}).get(pod, frozenset())
        return bool(named) and named <= opened


def _running(owners: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((owner, owner.partition(" ")[2]) for owner in owners if " " in owner)


@contextlib.contextmanager
def watching(kubelet_directory: Path, devices: Devices) -> Iterator[Watch]:
    """A watch that looks in a thread of its own; raises at the end what stopped it before."""
    watch = Watch(kubelet_directory, devices)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(watch.run)
        try:
            yield watch
        finally:
            watch.ending.set()
        done.result()
