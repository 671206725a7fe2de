# SPDX-License-Identifier: Apache-2.0
"""``make bench``: measures, prints a table, writes bench-result.json. Judges nothing, shows targets beside.

The stand-in kubelet and the clients run in this process, the daemon in its own; on a machine with two cores
both fit. Client and stand-in are Python too, so their share of every latency is the larger one.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from nodeagent.base import threads
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.runner import ScanRunner
from nodeagent.kernel.wakes import Wakes
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc.channel import open_channel
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import turn
from nodeagent.render.table import table
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
from tests.bench import splitting
from tests.bench.daemon import Daemon, simulated

RESOURCES, DEVICES = 60, 1000


class Figure(NamedTuple):
    """One measured number."""

    name: str
    value: float
    unit: str
    target: str = ""


async def all_listed(kubelet: Kubelet, resources: int, timeout: float = 30.0) -> None:  # noqa: ASYNC109
    """Wait until every resource has one stream and its list."""
    await kubelet.until(
        lambda: (
            len(kubelet.state.table.devices) == resources
            and sum(kubelet.statistics.streams.values()) == resources
            and kubelet.statistics.lists_total >= resources
        ),
        timeout,
    )


async def registered(kubelet: Kubelet, more_than: int) -> None:
    """Wait for one more Register."""
    await kubelet.until(lambda: len(kubelet.statistics.registrations) > more_than, 30)


async def lists(kubelet: Kubelet, at_least: int) -> None:
    """Wait until so many lists have been sent in all."""
    await kubelet.until(lambda: kubelet.statistics.lists_total >= at_least, 30)


async def start_and_restart(figures: list[Figure]) -> None:
    """Start, kubelet restarts, Allocate, events and memory with 60 resources and 1,000 devices."""
    with simulated(DEVICES, RESOURCES) as host:
        async with Kubelet(host.path("/")) as kubelet:
            firsts = []
            for _ in range(5):
                seen = len(kubelet.statistics.registrations)
                daemon = Daemon(host.path("/"))
                await registered(kubelet, seen)
                firsts.append(kubelet.statistics.registrations[seen].when - daemon.started)
                await all_listed(kubelet, RESOURCES)
                await threads.call(daemon.stop)
                await kubelet.until(lambda: not any(kubelet.statistics.streams.values()), 10)
            figures.append(Figure("exec to first Register", statistics.median(firsts) * 1e3, "ms", "<= 300"))
            daemon = Daemon(host.path("/"))
            await all_listed(kubelet, RESOURCES)
            figures.append(Figure("memory, 60 resources / 1,000 devices", daemon.memory(), "MiB", "<= 45"))
            await restarts(kubelet, figures)
            await allocates(kubelet, figures)
            await events(host, kubelet, figures)
            await many_restarts(kubelet, daemon, figures)
            figures.append(
                Figure("SIGTERM to exit", (await threads.call(daemon.stop)) * 1e3, "ms", "<= 2000")
            )


async def restarts(kubelet: Kubelet, figures: list[Figure]) -> None:
    """Socket connectable again → all registered, all lists there."""
    times = []
    for _ in range(15):
        await kubelet.stop()
        await anyio.sleep(0.3)
        before = kubelet.statistics.lists_total
        await kubelet.start()
        began = time.monotonic()
        await lists(kubelet, before + RESOURCES)
        await all_listed(kubelet, RESOURCES)
        times.append(time.monotonic() - began)
    figures.append(
        Figure("kubelet back to all 60 listed, median", statistics.median(times) * 1e3, "ms", "<= 150")
    )
    figures.append(Figure("kubelet back to all 60 listed, worst of 15", max(times) * 1e3, "ms"))


async def allocates(kubelet: Kubelet, figures: list[Figure]) -> None:
    """Allocate of one device over an open connection, client included."""
    table_now = kubelet.state.table.devices
    resource = min(table_now)
    device = min(table_now[resource])
    endpoint = kubelet.statistics.accepted(resource)[-1].endpoint
    request = v1beta1.AllocateRequest(
        container_requests=[v1beta1.ContainerAllocateRequest(device_ids=[device])]
    )
    times = []
    async with open_channel(f"{kubelet.state.plugins}/{endpoint}") as channel:
        stub = v1beta1.DevicePluginStub(channel)
        for _ in range(1050):
            began = time.perf_counter()
            await stub.allocate(request)
            times.append(time.perf_counter() - began)
    times = sorted(times[50:])
    figures.append(Figure("Allocate p50", times[500] * 1e3, "ms", "<= 0.7"))
    figures.append(Figure("Allocate p99", times[990] * 1e3, "ms", "<= 2"))


async def events(host: SimulatedHost, kubelet: Kubelet, figures: list[Figure]) -> None:
    """A driver changes → the new list is at the kubelet, settle time included and taken off."""
    from nodeagent.agent.observe import QUIET

    times = []
    for index in range(100):
        address = nodes.address(index * 7)
        for driver in ("nvidia", "vfio-pci"):
            before = kubelet.statistics.lists_total
            began = time.monotonic()
            host.bind(address, driver)
            await lists(kubelet, before + 1)
            times.append(time.monotonic() - began)
            await anyio.sleep(0.03)
    times.sort()
    figures.append(Figure("settle time of a single event", QUIET * 1e3, "ms"))
    figures.append(Figure("event to list beyond settle, p50", (times[len(times) // 2] - QUIET) * 1e3, "ms"))
    figures.append(
        Figure(
            "event to list beyond settle, p99", (times[int(len(times) * 0.99)] - QUIET) * 1e3, "ms", "<= 25"
        )
    )


async def many_restarts(kubelet: Kubelet, daemon: Daemon, figures: list[Figure]) -> None:
    """200 kubelet restarts in a row: memory and descriptors."""
    memory, files = daemon.memory(), daemon.files()
    for _ in range(200):
        before = kubelet.statistics.lists_total
        await kubelet.restart()
        await lists(kubelet, before + RESOURCES)
    await anyio.sleep(2)
    figures.append(Figure("memory after 200 kubelet restarts", daemon.memory(), "MiB", "<= 45, flat"))
    figures.append(Figure("growth over 200 kubelet restarts", daemon.memory() - memory, "MiB", "flat"))
    figures.append(Figure("descriptors gained over 200 restarts", daemon.files() - files, "", "0"))


async def small_and_idle(figures: list[Figure]) -> None:
    """Memory with 8 resources, and what an idle daemon does in a minute."""
    with simulated(16, 8) as host:
        async with Kubelet(host.path("/")) as kubelet:
            daemon = Daemon(host.path("/"))
            await all_listed(kubelet, 8)
            await anyio.sleep(5)
            ticks, runtime, switches = daemon.ticks(), daemon.runtime(), daemon.switches()
            await anyio.sleep(60)
            figures.append(Figure("memory, 8 resources", daemon.memory(), "MiB", "<= 32"))
            figures.append(Figure("CPU ticks in an idle minute", daemon.ticks() - ticks, "", "<= 1"))
            figures.append(Figure("CPU time in an idle minute", daemon.runtime() - runtime, "ms"))
            figures.append(
                Figure(
                    "context switches in an idle minute",
                    daemon.switches() - switches,
                    "",
                    "slow timers only",
                )
            )
            await threads.call(daemon.stop)


async def scans(figures: list[Figure]) -> None:
    """Whole scans, and one changed device, on hosts of growing size."""
    for count in (10, 100, 1000, 10000):
        with simulated(count, min(count, RESOURCES)) as host:
            look = ScanRunner(Root(host.path("/")), Wakes(), deadline=2.0)
            began = time.perf_counter()
            first = await look.scan(None, Host(), (), {})
            took = time.perf_counter() - began
            figures.append(Figure(f"scan of {count:,} functions", took * 1e3, "ms", "linear"))
            figures.append(Figure(f"scan per function, {count:,} functions", took / count * 1e6, "us"))
            figures.append(await one_change(host, look, first, count))


async def one_change(host: SimulatedHost, look: ScanRunner, before: Host, count: int) -> Figure:
    """Decide anew after one driver change, without the reading."""
    decision = turn.first(Snapshot(before, Desired()))
    address = nodes.address(count // 2)
    times = []
    for driver in ("nvidia", "vfio-pci") * 10:
        host.bind(address, driver)
        now = await look.scan(frozenset({address}), decision.snapshot.host, (), {})
        began = time.perf_counter()
        decision = turn.following(decision, Snapshot(now, decision.snapshot.desired))
        times.append(time.perf_counter() - began)
    return Figure(
        f"one changed device of {count:,}, deciding", statistics.median(times) * 1e3, "ms", "the same"
    )


async def measure() -> list[Figure]:
    """All figures."""
    figures: list[Figure] = []
    await start_and_restart(figures)
    await small_and_idle(figures)
    await scans(figures)
    figures += [Figure(*row) for row in await splitting.figures()]
    return figures


def main() -> None:
    """Measure and tell."""
    figures = anyio.run(measure)
    print(
        table(
            ("FIGURE", "VALUE", "UNIT", "TARGET"),
            [(f.name, f"{f.value:.2f}", f.unit, f.target) for f in figures],
        )
    )
    result: list[dict[str, Any]] = [figure._asdict() for figure in figures]
    Path("bench-result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
