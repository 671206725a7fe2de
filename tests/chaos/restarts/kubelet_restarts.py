# SPDX-License-Identifier: Apache-2.0
"""The ways in which a kubelet goes and comes back.

All but one happen to the fake kubelet in this process; ``killed`` has one in a process of its own, which
serves between two lives of ours and ends by SIGKILL. Each returns when the kubelet takes registrations.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from nodeagent.sim.kubelet.server import AN_HOUR, FakeKubelet

Restart = Callable[[FakeKubelet, random.Random], Awaitable[None]]
_SILENCES: tuple[tuple[str, Any], ...] = (
    ("pod-resources-absent", True),
    ("pod-resources-exhausted", True),
    ("pod-resources-delay", 60.0),
    ("pod-resources-empty", 5.0),
)


async def stopped(kubelet: FakeKubelet, rng: random.Random) -> None:
    """Its sockets stay behind and refuse, for a moment."""
    await kubelet.restart(away=rng.uniform(0, 0.3))


async def unlinked(kubelet: FakeKubelet, rng: random.Random) -> None:
    """Its socket is gone before it is, and then made anew."""
    kubelet.socket.unlink()
    await anyio.sleep(rng.uniform(0, 0.1))
    await kubelet.restart(away=rng.uniform(0, 0.1))


async def removed(kubelet: FakeKubelet, rng: random.Random) -> None:
    """Its directory goes with all that is in it, and is made anew; wants a node without pods."""
    await kubelet.stop()
    while kubelet.paths.plugins.exists():  # the daemon takes its own sockets out of it at the same time
        shutil.rmtree(kubelet.paths.plugins, ignore_errors=True)
    await anyio.sleep(rng.uniform(0, 0.3))
    await kubelet.start()


async def killed(kubelet: FakeKubelet, rng: random.Random) -> None:
    """Another one serves meanwhile, and is killed; wants a node without pods."""
    await kubelet.stop()
    root, patience = str(kubelet.paths.root), str(rng.choice((0.05, 5.0)))
    command = [sys.executable, "-m", __name__, root, patience]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as other:
        assert other.stdout is not None
        with anyio.fail_after(20):
            await other.stdout.receive()
        other.kill()
    await kubelet.start()


async def _serve(root: str, patience: float) -> None:
    """Be the other kubelet; write a line when a plugin has sent its list, or after that many seconds."""
    async with FakeKubelet(root) as kubelet:
        with contextlib.suppress(TimeoutError):
            streams, devices = kubelet.statistics.streams, kubelet.state.table.devices
            await kubelet.until(lambda: any(streams.get(name) == 1 for name in devices), patience)
        print("served", flush=True)
        await anyio.sleep_forever()


async def slow(kubelet: FakeKubelet, rng: random.Random) -> None:
    """It binds long before it listens, or takes plugins long after it answers PodResources."""
    if rng.random() < 0.5:
        await kubelet.restart(listen_delay=rng.uniform(0.05, 0.5))
        return
    kubelet.faults.set("plugins-late", rng.uniform(0.05, 0.5))
    try:
        await kubelet.restart()
    finally:
        kubelet.faults.clear("plugins-late")


async def silent(kubelet: FakeKubelet, rng: random.Random) -> None:
    """Nobody answers for who holds what, or the answer names nobody, until the next restart."""
    name, setting = rng.choice(_SILENCES)
    kubelet.faults.set(name, setting)
    await kubelet.restart()


def speak_again(kubelet: FakeKubelet) -> None:
    """The end of what ``silent`` began."""
    for name, _ in _SILENCES:
        kubelet.faults.clear(name)


def grow_old(kubelet: FakeKubelet) -> None:
    """It was started an hour ago, as its sockets tell: what it does not name is nobody's."""
    born = time.time() - AN_HOUR
    for socket in (kubelet.socket, kubelet.paths.pod_resources / "kubelet.sock"):
        os.utime(socket, (born, born))


KINDS: dict[str, Restart] = {
    "stopped": stopped,
    "unlinked": unlinked,
    "removed": removed,
    "killed": killed,
    "slow": slow,
    "silent": silent,
}
WITHOUT_PODS = ("removed", "killed")
WEIGHTS = {"stopped": 4, "unlinked": 4, "removed": 2, "killed": 1, "slow": 3, "silent": 2}

if __name__ == "__main__":
    anyio.run(_serve, sys.argv[1], float(sys.argv[2]))
