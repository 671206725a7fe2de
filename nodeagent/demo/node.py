# SPDX-License-Identifier: Apache-2.0
"""A node of the demo: a simulated host in a temporary directory, a fake kubelet, the real daemon, the screen.

The daemon is a separate process, started as an administrator would start it. The demo reads the capacities
from the kubelet, and the reasons from the daemon's status socket. The screen shows each expected effect
before the demo waits for it, so that the user always knows the next event. At the end of the ``async with``
block all of these parts are stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import anyio
import anyio.to_thread
from anyio.abc import Process
from grpclib.exceptions import GRPCError

import nodeagent
from nodeagent.base import sockets, supervise, terminal
from nodeagent.base.errors import NodeagentError
from nodeagent.base.terminal import BOLD, DIM, GREEN, RED, Paint, table
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel, in_own_task
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from nodeagent.sim.nodes import demo_node

CONFIG_PATH = "/etc/nodeagent/config.yaml"
STATUS_PATH = "/run/nodeagent/status.sock"
LOG_NAME = "nodeagent.log"
SOURCE = Path(nodeagent.__file__).parent.parent  # a directory from which the package can be run
IS_INSTALLED = SOURCE.is_relative_to("/usr/lib/nodeagent")  # a package has installed the command nodeagent
_END_LIMIT = 5.0  # seconds until a daemon that ends is killed
_LOG_LINES = 15
_POLL = 0.02  # seconds between two requests to the status socket
_FOREIGN = ("NODEAGENT_", "NOTIFY_SOCKET", "WATCHDOG_", "JOURNAL_STREAM")  # set for another process
_WIDTH = 79  # the column of the verdict if the output is not a terminal
_VERDICT = len(" ok, 12345 ms ")
_INDENT = " " * 11

Document = Mapping[str, Any]


class DemoFailed(NodeagentError):
    """Raised when an expected effect of the demo does not happen."""


def check(kept: bool, otherwise: str) -> None:
    """Check an expectation. :raises DemoFailed: with the text ``otherwise``, if ``kept`` is false."""
    if not kept:
        raise DemoFailed(otherwise)


class Screen:
    """Prints numbered steps, actions, expected effects, and the milliseconds from an action to its effect.

    The output is plain text for pipes; on a terminal it is at most ``columns`` wide, and coloured if
    supported.
    """

    def __init__(self, stream: TextIO, paint: Paint, columns: int = 0) -> None:
        self._stream = stream
        self._paint = paint
        self._columns = columns
        self._steps = 0
        self._expected = ""
        self._began = self._done_at = time.monotonic()

    @property
    def where(self) -> str:
        """Return the current step and the last expectation, for the message of a failure."""
        return f"step {self._steps}, expected: {self._expected or 'nothing yet'}"

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._steps += 1
        self.say(self._paint(f"\n{self._steps}. {title}", BOLD))

    def do(self, action: str) -> None:
        """Print the action that follows, and start the clock."""
        self.say(terminal.fold(f"   do      {action}", self._columns))
        self._done_at = time.monotonic()

    @contextmanager
    def expect(self, effect: str) -> Iterator[None]:
        """Print the effect that the ``with`` block waits for; the verdict follows on the same line."""
        self._expected = effect
        width = self._columns - _VERDICT if self._columns else _WIDTH
        *others, last = terminal.fold(f"   expect  {effect}", self._columns and width).split("\n")
        self._write("\n".join([*others, last.ljust(width)]))
        try:
            yield
        except DemoFailed:
            self.say(f" {self._paint('NO', RED)}")
            raise
        taken = (time.monotonic() - self._done_at) * 1000
        self.say(f" {self._paint('ok', GREEN)}, {taken:.0f} ms")

    def end(self) -> None:
        """Print that the demo has succeeded, and its duration."""
        self.say(self._paint(f"\nAll steps succeeded in {time.monotonic() - self._began:.1f} s.", GREEN))

    def show(self, text: str) -> None:
        """Print the output of another program below the last line."""
        self.say(self._paint(terminal.fold(textwrap.indent(text.strip("\n"), _INDENT), self._columns), DIM))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table."""
        self.say(table(head, rows, indent=_INDENT))

    def say(self, text: str) -> None:
        """Print one or more lines."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class DemoNode:
    """The host, the kubelet, the daemon and the screen. ``patience``: timeout of each effect in seconds.

    With ``page`` the daemon serves its status page on a free port.
    """

    def __init__(
        self, host: SimulatedHost, kubelet: FakeKubelet, screen: Screen, patience: float, page: bool
    ) -> None:
        self.host = host
        self.kubelet = kubelet
        self.screen = screen
        self.patience = patience
        self.page = page
        self._daemon: Process | None = None

    def configure(self, text: str) -> None:
        """Write the daemon's configuration file."""
        files.write(self.host.path(CONFIG_PATH), text)

    async def start_daemon(self) -> None:
        """Run ``nodeagent run`` on the host; the daemon logs to a file in the host's directory."""
        http = ("--http-listen", "127.0.0.1:0", "--http-page", "true") if self.page else ("--http-listen", "")
        command = self.command("run", "--log-format", "text", *http)
        log = os.open(f"{self.host.directory}/{LOG_NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._daemon = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        finally:
            os.close(log)

    async def end_daemon(self) -> int | None:
        """Send SIGTERM; return the daemon's exit code, or None if it had to be killed or never ran."""
        process, self._daemon = self._daemon, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_END_LIMIT):
            return await process.wait()
        process.kill()
        await process.wait()
        return None

    def command(self, *words: str) -> list[str]:
        """Return the command line of a nodeagent command for this host."""
        return [sys.executable, "-m", "nodeagent", "--root", self.host.directory, *words]

    async def run(self, *words: str) -> str:
        """Return the output of a nodeagent command. :raises DemoFailed: if the command fails."""
        done = await anyio.run_process(self.command(*words), check=False, env=_environment())
        if done.returncode:
            raise DemoFailed(f"nodeagent {' '.join(words)} failed", done.stderr.decode().strip())
        return done.stdout.decode()

    async def expect(self, effect: str, state: Callable[[], bool]) -> None:
        """Print an expected effect and wait for it. :raises DemoFailed: if it does not happen in time."""
        with self.screen.expect(effect):
            await self.until(state)

    async def until(self, state: Callable[[], bool]) -> None:
        """Wait until the condition on the kubelet's state holds.

        :raises DemoFailed: if it does not in time.
        """
        with anyio.move_on_after(self.patience) as limit:
            while not state():
                with anyio.move_on_after(1.0):
                    await self.kubelet.until(state, self.patience + 1.0)
                self._check_alive()
        if limit.cancelled_caught:
            raise self._late("it did not happen")

    async def until_status(self, select: Callable[[Document], list[Document]], otherwise: str) -> Document:
        """Return the first selected part of the daemon's status, as soon as there is one.

        :raises DemoFailed: if there is none in time, or the daemon does not answer.
        """
        end = time.monotonic() + self.patience
        path, limit = f"{self.host.directory}{STATUS_PATH}", Timeouts().local_socket_answer
        while time.monotonic() < end:
            self._check_alive()
            try:
                document = await anyio.to_thread.run_sync(sockets.ask, path, "/status", limit)
            except (OSError, ValueError) as error:
                raise self._failed(f"the daemon's status socket does not answer: {error}") from error
            if selected := select(document):
                return selected[0]
            await anyio.sleep(_POLL)
        raise self._late(otherwise)

    async def reason(self, device_id: str, code: str) -> str:
        """Wait until the device is Unhealthy with this Reason; return the reason's text and hint."""
        device = await self.until_status(
            lambda status: [
                device
                for resource in status["resources"]
                for device in resource["devices"]
                if (device["id"], device.get("reason")) == (device_id, code)
            ],
            f"{device_id} is not listed as Unhealthy with the reason {code}",
        )
        return f"{device['message']}\n{device['hint']}".strip()

    async def change(self, state: str, card: str) -> Document:
        """Wait until the daemon reports a change in this state ("waiting", "failing") on a card."""
        return await self.until_status(
            lambda status: [change for change in status["changes"][state] if change["card"] == card],
            f"the daemon reports no {state} change of {card}",
        )

    async def page_address(self) -> str:
        """Return the address of the daemon's status page as soon as it is served."""
        served = await self.until_status(
            lambda status: [http] if "address" in (http := status.get("http", {})) else [],
            "no page is served",
        )
        return str(served["address"])

    async def until_cluster(self, *, answers: bool) -> None:
        """Wait until the daemon reports that the API server answers, or that it does not."""

        def select(status: Document) -> list[Document]:
            cluster = status.get("cluster", {})
            return [cluster] if cluster.get("enabled") and bool(cluster.get("reachable")) is answers else []

        await self.until_status(
            select, f"the daemon does not report that the cluster {'answers' if answers else 'fails'}"
        )

    async def refusal(self, resource: str, device_id: str) -> str:
        """Call Allocate for a device directly, without the kubelet; return the text of the refusal, "" if
        granted.
        """
        endpoint = self.kubelet.statistics.accepted(resource)[-1].endpoint
        channel = SocketChannel(self.kubelet.paths.plugins / endpoint)
        request = v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest([device_id])])
        try:
            await in_own_task(v1beta1.DevicePluginStub(channel).allocate(request, timeout=self.patience))
        except GRPCError as error:
            return str(error.message)
        finally:
            channel.close()
        return ""

    def serves(self, capacities: Mapping[str, tuple[int, int]]) -> bool:
        """Return True if each resource has one ListAndWatch stream, this capacity and this allocatable."""
        streams = self.kubelet.statistics.streams
        return all(
            streams.get(name) == 1 and self.kubelet.capacity(name) == numbers
            for name, numbers in capacities.items()
        )

    async def admit(self, name: str, resource: str, count: int) -> Pod:
        """Create a pod that requests devices, and wait until it runs. :raises DemoFailed: if it does not."""
        pod = Pod("demo", name, [{resource: count}])
        self.screen.do(f"create pod {pod.key} with {count} x {resource}")
        with self.screen.expect("it runs with the requested devices"):
            await self.kubelet.admit(pod)
            granted = pod.phase == "Running" and len(pod.result.ids.get(resource, ())) == count
            check(granted and pod.result.error is None, f"{pod.phase} {pod.message} {pod.results}")
        return pod

    def delete(self, pod: Pod) -> None:
        """Delete a pod."""
        self.screen.do(f"delete pod {pod.key}")
        self.kubelet.delete(pod)

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to another driver."""
        self.screen.do(f"bind {address} to {driver}")
        self.host.bind(address, driver)

    async def show_reason(self, device_id: str, code: str) -> None:
        """Print why a device is Unhealthy, as soon as it has this Reason."""
        self.screen.show(f"{device_id}: {await self.reason(device_id, code)}")

    def show_container(self, pod: Pod) -> None:
        """Print the variables and device nodes of a pod's container."""
        envs = [f"env   {key}={value}" for key, value in pod.result.envs.items()]
        nodes = [f"node  {inside}  {permissions}" for _, inside, permissions in pod.result.devices]
        self.screen.show("\n".join(["its container gets", *envs, *nodes]))

    def show_capacity(self, *resources: str) -> None:
        """Print the resources in the form of the Node object."""
        rows = [(name, *map(str, self.kubelet.capacity(name))) for name in resources]
        self.screen.table(("RESOURCE", "CAPACITY", "ALLOCATABLE"), rows)

    def _check_alive(self) -> None:
        """Check the processes.

        :raises DemoFailed: if the daemon has ended, or a real kubelet would have crashed.
        """
        if self.kubelet.life.crashed:
            raise self._failed(f"a real kubelet would have crashed: {self.kubelet.life.crashed}")
        if self._daemon is not None and self._daemon.returncode is not None:
            raise self._failed(f"the daemon has ended with code {self._daemon.returncode}")

    def _late(self, problem: str) -> DemoFailed:
        return self._failed(f"{problem} within {self.patience:g} s")

    def _failed(self, problem: str) -> DemoFailed:
        """Return a failure that includes the end of the daemon's log."""
        log = files.read(f"{self.host.directory}/{LOG_NAME}").decode(errors="replace")
        lines = log.splitlines()[-_LOG_LINES:]
        return DemoFailed(problem, "\n".join(["the end of the daemon's log:", *lines]))


@asynccontextmanager
async def open_node(
    screen: Screen,
    patience: float,
    make: Callable[[str], SimulatedHost] = demo_node,
    page: bool = False,
) -> AsyncIterator[DemoNode]:
    """Create the host in a temporary directory and start the kubelet; the caller starts the daemon."""
    try:
        with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
            host = make(directory)
            async with FakeKubelet(directory) as kubelet:
                node = DemoNode(host, kubelet, screen, patience, page)
                try:
                    yield node
                finally:
                    with anyio.CancelScope(shield=True):
                        await node.end_daemon()
    except BaseExceptionGroup as group:  # every error that leaves the kubelet's task group is one
        for kind in (DemoFailed, BrokenPipeError):
            if (one := supervise.only_error(group, kind)) is not None:
                raise one from group
        raise


def _environment() -> dict[str, str]:
    """Return the environment without variables for other daemons, and with this package in PYTHONPATH."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    paths = (str(SOURCE), kept.get("PYTHONPATH", ""))
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
