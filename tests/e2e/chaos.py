# SPDX-License-Identifier: Apache-2.0
"""A chaos run on the real kubelet: what may happen to a node, in an order that a seed decides.

Each step does one thing; pods come 0 to 2 s apart. Devices that were taken away are given back after a while.
The driver judges nothing: it counts. A kubelet or a daemon that ends by itself is started again, and counted.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.e2e import boards, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.crowds import Crowd
from tests.e2e.daemon import Daemon
from tests.e2e.watching import Devices, Watch

ATTEMPTS = 5  # starts of a kubelet that crashes


class Trouble:
    """What befalls the node besides its pods; ``done`` counts it."""

    def __init__(
        self, running: Cluster, daemon: Daemon, devices: Devices, watch: Watch, random: Random
    ) -> None:
        self.done: Counter[str] = Counter()
        self._running, self._daemon, self._random = running, daemon, random
        self._devices, self._watch = devices, watch
        self._missing: dict[str, float] = {}  # address → when it comes back

    def kubelet_restarts(self) -> None:
        """Stopped or killed, and soon started again."""
        self._running.kubelet.stop(self._random.choice((signal.SIGTERM, signal.SIGKILL)))
        waiting.pause(self._random.uniform(0, 1))
        self._count("kubelet restarts")
        self._kubelet_up()

    def api_server_away(self) -> None:
        """It stands still for seconds; now and then the kubelet is restarted meanwhile."""
        with self._running.control.away():
            waiting.pause(self._random.uniform(0, 2))
            if self._random.random() < 0.5:
                self.kubelet_restarts()
            waiting.pause(self._random.uniform(1, 4))
        waiting.until(lambda: self._running.api.ask("GET", "/readyz") == "ok", "the API server answers")
        self._count("API server away")

    def daemon_killed(self) -> None:
        """And soon started again."""
        self._daemon.stop(signal.SIGKILL)
        waiting.pause(self._random.uniform(0, 2))
        self._daemon.launch()
        self._count("daemon killed")

    def device_unplugged(self) -> None:
        """Whoever has it."""
        address = self._random.choice(self._present())
        self._devices.unplug(address)
        self._watch.lose(address)
        self._gone(address, "unplugged")

    def driver_changed(self) -> None:
        """Of a function whose board nobody has: the kernel would wait for it otherwise."""
        owned = self._watch.sight.owners()
        if idle := [each for each in self._present() if boards.board(each) not in owned]:
            address = self._random.choice(idle)
            self._devices.rebind(address)
            self._gone(address, "driver changed")

    def _present(self) -> list[str]:
        return sorted(self._devices.addresses - self._missing.keys())

    def _gone(self, address: str, how: str) -> None:
        self._missing[address] = time.monotonic() + self._random.uniform(0.5, 5)
        self._count(how, address)

    def give_back(self, all_of_them: bool = False) -> None:
        """Give back what was away long enough."""
        now = time.monotonic()
        for address in [each for each, due in self._missing.items() if all_of_them or due <= now]:
            self._devices.give_back(address)
            del self._missing[address]
            self._watch.note(f"{address} is back")

    def keep_up(self) -> None:
        """Start again what has ended by itself."""
        if not self._running.kubelet.running:
            self._count("kubelet crashed", _panic(self._running.kubelet.log))
            self._kubelet_up()
        if not self._daemon.running:
            self._count("daemon crashed")
            self._daemon.launch()

    def _kubelet_up(self) -> None:
        """Start it; it may crash on what it finds."""
        for _ in range(ATTEMPTS):
            self._running.kubelet.start()
            try:
                self._running.kubelet.await_ready()
            except RuntimeError:
                self._count("kubelet crashed", _panic(self._running.kubelet.log))
            else:
                return
        raise RuntimeError("the kubelet does not stay up: " + _panic(self._running.kubelet.log))

    def _count(self, what: str, more: str = "") -> None:
        self.done[what] += 1
        self._watch.note(f"{what} {more}".strip())


def _panic(log: Path) -> str:
    """The last complaint of a Go program before its end."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith("panic:")), "no panic in its log")


def run(crowd: Crowd, trouble: Trouble, random: Random, seconds: float) -> None:
    """Do one thing after the other for that long, then give back what was taken away."""
    weights = {
        crowd.come: 12,
        crowd.go: 5,
        crowd.go_by_force: 5,
        trouble.device_unplugged: 0.7,
        trouble.driver_changed: 0.7,
        trouble.kubelet_restarts: 0.5,
        trouble.api_server_away: 0.4,
        trouble.daemon_killed: 0.6,
    }
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (act,) = random.choices(tuple(weights), tuple(weights.values()))
        act()
        waiting.pause(random.choice((0.0, 0.0, random.uniform(0, 0.4), random.uniform(0, 2))))
        trouble.keep_up()
        trouble.give_back()
        crowd.survey()
    trouble.give_back(all_of_them=True)
