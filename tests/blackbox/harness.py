# SPDX-License-Identifier: Apache-2.0
"""A node for black-box tests: a simulated host, a fake kubelet, and the real daemon as a process.

The daemon is seen from outside only: its log lines, its status socket, its plugin sockets, what the kubelet
saw of it, and what /proc tells of its process. Nothing here knows how it works inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from nodeagent.base import sockets, threads
from nodeagent.base.latest import Latest
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import DeviceList, Pod
from tests import forkserver
from tests.sim.usb import UsbBuses

T4 = "nvidia.com/TU104GL_TESLA_T4"
STATE, LASTING = "run/nodeagent/state.json", "var/lib/nodeagent/last.json"
PATIENCE = 15.0  # seconds; generous, for a machine that others load
POLL = 0.02
NOBODY = 65534


async def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds, where the world gives no event. Raises TimeoutError."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - /proc and files give no event
            await anyio.sleep(POLL)


@dataclass(frozen=True)
class Usage:
    """What the process costs at one moment: RSS in KiB, CPU in clock ticks, how often its threads slept."""

    rss: int
    fds: int
    threads: int
    ticks: int
    switches: int
    inotify: int


class Daemon:
    """``nodeagent run`` as a process, and its log."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._news = Latest(None)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self.process.returncode is None

    def lines(self, event: str, **fields: str) -> list[dict[str, Any]]:
        """The log lines of this event with these fields."""
        wanted = {"event": event, **fields}
        return [line for line in self.log if wanted.items() <= line.items()]

    async def logged(self, event: str, count: int = 1, **fields: str) -> dict[str, Any]:
        """Wait until the event was logged that often; return the last of its lines."""
        with anyio.fail_after(PATIENCE):
            while len(self.lines(event, **fields)) < count:
                await self._news.newer(self._news.version)
        return self.lines(event, **fields)[-1]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self.process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and return the exit code (minus the signal's number if it was killed)."""
        if self.alive:
            self.send(number)
        with anyio.fail_after(PATIENCE):
            return await self.process.wait()

    def usage(self) -> Usage:
        """What /proc says of it now."""
        proc = Path("/proc", str(self.pid))
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        numbers = (proc / "stat").read_text().rpartition(")")[2].split()
        targets = [_target(proc / "fd" / name) for name in os.listdir(proc / "fd")]
        return Usage(
            rss=int(status["VmRSS"].split()[0]),
            fds=len(targets),
            threads=int(status["Threads"]),
            ticks=int(numbers[11]) + int(numbers[12]),
            switches=sum(_sleeps(task) for task in (proc / "task").iterdir()),
            inotify=targets.count("anon_inode:inotify"),
        )

    async def listen(self) -> None:
        """Read the log until the process ends."""
        assert self.process.stderr is not None
        rest = ""
        async for chunk in TextReceiveStream(self.process.stderr, errors="replace"):
            *lines, rest = (rest + chunk).split("\n")
            for line in lines:
                self.raw.append(line)
                if line.startswith("{"):
                    self.log.append(json.loads(line))
            self._news.touch()


def _sleeps(task: Path) -> int:
    """How often a thread has waited for something."""
    lines = _told(task / "status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")), 0)


def watched(daemon: Daemon) -> set[int]:
    """The inodes that it watches by inotify."""
    infos = (_told(info) for info in Path(f"/proc/{daemon.pid}/fdinfo").iterdir())
    lines = (line for text in infos for line in text.splitlines() if line.startswith("inotify "))
    return {int(line.partition(" ino:")[2].split()[0], 16) for line in lines}


def _told(info: Path) -> str:
    """What a file of /proc says; nothing if the descriptor or the thread has gone meanwhile."""
    try:
        return info.read_text()
    except OSError:
        return ""


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Node:
    """A host below ``root`` and all that runs on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = SimulatedHost(root, numa_nodes=(0, 1))
        self.usb = UsbBuses(self.host.tree)
        self.plugins = root / "var/lib/kubelet/device-plugins"

    def configure(self, text: str, name: str = "config.yaml") -> Path:
        """Write a configuration file, at once and whole as editors do."""
        path = self.root / "etc/nodeagent" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".new")
        aside.write_text(text)
        aside.rename(path)
        return path

    def add_gpus(self, count: int, first_group: int = 10) -> list[str]:
        """Tesla T4s, each alone in its group; return their addresses."""
        addresses = [f"0000:{0x10 + number:02x}:00.0" for number in range(count)]
        for number, address in enumerate(addresses):
            self.add_gpu(address, first_group + number, numa=0)
        return addresses

    def add_gpu(
        self,
        address: str,
        group: int,
        *,
        device: str = "1eb8",
        numa: int = -1,
        sriov: int = 0,
        physfn: str | None = None,
    ) -> None:
        """A Tesla T4, unless ``device`` is another, on vfio-pci."""
        self.host.add_function(
            address,
            vendor="10de",
            device=device,
            pci_class="030200",
            driver="vfio-pci",
            group=group,
            numa=numa,
            sriov=sriov,
            physfn=physfn,
        )

    def add_sound(self, address: str, group: int) -> None:
        """The sound function of a GPU, on vfio-pci."""
        self.host.add_function(
            address, vendor="10de", device="10f9", pci_class="040300", driver="vfio-pci", group=group
        )

    def has(self, path: str) -> bool:
        """True if the host has this path."""
        return os.path.lexists(self.host.path(path))

    def state(self, section: str) -> dict[str, Any]:
        """A section of the state until the next boot, as it is on disk; {} without it."""
        try:
            document: dict[str, Any] = json.loads((self.root / STATE).read_text())
        except FileNotFoundError:  # the last section is gone, maybe since a moment ago
            return {}
        found: dict[str, Any] = document.get(section, {})
        return found

    def has_former_drivers(self) -> bool:
        """True if the ledger on disk has drivers that functions had before they were bound."""
        return bool(self.state("ledger").get("drivers"))

    def driver_of(self, address: str) -> str:
        """The driver to which the function is bound now."""
        return Path(self.host.path(f"/sys/bus/pci/devices/{address}/driver")).readlink().name

    @asynccontextmanager
    async def daemon(
        self,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        ready: bool = True,
        under: Sequence[str] = (),
    ) -> AsyncIterator[Daemon]:
        """A running daemon, killed at the end if it still runs. ``ready``: wait until it serves.

        ``under``: a command that becomes the daemon, such as one that changes its limits first.
        """
        arguments = ["--root", str(self.root), "run", *QUICK, *flags]
        async with await _start(arguments, environ or {}, under) as process:
            daemon = Daemon(process)
            async with anyio.create_task_group() as listening:
                listening.start_soon(daemon.listen)
                try:
                    if ready:
                        await daemon.logged("ready")
                    yield daemon
                except BaseException:
                    print("\n".join(daemon.raw[-40:]))  # pytest shows it with the failure
                    raise
                finally:
                    if daemon.alive:
                        process.kill()

    @asynccontextmanager
    async def kubelet(self, **options: Any) -> AsyncIterator[FakeKubelet]:
        """A running fake kubelet."""
        async with FakeKubelet(self.root, **options) as kubelet:
            yield kubelet

    @asynccontextmanager
    async def running(
        self, *flags: str, listed: Mapping[str, int]
    ) -> AsyncIterator[tuple[Daemon, FakeKubelet]]:
        """Daemon and kubelet, when the kubelet has these resources with that many devices."""
        async with self.kubelet() as kubelet, self.daemon(*flags) as daemon:
            for resource, devices in listed.items():
                await kubelet.until_listed(resource, devices, PATIENCE)
            yield daemon, kubelet

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One run of ``nodeagent --root ROOT ARGUMENTS``."""
        return await run("--root", str(self.root), *arguments)

    async def until_nothing_is_to_do(self) -> None:
        """Wait until the plan says so: of a host that changes, the daemon may have seen a part alone."""
        with anyio.fail_after(PATIENCE):
            while "nothing to do" not in (await self.command("plan")).stdout:  # noqa: ASYNC110 - a command
                await anyio.sleep(POLL)

    async def status(self) -> dict[str, Any]:
        """What the daemon tells of itself, as soon as it can be asked: bound is not yet listening."""
        path = str(self.root / "run/nodeagent/status.sock")
        with anyio.fail_after(PATIENCE):
            while True:
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    found: dict[str, Any] = await threads.call(sockets.ask, path, "/status", 5.0)
                    return found
                await anyio.sleep(POLL)

    async def until_told(
        self, condition: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE
    ) -> dict[str, Any]:
        """Wait until the daemon's status is as wanted. Raises TimeoutError."""
        with anyio.fail_after(seconds):
            while True:
                document = await self.status()
                if condition(document):
                    return document
                await anyio.sleep(POLL)

    def sockets(self) -> list[str]:
        """Our sockets in the kubelet's directory."""
        return sorted(path.name for path in self.plugins.glob("nodeagent-*.sock"))


async def _start(arguments: Sequence[str], environ: Mapping[str, str], under: Sequence[str]) -> Process:
    """Start nodeagent by fork; by exec below another command, or with variables of the interpreter."""
    whole = {**os.environ, **environ}
    if under or any(name.startswith("PYTHON") for name in environ):
        command = [*under, sys.executable, "-m", "nodeagent", *arguments]
        return await anyio.open_process(command, stdout=subprocess.DEVNULL, env=whole)
    return forkserver.start(arguments, whole)


EXEC = ("env",)  # as ``under``: a process that has loaded only what it needs, and whose memory is its own
QUICK = (
    *("--log-format", "json", "--timing-settle", "300ms", "--timing-holders", "200ms"),
    *("--http-listen", ""),  # one port for all daemons of this machine
)


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One run of ``nodeagent ARGUMENTS`` to its end; some make dozens of writes, each a process."""
    with anyio.fail_after(2 * PATIENCE):
        return await threads.call(forkserver.run, arguments, os.environ)


def health(kubelet: FakeKubelet, resource: str) -> dict[str, str]:
    """Id → health in the last list that the kubelet has; {} without one."""
    lists = kubelet.statistics.lists.get(resource)
    return lists[-1].health if lists else {}


def healths(lists: Sequence[DeviceList]) -> list[dict[str, str]]:
    """The healths of lists."""
    return [seen.health for seen in lists]


async def until_health(kubelet: FakeKubelet, resource: str, device: str, wanted: str | None) -> None:
    """Wait until the kubelet was told so of a device; None: that it is not listed."""
    await kubelet.until(lambda: health(kubelet, resource).get(device) == wanted, PATIENCE)


def socket_of(kubelet: FakeKubelet, resource: str) -> Path:
    """The socket under which the resource was registered last."""
    return kubelet.paths.plugins / kubelet.statistics.accepted(resource)[-1].endpoint


@asynccontextmanager
async def client_of(
    kubelet: FakeKubelet, resource: str, authority: str = "localhost"
) -> AsyncIterator[SocketChannel]:
    """A second connection to the plugin of a resource."""
    channel = SocketChannel(socket_of(kubelet, resource), authority=authority)
    try:
        await channel.__connect__()
        yield channel
    finally:
        channel.close()
        await anyio.lowlevel.checkpoint()


async def allocate(
    kubelet: FakeKubelet, resource: str, *containers: Sequence[str]
) -> list[v1beta1.ContainerAllocateResponse]:
    """One Allocate with these ids per container, as the kubelet would send it. Raises GRPCError."""
    request = v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest(list(ids)) for ids in containers])
    async with client_of(kubelet, resource) as channel:
        answer = await v1beta1.DevicePluginStub(channel).allocate(request, timeout=30)
    return list(answer.container_responses)


def pod(name: str, *containers: dict[str, int], **more: Any) -> Pod:
    """A pod in namespace ``ns`` that asks for resources, per container."""
    return Pod("ns", name, list(containers), **more)


async def within(seconds: float, wait: Awaitable[Any]) -> Any:
    """The awaited value; raises TimeoutError."""
    with anyio.fail_after(seconds):
        return await wait
