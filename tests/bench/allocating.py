# SPDX-License-Identifier: Apache-2.0
"""Allocate, each call another device, while few and while nearly all devices are held.

The client is grpcio in a process of its own. PodResources names the holders before the daemon starts; every
round has a new daemon, and takes the same free devices: the last two of each resource.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import ContainerDevices, Pod
from tests.bench import listing
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure, both

ROUNDS = 4
FREE = 2  # devices of each resource that no pod holds
FEW = 10
WARM = 20  # calls of a round that do not count
QUIET = 1.5  # seconds between the start and the first call
ANSWER = 1 << 20  # bytes of the client's longest line, at most

Devices = Sequence[tuple[str, str]]  # resource and device id


async def figures(host: SimulatedHost, kubelet: FakeKubelet) -> list[Figure]:
    """p50, p99 and the daemon's own time per call, with few and with nearly all devices held."""
    daemon = Daemon(host.path("/"))
    await listing.all_listed(kubelet, daemon.started)
    await _stop(kubelet, daemon)
    held, free = _shares(kubelet)
    measured = []
    for holders in (held[:FEW], held):
        times, cpu = await _rounds(host, kubelet, holders, free)
        name = f"Allocate of another device each, {len(holders)} to {len(holders) + len(free)} held"
        measured += both(name, times, "<= 0.9", "<= 2")
        measured.append(Figure(f"{name}, CPU of the daemon", cpu, "ms/call"))
    return measured


def _shares(kubelet: FakeKubelet) -> tuple[Devices, Devices]:
    """All devices but two of each resource, one resource after the other; and these two."""
    table = sorted(kubelet.state.table.devices.items())
    by_resource = [[(resource, name) for name in sorted(devices)] for resource, devices in table]
    held = [pair for devices in by_resource for pair in devices[:-FREE]]
    return held, [devices[-number] for number in range(1, FREE + 1) for devices in by_resource]


async def _rounds(
    host: SimulatedHost, kubelet: FakeKubelet, holders: Devices, free: Devices
) -> tuple[list[float], float]:
    """Seconds of each call that counts, and the daemon's milliseconds per call."""
    times: list[float] = []
    cpu = 0.0
    hold(kubelet, holders)
    for _ in range(ROUNDS):
        daemon = Daemon(host.path("/"))
        await listing.all_listed(kubelet, daemon.started)
        await anyio.sleep(QUIET)
        calls = [(_socket(kubelet, resource), name) for resource, name in free]
        seconds, used = await _allocate(daemon, calls)
        times += seconds[WARM:]
        cpu += used
        await _stop(kubelet, daemon)
    hold(kubelet, ())
    return times, cpu / ROUNDS / len(free)


async def _stop(kubelet: FakeKubelet, daemon: Daemon) -> None:
    await threads.call(daemon.stop)
    await listing.all_gone(kubelet)


def hold(kubelet: FakeKubelet, devices: Devices) -> None:
    """Let these devices, and no others, be held, as PodResources and the checkpoint tell: one pod each."""
    state = kubelet.state
    state.pods.clear()
    state.table.held = list(_holders(state.pods, devices))
    state.table.save()
    state.changed()


def _holders(pods: dict[str, Pod], devices: Devices) -> Iterator[ContainerDevices]:
    for number, (resource, name) in enumerate(devices):
        pod = Pod("default", f"vm-{number}", [{resource: 1}], uid=f"uid-{number}")
        pods[pod.key] = pod
        yield ContainerDevices(pod.uid, "c0", resource, (name,), b"")


def _socket(kubelet: FakeKubelet, resource: str) -> str:
    return f"{kubelet.paths.plugins}/{kubelet.statistics.accepted(resource)[-1].endpoint}"


async def _allocate(daemon: Daemon, calls: Devices) -> tuple[list[float], float]:
    """Seconds of each call, and the milliseconds that all of them took of the daemon."""
    command = [sys.executable, "-m", "tests.bench.client"]
    async with await anyio.open_process(command, stderr=None) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        answers = BufferedByteReceiveStream(client.stdout)
        await client.stdin.send(json.dumps({"calls": calls}).encode() + b"\n")
        await answers.receive_until(b"\n", ANSWER)  # it is ready
        before = daemon.runtime()
        await client.stdin.send(b"go\n")
        seconds: list[float] = json.loads(await answers.receive_until(b"\n", ANSWER))
        return seconds, daemon.runtime() - before
