# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.bench.ways``: how many files and functions of the daemon run on four ways through it.

A way begins right before its stimulus and ends a moment after its effect was seen from outside, so that it
does not hang on chance what of the turn that follows at once is counted; after a wish the plan is at rest
by then. Each is gone several times; told is the median, with the least and the most. ``--list`` names the
functions.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from nodeagent.base.terminal import table
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.bench import listing
from tests.bench.daemon import Daemon, simulated
from tests.kubelet.serving import open_channel
from tests.sim import hosts

TIMES = 5
REST = 0.5  # seconds after which all is quiet, and a plan at rest
MOMENT = 0.1  # seconds that a way goes on after its effect
CARD = "0000:3b:00.0"
CONFIG = "apiVersion: nodeagent/v1\nmdevs: {{manage: true, types: [{types}]}}\n"

Function = tuple[str, int, str]  # file, line, name
Stimulus = Callable[[], Awaitable[None]]


class Tracer:
    """Switches the trace of a daemon on and off."""

    def __init__(self, daemon: Daemon, path: str) -> None:
        self._daemon = daemon
        self._path = Path(path)

    async def functions(self, stimulus: Stimulus) -> list[Function]:
        """What runs while the stimulus is given and waits for its effect."""
        await anyio.sleep(REST)
        await self._tell(signal.SIGUSR1)
        await stimulus()
        await anyio.sleep(MOMENT)
        return await self._tell(signal.SIGUSR2)

    async def _tell(self, number: signal.Signals) -> list[Function]:
        """Send a signal and wait for its answer."""
        self._path.unlink(missing_ok=True)
        self._daemon.signal(number)
        with anyio.fail_after(10):
            while not self._path.exists():  # noqa: ASYNC110 - a file gives no event here
                await anyio.sleep(0.001)
        return [(path, line, name) for path, line, name in json.loads(self._path.read_text())]


@asynccontextmanager
async def _traced(host: SimulatedHost, kubelet: FakeKubelet, resources: int) -> AsyncIterator[Tracer]:
    """A daemon that is traced, and has listed so many resources."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-") as directory:  # not watched by the daemon
        path = f"{directory}/trace"
        daemon = Daemon(host.path("/"), module=("tests.bench.traced", path))
        try:
            await listing.all_listed(kubelet, resources=resources)
            await anyio.sleep(REST)
            yield Tracer(daemon, path)
        finally:
            daemon.stop()


async def listed_host() -> dict[str, list[list[Function]]]:
    """The three ways of a node whose host is not changed: event, Allocate, kubelet restart."""
    with simulated(16, 4) as host:
        async with FakeKubelet(host.path("/")) as kubelet, _traced(host, kubelet, 4) as tracer:
            return {
                "event → list": await _events(host, kubelet, tracer),
                "Allocate → answer": await _allocates(kubelet, tracer),
                "kubelet restart → registered, listed": await _restarts(kubelet, tracer),
            }


async def _events(host: SimulatedHost, kubelet: FakeKubelet, tracer: Tracer) -> list[list[Function]]:
    """A device leaves its driver; it comes back unseen."""

    async def bind(driver: str) -> None:
        before = kubelet.statistics.lists_total
        host.bind(hosts.address(1), driver)
        await listing.lists(kubelet, before + 1)

    traces = []
    for _ in range(TIMES + 1):
        traces.append(await tracer.functions(lambda: bind("nvidia")))
        await anyio.sleep(REST)
        await bind("vfio-pci")
        await anyio.sleep(REST)
    return traces[1:]


async def _allocates(kubelet: FakeKubelet, tracer: Tracer) -> list[list[Function]]:
    """Each time another device of one resource, over a connection that is open."""
    resource, devices = min(kubelet.state.table.devices.items())
    endpoint = kubelet.statistics.accepted(resource)[-1].endpoint
    async with open_channel(f"{kubelet.paths.plugins}/{endpoint}") as channel:
        stub = v1beta1.DevicePluginStub(channel)
        await stub.get_device_plugin_options(v1beta1.Empty())

        async def allocate(name: str) -> None:
            asked = v1beta1.ContainerAllocateRequest(device_ids=[name])
            await stub.allocate(v1beta1.AllocateRequest([asked]))

        names = _again(sorted(devices))
        return [await tracer.functions(lambda: allocate(next(names))) for _ in range(TIMES + 1)][1:]


def _again(names: list[str]) -> Iterator[str]:
    """The names, over and over."""
    while True:
        yield from names


async def _restarts(kubelet: FakeKubelet, tracer: Tracer) -> list[list[Function]]:
    """All connections end, and there is a new socket at once."""

    async def restart() -> None:
        before = kubelet.statistics.lists_total
        await kubelet.restart()
        await listing.lists(kubelet, before + 4)

    return [await tracer.functions(restart) for _ in range(TIMES + 1)][1:]


async def wishes() -> dict[str, list[list[Function]]]:
    """The way of a wish; each time a new node, and a daemon that manages mdevs but is to make none yet."""
    return {"wish → sysfs → read back": [await _wish() for _ in range(TIMES)]}


async def _wish() -> list[Function]:
    card = Card(CARD, (Type("t-1", 2),))
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-") as directory:
        host = hosts.many(directory, 2, 1)
        add_card(host, card, 10)
        host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
        host.write_file("/etc/nodeagent/config.yaml", CONFIG.format(types=""))
        async with FakeKubelet(directory) as kubelet, simulated_cards(host, MdevKernel([card])) as made:

            async def wish() -> None:
                host.write_file("/etc/nodeagent/config.yaml", CONFIG.format(types="t-1"))
                await kubelet.until(lambda: sum(map(len, kubelet.state.table.devices.values())) == 4, 20)
                await anyio.sleep(REST)

            async with _traced(host, kubelet, 1) as tracer:
                functions = await tracer.functions(wish)
            assert len(made.instances) == 2
            return functions


async def measure() -> dict[str, list[list[Function]]]:
    """All ways."""
    return {**await listed_host(), **await wishes()}


def _row(name: str, traces: list[list[Function]]) -> tuple[str, str, str]:
    files = sorted(len({path for path, _, _ in trace}) for trace in traces)
    functions = sorted(map(len, traces))
    spread = f"{files[0]} to {files[-1]} / {functions[0]} to {functions[-1]}"
    return name, f"{statistics.median_low(files)} / {statistics.median_low(functions)}", spread


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ways")
    parser.add_argument("--list", action="store_true", help="name the functions of each way, too")
    arguments = parser.parse_args()
    ways = anyio.run(measure)
    print(table(("WAY", "FILES / FUNCTIONS", "LEAST TO MOST"), [_row(*way) for way in ways.items()]))
    for name, traces in ways.items() if arguments.list else ():
        print(f"\n{name}")
        for path, line, function in min(traces, key=len):
            print(f"  {path}:{line} {function}")


if __name__ == "__main__":
    main()
