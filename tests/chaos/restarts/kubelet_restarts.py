# SPDX-License-Identifier: Apache-2.0
"""The ways in which a kubelet goes and comes back.

All but one happen to the stand-in in this process; ``killed`` is a stand-in in a process of its own, which
serves between two lives of ours and ends by SIGKILL. Each returns when the kubelet takes registrations.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from nodeagent.sim.kubelet.standin import AN_HOUR, Kubelet

Restart = Callable[[Kubelet, random.Random], Awaitable[None]]
_SILENCES: tuple[tuple[str, Any], ...] = (
    ("pod-resources-absent", True),
    ("pod-resources-exhausted", True),
    ("pod-resources-delay", 60.0),
    ("pod-resources-empty", 5.0),
)


async def stopped(kubelet: Kubelet, rng: random.Random) -> None:
    """Its sockets stay behind and refuse, for a moment."""
    await kubelet.restart(away=rng.uniform(0, 0.3))


async def unlinked(kubelet: Kubelet, rng: random.Random) -> None:
    """Its socket is gone before it is, and then made anew."""
    kubelet.socket.unlink()
    await anyio.sleep(rng.uniform(0, 0.1))
    await kubelet.restart(away=rng.uniform(0, 0.1))


async def removed(kubelet: Kubelet, rng: random.Random) -> None:
    """Its directory goes with all that is in it, and is made anew; wants a node without pods."""
    await kubelet.stop()
    while kubelet.paths.plugins.exists():  # the daemon takes its own sockets out of it at the same time
        shutil.rmtree(kubelet.paths.plugins, ignore_errors=True)
    await anyio.sleep(rng.uniform(0, 0.3))
    await kubelet.start()


async def killed(kubelet: Kubelet, rng: random.Random) -> None:
    """Another one serves meanwhile, and is killed; wants a node without pods."""
    await kubelet.stop()
    arguments = ("--root", str(kubelet.paths.root))
    command = [sys.executable, "-m", "nodeagent.sim.kubelet.standin", *arguments]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as other:
        await _answer(other)  # that it has started
        await _tell(other, {"cmd": "wait", "resources": 1, "timeout": rng.choice((0.05, 5.0))})
        other.kill()
    await kubelet.start()


async def slow(kubelet: Kubelet, rng: random.Random) -> None:
    """It binds long before it listens, or takes plugins long after it answers PodResources."""
    if rng.random() < 0.5:
        await kubelet.restart(listen_delay=rng.uniform(0.05, 0.5))
        return
    kubelet.faults.set("plugins-late", rng.uniform(0.05, 0.5))
    try:
        await kubelet.restart()
    finally:
        kubelet.faults.clear("plugins-late")


async def silent(kubelet: Kubelet, rng: random.Random) -> None:
    """Nobody answers for who holds what, or the answer names nobody, until the next restart."""
    name, setting = rng.choice(_SILENCES)
    kubelet.faults.set(name, setting)
    await kubelet.restart()


def speak_again(kubelet: Kubelet) -> None:
    """The end of what ``silent`` began."""
    for name, _ in _SILENCES:
        kubelet.faults.clear(name)


def grow_old(kubelet: Kubelet) -> None:
    """It was started an hour ago, as its sockets tell: what it does not name is nobody's."""
    born = time.time() - AN_HOUR
    for socket in (kubelet.socket, kubelet.paths.pod_resources / "kubelet.sock"):
        os.utime(socket, (born, born))


async def _tell(process: Process, command: dict[str, Any]) -> None:
    assert process.stdin is not None
    await process.stdin.send(json.dumps(command).encode() + b"\n")
    await _answer(process)


async def _answer(process: Process) -> None:
    """Wait for a line: answers come one at a time."""
    assert process.stdout is not None
    with anyio.fail_after(20):
        async for text in TextReceiveStream(process.stdout):
            if text.endswith("\n"):
                return
    raise RuntimeError("the stand-in kubelet ended by itself")


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
