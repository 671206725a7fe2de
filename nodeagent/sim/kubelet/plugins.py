# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet as a client of device plugins: checks registrations, connects back, and reads lists.

``Clients`` follows pkg/kubelet/cm/devicemanager/plugin/v1beta1 (server.go, handler.go, client.go) of
Kubernetes 1.36: there is one client per resource name; a new client replaces the old one before it
connects; and the end of any stream of a resource disconnects the resource's current client, even if the
stream is older.

``PluginWatcher`` does the same as pkg/kubelet/pluginmanager, but with shorter pauses. It calls GetInfo on
each socket in plugins_registry whose name has no leading dot, uses the plugin like a registered one, and
notifies it of the result. ``PluginWatcher`` removes a plugin when the file of its socket is removed, and
retries failed registrations. A plugin whose stream ends while the file remains is not registered again.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from grpclib.const import Cardinality, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.metadata import Deadline

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.grpc import RPC_ERRORS, SocketChannel, in_own_task
from nodeagent.sim.kubelet.state import ListedDevice, Registration, State

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
RECEIVE_LIMIT = 4 * 1024 * 1024  # the default of grpc-go
DIAL_LIMIT = 10.0
RECONCILE = 0.1  # seconds between two scans of plugins_registry; the real interval is 1
INFO_LIMIT = 1.0
NOTIFY_LIMIT = 5.0
FIRST_RETRY = 0.5

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_extended_resource_name(name: str) -> bool:
    """Return True for names that v1helper.IsExtendedResourceName accepts; only these may register."""
    domain, slash, rest = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    domain_fits = len(domain) <= 253 - len("requests.") and _DOMAIN.fullmatch(domain)
    return bool(domain_fits and len(rest) <= 63 and _NAME.fullmatch(rest))


def go_text(error: BaseException) -> str:
    """Return the text of an RPC error as grpc-go writes it."""
    if isinstance(error, GRPCError):
        code = error.status.name.title().replace("_", "").replace("Cancelled", "Canceled")
        return f"rpc error: code = {code} desc = {error.message or ''}"
    if isinstance(error, TimeoutError):
        return "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    return "rpc error: code = Unavailable desc = error reading from server: EOF"


class _LimitedCodec(ProtoCodec):
    """A codec that rejects messages above grpc-go's limit, and keeps the size of the last one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0

    def decode(self, data: bytes, message_type: Any) -> Any:
        """Decode a message up to the size limit, as grpclib's ProtoCodec does."""
        self.size = len(data)
        if self.size > self._limit:
            text = f"grpc: received message larger than max ({self.size} vs. {self._limit})"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        return super().decode(data, message_type)


@dataclass(eq=False, slots=True)
class Client:
    """One registered plugin and the connection to it."""

    resource: str
    channel: SocketChannel
    codec: _LimitedCodec
    options: v1beta1.DevicePluginOptions
    reading: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def stub(self) -> v1beta1.DevicePluginStub:
        """Return the stub for the plugin's methods."""
        return v1beta1.DevicePluginStub(self.channel)


class Clients:
    """The registered plugins in one run of the kubelet."""

    def __init__(self, state: State, tasks: TaskGroup) -> None:
        self._state = state
        self._tasks = tasks
        self._all: set[Client] = set()
        self._current: dict[str, Client] = {}
        self._closed = False
        self.endpoints: dict[str, Client] = {}  # the clients that receive Allocate calls

    async def register(self, request: v1beta1.RegisterRequest, deadline: Deadline | None) -> None:
        """Handle a Register call. :raises GRPCError: UNKNOWN, with the real kubelet's text."""
        name = request.resource_name
        seen = Registration(name, request.endpoint, anyio.current_time())
        try:
            self._check(request)
            path = self._state.paths.plugins / request.endpoint.lstrip("/")
            await self.connect(name, path, deadline)
        except GRPCError as error:
            seen.refusal = error.message
            raise
        finally:
            self._state.statistics.registrations.append(seen)
            self._state.changed()

    def _check(self, request: v1beta1.RegisterRequest) -> None:
        """Check a registration: first for an injected refusal, then version and name, as the kubelet does."""
        refusal = self._state.faults.get("refuse-register", request.resource_name)
        if refusal is not None:
            raise GRPCError(Status.UNKNOWN, str(refusal))
        if request.version != "v1beta1":
            text = f'requested API version "{request.version}" is not supported by kubelet.'
            raise GRPCError(Status.UNKNOWN, text + ' Supported version is ["v1beta1"]')
        if not is_extended_resource_name(request.resource_name):
            raise GRPCError(Status.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')

    async def connect(self, resource: str, path: Path, deadline: Deadline | None = None) -> None:
        """Connect, request the options, and start to read lists.

        :raises GRPCError: UNKNOWN, if that fails.
        """
        codec = _LimitedCodec(self._state.faults.get("receive-limit", resource) or RECEIVE_LIMIT)
        channel = SocketChannel(path, codec=codec)
        try:
            await _dial(channel)
            options = await self._options(channel, deadline)
        except BaseException:
            self._current.pop(resource, None)  # a failure also removes the previous plugin
            channel.close()
            raise
        if self._closed:  # the process has ended meanwhile
            channel.close()
            raise GRPCError(Status.UNAVAILABLE, "the kubelet has stopped")
        client = Client(resource, channel, codec, options)
        self._all.add(client)
        self._current[resource] = self.endpoints[resource] = client
        self._state.table.mark_connected(resource)
        if not self._state.faults.get("no-list", resource):
            self._tasks.start_soon(self._read, client, name=f"lists of {resource}")

    async def use(self, info: pluginregistration.PluginInfo, path: Path) -> Callable[[], None]:
        """Use a plugin that was found in plugins_registry; return the function that ends this.

        :raises ValueError: if the plugin is rejected.
        """
        _check(info)
        await self.connect(info.name, Path(info.endpoint or path))
        return partial(self.disconnect, info.name)

    async def _options(
        self, channel: SocketChannel, deadline: Deadline | None
    ) -> v1beta1.DevicePluginOptions:
        try:
            stub = v1beta1.DevicePluginStub(channel)
            return await in_own_task(stub.get_device_plugin_options(deadline=deadline))
        except RPC_ERRORS as error:
            text = f"failed to get device plugin options: {go_text(error)}"
            raise GRPCError(Status.UNKNOWN, text) from error

    async def _read(self, client: Client) -> None:
        """Read lists until the stream ends; then disconnect the current client, as the real kubelet does."""
        streams = self._state.statistics.streams
        try:
            with client.reading:
                await self._read_lists(client)
        finally:
            streams[client.resource] = streams.get(client.resource, 1) - 1
            self._state.changed()
        if not self._closed:
            self.disconnect(client.resource)

    async def _read_lists(self, client: Client) -> None:
        resource, state = client.resource, self._state
        streams = state.statistics.streams
        streams[resource] = streams.get(resource, 0) + 1
        try:
            async with client.channel.request(
                LIST_AND_WATCH, Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse
            ) as stream:
                await stream.send_message(v1beta1.Empty(), end=True)
                state.changed()
                while True:
                    await self._while_stalled(resource)
                    message = await stream.recv_message()
                    if message is None:
                        return
                    state.receive_list(resource, client.codec.size, _seen(message))
        except RPC_ERRORS:
            return  # the kubelet treats every end of a stream in the same way

    async def _while_stalled(self, resource: str) -> None:
        if self._state.faults.get("stalled-reader", resource):
            await self._state.until(
                lambda: not self._state.faults.get("stalled-reader", resource), timeout=float("inf")
            )

    def disconnect(self, resource: str) -> None:
        """Remove the current client of the resource, close its connection, and mark all devices Unhealthy.

        Does nothing if there is no client: after a failed Register the devices stay unchanged.
        """
        client = self._current.pop(resource, None)
        if client is None:
            return
        client.reading.cancel()
        client.channel.close()
        self._state.table.mark_lost(resource)
        self._state.changed()

    def end_stream(self, resource: str) -> None:
        """End the stream of the current client, as after a network error."""
        client = self._current.get(resource)
        if client is not None:
            client.reading.cancel()

    def close(self) -> None:
        """Close all connections, as when the process ends; devices are not marked as Unhealthy."""
        self._closed = True
        for client in self._all:
            client.reading.cancel()
            client.channel.close()


async def _dial(channel: SocketChannel) -> None:
    """Connect within ten seconds, retrying after about 1 s, 1.6 s, … as grpc-go does."""
    pause = 1.0
    with anyio.move_on_after(DIAL_LIMIT):
        while True:
            try:
                await channel.__connect__()
            except OSError:
                await anyio.sleep(pause)
                pause *= 1.6
            else:
                return
    raise GRPCError(Status.UNKNOWN, "failed to dial device plugin: context deadline exceeded")


def _seen(message: v1beta1.ListAndWatchResponse) -> tuple[ListedDevice, ...]:
    return tuple(
        ListedDevice(device.id, device.health, _nodes(device.topology)) for device in message.devices
    )


def _nodes(topology: v1beta1.TopologyInfo | None) -> tuple[int, ...] | None:
    return None if topology is None else tuple(node.id for node in topology.nodes)


Handler = Callable[[pluginregistration.PluginInfo, Path], Awaitable[Callable[[], None]]]
"""Begins to use the plugin whose socket is at the path; returns the function that ends this."""


class PluginWatcher:
    """Watches the plugins_registry directory in one run of the kubelet."""

    def __init__(self, state: State, handlers: Mapping[str, Handler]) -> None:
        """``handlers``: by plugin type, functions that begin to use a plugin."""
        self._state = state
        self._handlers = handlers
        # file → identity, function that ends the use of the plugin
        self._used: dict[Path, tuple[tuple[int, int], Callable[[], None]]] = {}
        # file → time of the next attempt on the loop's clock, pause
        self._failed: dict[Path, tuple[float, float]] = {}

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self.one_turn()
            await anyio.sleep(RECONCILE)

    async def one_turn(self) -> None:
        """Remove plugins whose socket was removed or replaced, then try new sockets."""
        sockets = _sockets(self._state.paths.registry)
        for path, (identity, end) in tuple(self._used.items()):
            if sockets.get(path) != identity:
                del self._used[path]
                end()
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
        """Call GetInfo, connect, and notify the plugin.

        :raises ConnectionError: if the plugin is rejected.
        """
        info = await in_own_task(stub.get_info(timeout=INFO_LIMIT))
        seen = Registration(info.name, info.endpoint or str(path), anyio.current_time())
        self._state.statistics.registrations.append(seen)
        try:
            handler = self._handlers.get(info.type)
            if handler is None:
                raise ValueError(f"no handler registered for plugin type: {info.type}")
            end = await handler(info, path)
        except (ValueError, GRPCError) as error:
            seen.refusal = str(error)
            status = pluginregistration.RegistrationStatus(False, seen.refusal)
            await in_own_task(stub.notify_registration_status(status, timeout=NOTIFY_LIMIT))
            raise ConnectionError(seen.refusal) from error
        self._used[path] = (identity, end)
        status = pluginregistration.RegistrationStatus(True)
        await in_own_task(stub.notify_registration_status(status, timeout=NOTIFY_LIMIT))


def _check(info: pluginregistration.PluginInfo) -> None:
    """Check the plugin info as the device manager does. :raises ValueError: if it would reject the plugin."""
    if "v1beta1" not in info.supported_versions:
        raise ValueError("manager does not support the plugin's versions")
    if not is_extended_resource_name(info.name):
        raise ValueError(f"invalid name of device plugin socket: the name {info.name!r} is invalid")


def _sockets(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return the sockets without a leading dot, with inode and time, by which a replaced socket is found."""
    sockets = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # the file was removed after it was listed
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            sockets[path] = (status.st_ino, status.st_mtime_ns)
    return sockets
