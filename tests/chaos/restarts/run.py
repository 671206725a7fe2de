# SPDX-License-Identifier: Apache-2.0
"""One run: daemons one after the other, restarts of the kubelet, and a check after each.

In the first half the daemon is killed again and again, and lives some of its lives without watches. The
second half is one life, which is measured. A restart, changes of hardware and configuration, and a shortage
go on at the same time; then all must be right again within ``BOUND`` seconds. Pods come and go in between.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import Daemon, Usage
from tests.chaos.restarts import kubelet_restarts, shortages
from tests.chaos.restarts.figures import Figures
from tests.chaos.restarts.world import Broken, World

BOUND = 8.0  # seconds; below those of a kubelet's dial that goes nowhere
AGE = 30.0  # seconds after which a kubelet that names nobody is believed
LIFE = 12  # restarts, on average, between two kills
BLIND_LIFE = 2  # restarts in a life without watches, where each takes as long as the slow timers
SLOW = 10.0  # seconds of these timers
WARM = 5  # restarts before the first measure
REST = 3.0  # seconds before a measure
SHORT = 0.15  # of all restarts have a shortage
FLAGS = ("--timing-resync", "2s")  # without watches only a look tells


class RestartRun:
    """One run; ``figures`` fill while it goes on."""

    def __init__(self, root: Path, seed: int, wanted: int) -> None:
        self.rng = random.Random(seed)
        self.figures = Figures()
        self._blind = False  # the present life has no watches
        self._wanted = wanted
        self._disks = shortages.Disks(root)
        self.world = World(root, self.rng)
        self._limits = shortages.limits(root)

    async def run(self) -> None:
        """All of it. :raises Broken: at the first thing that is not as it must be."""
        try:
            async with self.world.node.kubelet() as kubelet:
                while self._done() < self._wanted // 2:
                    await self._short_life(kubelet)
                await self._measured_life(kubelet)
        finally:
            self._disks.unmount()
        if faults := self.figures.faults():
            raise Broken("; ".join(faults))

    def _done(self) -> int:
        return sum(self.figures.restarts.values())

    async def _short_life(self, kubelet: FakeKubelet) -> None:
        """Some restarts, and the end by SIGKILL."""
        limit = self.rng.choice((*self._limits, "", "", ""))
        under = shortages.under(limit) if limit else ()
        self._blind = bool(limit)
        with self._disks.full() if self.rng.random() < 0.3 else contextlib.nullcontext():
            async with self._daemon(kubelet, under) as daemon:
                self.figures.lives[limit or "plain"] += 1
                for _ in range(BLIND_LIFE if limit else self.rng.randint(1, 2 * LIFE)):
                    if self._done() < self._wanted // 2:
                        await self._step(kubelet, daemon)
                await daemon.end(signal.SIGKILL)
        self.figures.kills += 1

    async def _measured_life(self, kubelet: FakeKubelet) -> None:
        self._blind = False
        async with self._daemon(kubelet) as daemon:
            for _ in range(WARM):
                await self._step(kubelet, daemon)
            self.figures.begin = await self._at_rest(kubelet, daemon)
            while self._done() < self._wanted:
                await self._step(kubelet, daemon)
                self.figures.sizes.append(daemon.usage().rss)
            self.figures.end = await self._at_rest(kubelet, daemon)
            if await daemon.end() != 0:
                raise Broken("the daemon did not end well")

    @contextlib.asynccontextmanager
    async def _daemon(self, kubelet: FakeKubelet, under: tuple[str, ...] = ()) -> AsyncIterator[Daemon]:
        async with self.world.node.daemon(*FLAGS, under=under) as daemon:
            await self._right(kubelet, daemon, "daemon started")
            yield daemon
            _look_through(daemon)

    async def _at_rest(self, kubelet: FakeKubelet, daemon: Daemon) -> Usage:
        """The size where all is well, nobody has anything, and a while has passed."""
        self.world.evict(kubelet)
        self.world.all_well()
        kubelet_restarts.speak_again(kubelet)
        await kubelet.restart()
        kubelet_restarts.grow_old(kubelet)
        with anyio.fail_after(AGE + BOUND):
            while (await self.world.node.status())["holders"]:  # noqa: ASYNC110 - a socket that is asked
                await anyio.sleep(0.2)
        self.world.all_is_known()
        await self._right(kubelet, daemon, "all at rest")
        await anyio.sleep(REST)
        return daemon.usage()

    async def _step(self, kubelet: FakeKubelet, daemon: Daemon) -> None:
        """One restart with all that goes with it, then a look, then pods."""
        kind = self.rng.choices(tuple(kubelet_restarts.WEIGHTS), tuple(kubelet_restarts.WEIGHTS.values()))[0]
        kubelet_restarts.speak_again(kubelet)
        if kind in kubelet_restarts.WITHOUT_PODS:
            self.world.evict(kubelet)
        before = self.figures.shortages.copy()
        with self._shortage(daemon):
            async with anyio.create_task_group() as group:
                group.start_soon(self._changes)
                await kubelet_restarts.KINDS[kind](kubelet, self.rng)
        self.world.configure()
        if self._blind:
            daemon.send(signal.SIGHUP)  # what is to be done without watches: only the host is read by a timer
        self.figures.restarts[kind] += 1
        short = "".join(f", after {what}" for what in self.figures.shortages - before)
        await self._right(kubelet, daemon, kind + short)
        for _ in range(self.rng.randint(0, 3)):
            await self.world.change_pods(kubelet)

    def _shortage(self, daemon: Daemon) -> contextlib.AbstractContextManager[None]:
        chance = self.rng.random()
        if chance < SHORT / 2:
            self.figures.shortages["no descriptors"] += 1
            return shortages.no_descriptors(daemon, self.rng.randint(0, 4))
        if chance < SHORT and self._disks.there:
            self.figures.shortages["full disks"] += 1
            return self._disks.full()
        return contextlib.nullcontext()

    async def _changes(self) -> None:
        """Some changes, close to each other or to the restart, or not."""
        for _ in range(self.rng.randint(0, 3)):
            await anyio.sleep(self.rng.choice((0.0, 0.01, 0.2)))
            change = self.rng.choice((self.world.change_hardware, self.world.change_configuration))
            change()

    async def _right(self, kubelet: FakeKubelet, daemon: Daemon, after: str) -> None:
        """Wait until the kubelet knows what it must. :raises Broken: if it takes too long."""
        began, bound = anyio.current_time(), BOUND + (SLOW if self._blind else 0)
        after += ", without watches" if self._blind else ""
        try:
            await kubelet.until(lambda: not self.world.missing(kubelet), bound)
        except TimeoutError as error:
            lost = "; ".join(self.world.missing(kubelet))
            raise Broken(f"{after}: lost after {bound:.0f} s: {lost}\n{await self._told()}") from error
        if not daemon.alive:
            raise Broken(f"{after}: the daemon ended with {daemon.process.returncode}")
        if kubelet.life.crashed:
            raise Broken(f"{after}: a kubelet would have crashed: {kubelet.life.crashed}")
        self.figures.returns[after].append(anyio.current_time() - began)

    async def _told(self) -> str:
        """What the daemon says of each device that it does not give."""
        with anyio.move_on_after(REST):
            resources = (await self.world.node.status())["resources"]
            all_of_them = [(each["name"], device) for each in resources for device in each["devices"]]
            lines = [
                f"{name}: {one['id']}: {one['message']}" for name, one in all_of_them if not one["healthy"]
            ]
            return "the daemon gives all but\n" + "\n".join(lines)
        return "the daemon does not say how it is"


def _look_through(daemon: Daemon) -> None:
    """:raises Broken: if the daemon has said something that is no line of its log."""
    odd = [line for line in daemon.raw if line and not line.startswith("{")]
    if odd:
        raise Broken("the daemon said: " + "\n".join(odd[:20]))
