# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet's plugin watcher: plugins that announce themselves by a socket in a directory.

Follows pkg/kubelet/pluginmanager of Kubernetes 1.36, only faster: a socket whose name has no dot in front is
asked GetInfo, used like a registered plugin and told the outcome; when the file goes the plugin goes; what
fails is tried again. A stream that ends while the file stays is not registered again.
"""

from __future__ import annotations

import stat
from pathlib import Path

import anyio
from grpclib.exceptions import GRPCError

from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.grpc import RPC_ERRORS, SocketChannel, in_own_task
from nodeagent.sim.kubelet.clients import Clients, is_extended_resource_name
from nodeagent.sim.kubelet.state import Registration, State

RECONCILE = 0.1  # seconds; the real one takes 1
INFO_LIMIT = 1.0
NOTIFY_LIMIT = 5.0
FIRST_RETRY = 0.5


class PluginWatcher:
    """What one run of the kubelet knows of the directory."""

    def __init__(self, state: State, clients: Clients) -> None:
        self._state = state
        self._clients = clients
        self._used: dict[Path, tuple[tuple[int, int], str]] = {}  # file → identity, resource
        self._failed: dict[Path, tuple[float, float]] = {}  # file → next try (the loop's time), pause

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self.one_turn()
            await anyio.sleep(RECONCILE)

    async def one_turn(self) -> None:
        """Drop what has gone or was made anew, then try what is new."""
        sockets = _sockets(self._state.paths.registry)
        for path, (identity, resource) in tuple(self._used.items()):
            if sockets.get(path) != identity:
                del self._used[path]
                self._clients.disconnect(resource)
        for path, identity in sockets.items():
            due, _ = self._failed.get(path, (0.0, 0.0))
            if path not in self._used and anyio.current_time() >= due:
                await self._try(path, identity)

    async def _try(self, path: Path, identity: tuple[int, int]) -> None:
        channel = SocketChannel(path, authority=str(path).replace("/", "%2F"))
        try:
            await self._handshake(path, identity, pluginregistration.RegistrationStub(channel))
        except RPC_ERRORS:
            _, pause = self._failed.get(path, (0.0, FIRST_RETRY / 2))
            self._failed[path] = (anyio.current_time() + pause * 2, pause * 2)
        else:
            self._failed.pop(path, None)
        finally:
            channel.close()
            self._state.changed()

    async def _handshake(
        self, path: Path, identity: tuple[int, int], stub: pluginregistration.RegistrationStub
    ) -> None:
        """GetInfo, connect, tell. :raises ConnectionError: if the plugin is not taken."""
        info = await in_own_task(stub.get_info(timeout=INFO_LIMIT))
        seen = Registration(info.name, info.endpoint or str(path), anyio.current_time())
        self._state.statistics.registrations.append(seen)
        try:
            _check(info)
            await self._clients.connect(info.name, Path(seen.endpoint))
        except (ValueError, GRPCError) as error:
            seen.refusal = str(error)
            status = pluginregistration.RegistrationStatus(False, seen.refusal)
            await in_own_task(stub.notify_registration_status(status, timeout=NOTIFY_LIMIT))
            raise ConnectionError(seen.refusal) from error
        self._used[path] = (identity, info.name)
        status = pluginregistration.RegistrationStatus(True)
        await in_own_task(stub.notify_registration_status(status, timeout=NOTIFY_LIMIT))


def _check(info: pluginregistration.PluginInfo) -> None:
    """Check what the device manager checks. :raises ValueError: if it would not take the plugin."""
    if info.type != "DevicePlugin":
        raise ValueError(f"no handler registered for plugin type: {info.type}")
    if "v1beta1" not in info.supported_versions:
        raise ValueError("manager does not support the plugin's versions")
    if not is_extended_resource_name(info.name):
        raise ValueError(f"invalid name of device plugin socket: the name {info.name!r} is invalid")


def _sockets(directory: Path) -> dict[Path, tuple[int, int]]:
    """Sockets without a dot in front, with inode and time: a new one under an old name differs."""
    sockets = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # it went after it was listed
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            sockets[path] = (status.st_ino, status.st_mtime_ns)
    return sockets
