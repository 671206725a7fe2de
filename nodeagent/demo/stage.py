# SPDX-License-Identifier: Apache-2.0
"""Where the demo plays: the documentation's node in a directory, a stand-in kubelet, and the real daemon.

The daemon is a process of its own, started as an administrator would start it; it writes its log to a file
in the same directory. What is true is asked of the kubelet, and the Reasons of the daemon's status socket.
Everything ends with the ``async with`` block, whatever happens in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import Process
from grpclib.exceptions import GRPCError

import nodeagent
from nodeagent.base import jsonsocket
from nodeagent.base.errors import NodeagentError
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc.channel import SocketChannel
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.nodes import demo_node

GPU = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
USB = "nvidia.com/gpu-usb"
TESLA = "nvidia.com/TU104GL_TESLA_T4"

CONFIG_PATH = "/etc/nodeagent/config.yaml"
CONFIG = f"""\
apiVersion: nodeagent/v1
resources:
  - {{name: {USB}, pci: [{{vendors: ["10de"], devices: ["1ada"]}}]}}
timing: {{settle: 500ms, holders: 500ms}}   # quicker than usual: this is a demo
"""
STATUS_PATH = "/run/nodeagent/status.sock"
LOG_NAME = "nodeagent.log"

SOURCE = Path(nodeagent.__file__).parent.parent  # a directory from which the package can be run
_POLL = 0.02  # seconds between two questions to the status socket
_END_LIMIT = 5.0  # seconds that the daemon has for its end
_FOREIGN = ("NODEAGENT_", "NOTIFY_SOCKET", "WATCHDOG_", "JOURNAL_STREAM")  # not meant for this daemon


class DemoFailed(NodeagentError):
    """Raised when something that the demo promises did not happen."""


class Stage:
    """The host, the kubelet and the daemon, and ways to wait for what they do."""

    def __init__(self, host: SimulatedHost, kubelet: Kubelet, patience: float) -> None:
        self.host = host
        self.kubelet = kubelet
        self.patience = patience
        self._process: Process | None = None

    def configure(self, text: str) -> None:
        """Write the daemon's configuration file."""
        files.write(self.host.path(CONFIG_PATH), text)

    async def start_daemon(self) -> None:
        """Run ``nodeagent run`` on the host."""
        command = self.command("run", "--log-format", "text")
        log = os.open(self.host.path(f"/{LOG_NAME}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        finally:
            os.close(log)

    async def end_daemon(self) -> int | None:
        """Ask the daemon to end; its exit code, or None if it had to be killed (or never ran)."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_END_LIMIT):
            return await process.wait()
        process.kill()
        await process.wait()
        return None

    async def ask(self, *words: str) -> str:
        """The answer of a verb; raises DemoFailed if it fails."""
        done = await anyio.run_process(self.command(*words), check=False, env=_environment())
        if done.returncode:
            raise DemoFailed(f"nodeagent {' '.join(words)} failed", done.stderr.decode().strip())
        return done.stdout.decode()

    def command(self, *words: str) -> list[str]:
        """The command line of a verb on this host."""
        return [sys.executable, "-m", "nodeagent", "--root", self.host.directory, *words]

    async def until(self, state: Callable[[], bool]) -> None:
        """Wait until what the kubelet knows is so; raises DemoFailed if it does not become so."""
        with anyio.move_on_after(self.patience) as limit:
            while not state():
                with anyio.move_on_after(1.0):
                    await self.kubelet.until(state, self.patience + 1.0)
                self._check_alive()
        if limit.cancelled_caught:
            raise self._late("it did not happen")

    async def reason(self, device_id: str, code: str) -> str:
        """Wait until the daemon gives this Reason for the device; what it says, and what it advises."""
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            device = await self._device(device_id)
            if device.get("reason") == code:
                return f"{device['what']}\n{device['hint']}".strip()
            await anyio.sleep(_POLL)
        raise self._late(f"{device_id} is not said to be Unhealthy by {code}")

    async def told(self) -> Mapping[str, Any]:
        """What the daemon says of itself now."""
        self._check_alive()
        try:
            found: Mapping[str, Any] = await anyio.to_thread.run_sync(
                jsonsocket.ask, self.host.path(STATUS_PATH)
            )
        except (OSError, ValueError) as error:
            raise DemoFailed(f"the daemon's status socket does not answer: {error}", self._log()) from error
        return found

    async def change(self, kind: str, card: str) -> Mapping[str, Any]:
        """Wait until the daemon tells of a change of this kind ("waiting", "failing") on a card."""
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            document = await self.told()
            found = [each for each in document["changes"][kind] if each["card"] == card]
            if found:
                return dict(found[0])
            await anyio.sleep(_POLL)
        raise self._late(f"nothing is told to be {kind} on {card}")

    async def _device(self, device_id: str) -> Mapping[str, Any]:
        """What the daemon says of a device; empty if it does not list it."""
        document = await self.told()
        found = (each for resource in document["resources"] for each in resource["devices"])
        return next((device for device in found if device["id"] == device_id), {})

    async def refusal(self, resource: str, device_id: str) -> str:
        """Ask the daemon for a device behind the kubelet's back; why it refuses, "" if it does not."""
        endpoint = self.kubelet.statistics.accepted(resource)[-1].endpoint
        channel = SocketChannel(self.kubelet.socket.parent / endpoint)
        request = v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest([device_id])])
        try:
            await v1beta1.DevicePluginStub(channel).allocate(request, timeout=self.patience)
        except GRPCError as error:
            return str(error.message)
        finally:
            channel.close()
        return ""

    def serves(self, capacities: Mapping[str, tuple[int, int]]) -> bool:
        """True if each resource has one stream, and the capacity and allocatable that are given."""
        streams = self.kubelet.statistics.streams
        return all(
            streams.get(name) == 1 and self.kubelet.capacity(name) == numbers
            for name, numbers in capacities.items()
        )

    def _check_alive(self) -> None:
        if self.kubelet.life.crashed:
            raise DemoFailed(f"a real kubelet would have crashed: {self.kubelet.life.crashed}", self._log())
        if self._process is not None and self._process.returncode is not None:
            raise DemoFailed(f"the daemon has ended with code {self._process.returncode}", self._log())

    def _late(self, what: str) -> DemoFailed:
        return DemoFailed(f"{what} within {self.patience:g} s", self._log())

    def _log(self) -> str:
        lines = files.read(self.host.path(f"/{LOG_NAME}")).decode(errors="replace").splitlines()
        return "\n".join(["the end of the daemon's log:", *lines[-15:]])


@asynccontextmanager
async def opened(
    directory: str, patience: float, make: Callable[[str], SimulatedHost] = demo_node
) -> AsyncIterator[Stage]:
    """Build the host in ``directory`` and start the kubelet; the daemon is for the caller to start.

    ``patience``: seconds after which what did not happen counts as failed. ``make`` builds another host.
    """
    host = make(directory)
    async with Kubelet(directory) as kubelet:
        stage = Stage(host, kubelet, patience)
        stage.configure(CONFIG)
        try:
            yield stage
        finally:
            with anyio.CancelScope(shield=True):
                await stage.end_daemon()


def _environment() -> dict[str, str]:
    """Ours, without what is meant for another nodeagent; the package is found from any directory."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    paths = (str(SOURCE), kept.get("PYTHONPATH", ""))
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
