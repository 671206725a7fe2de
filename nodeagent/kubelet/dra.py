# SPDX-License-Identifier: Apache-2.0
"""Serves the DRA driver of this node to the kubelet (DRA: Dynamic Resource Allocation).

``DraPlugin`` has two sockets. The kubelet discovers the registration socket in plugins_registry, and reads
there the path of the driver socket, on which it calls NodePrepareResources and NodeUnprepareResources. The
agent implements ``ClaimAnswers``, which answers these calls. On the driver socket the kubelet also reads a
stream with the health of all devices, for the status of pods. This module implements the protocol, and makes
no decisions about claims or devices.

The names of both sockets are the same in each life. The kubelet connects again by itself, also after its own
restart; it unregisters the driver when the registration socket is removed. A pod that starts while the driver
is away for a second has its devices only a minute later, because the kubelet (1.36) repeats a failed Prepare
after 60 to 90 s. Therefore systemd keeps both sockets while the service restarts, and the calls wait there.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from nodeagent.base import hints, log, sockets
from nodeagent.base.errors import KubeletUnavailable, bounded
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import only_error
from nodeagent.base.systemd import NO_STORE, DescriptorStore
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kubelet.api.dra import v1
from nodeagent.kubelet.api.drahealth import v1 as health_v1
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.grpc import Servable, SocketServer
from nodeagent.kubelet.socket_dir import DRA_SOCKET, SocketDir
from nodeagent.model.claim import ClaimDevice, ClaimRef

T = TypeVar("T")

PLUGIN_TYPE = "DRAPlugin"
SOCKET = "dra.sock"
DRIVER_VERSIONS = ("v1", "v1beta1")  # the kubelet uses the first of ours that it knows
HEALTH_VERSIONS = ("v1", "v1alpha1")
DRIVER_SERVICE = "k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
HEALTH_SERVICE = "{version}.DRAResourceHealth"
_KUBELET_LOG = "read the kubelet's log: journalctl -u kubelet"
_DIRECTORIES = (
    "kubelet.pluginsRegistryDir must be plugins_registry below the --root-dir of a kubelet that runs"
)
_MOUNT = "the Helm chart mounts it with dra.enabled: true"
LONGEST_MESSAGE = 1024  # characters of a health message (pkg/kubelet/cm/dra/healthinfo.go)


class Health(NamedTuple):
    """The health of one device, with a message for the status of the pod."""

    healthy: bool
    message: str = ""


class ClaimAnswers(Protocol):
    """The interface that the agent implements for the driver."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Sequence[ClaimDevice] | str]:
        """Return the prepared devices of each claim by its UID, or an error text."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Return an error text for each claim by its UID; "" for success."""
        ...


class DraPlugin:
    """The driver's sockets, served and served again until cancelled."""

    name = "dra plugin"

    def __init__(
        self,
        driver: str,
        find_pool: Callable[[], str],
        answers: ClaimAnswers,
        registry: str,
        watcher: DirectoryWatcher,
        timeouts: Timeouts,
        *,
        prefix: str = "",
        store: DescriptorStore = NO_STORE,
    ) -> None:
        """Create the plugin.

        ``find_pool`` returns the name of the pool, which changes with the name of the Node. ``registry`` is
        the kubelet's plugins_registry directory; the driver socket is in the directory ``plugins`` beside it.
        Both are paths as the kubelet uses them, without the root ``prefix``. ``store`` keeps both sockets
        while the service restarts.
        """
        self.driver = driver
        # True when the kubelet has accepted the driver; touched at each registration
        self.registered: Latest[bool] = Latest(False)
        self.health: Latest[Mapping[str, Health]] = Latest({})  # by the device's name in the pool
        self.endpoint = f"{Path(registry).parent}/plugins/{driver}/{SOCKET}"
        self._find_pool = find_pool
        self._answers = answers
        self._directory = SocketDir(f"{prefix}{registry}", watcher, exclusive=False)
        self._socket = Path(f"{prefix}{self.endpoint}")
        self._timeouts = timeouts
        self._news: Latest[None] = Latest(None)  # touched when a socket may have been removed
        self._store = store
        self._stored = False  # the store has the sockets of ``_servers``
        self._servers: tuple[SocketServer, ...] = ()
        self._refusal = ""  # the kubelet's last refusal, unless it has accepted the driver since then
        self._failure: KubeletUnavailable | None = None  # why the sockets could not be served
        self._since = math.inf  # the start of ``run``, later that of the servers

    async def run(self) -> None:
        """Serve both sockets until cancelled, and create them again if one of them is removed.

        :raises KubeletUnavailable: if a socket cannot be created.
        """
        directory, self._since = self._directory, anyio.current_time()
        directory.open()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(directory.run, self._timeouts.kubelet_directory_poll, name="poll")
                with directory.listening(lambda _: self._news.touch()):
                    while True:
                        await self._wait_until(lambda: directory.exists)
                        await self._serve()
        except BaseExceptionGroup as group:
            self._failure = only_error(group, KubeletUnavailable)
            if self._failure is None:
                raise
            raise self._failure from group
        finally:
            directory.close()

    def find_problem(self) -> tuple[str, str]:
        """Return why the driver is not registered, and the fix; "" if it is, or may be within seconds."""
        if self.registered.get():
            return "", ""
        if self._failure is not None:
            return self._failure.what, self._failure.hint
        if self._refusal:
            return self._refusal, _KUBELET_LOG
        if anyio.current_time() < self._since + self._timeouts.dra_registration:
            return "", ""
        if not self._directory.exists:
            return f"{self._directory.path} does not exist", _DIRECTORIES
        return f"the kubelet does not use {self._directory.path}/{DRA_SOCKET}", _DIRECTORIES

    async def _serve(self) -> None:
        """Serve the driver, then announce it, until one of the two sockets is removed."""
        async with anyio.create_task_group() as tasks:
            service = _Driver(self._answers, tasks)
            driver, registration = self._servers = self._create_servers(service)
            try:
                await driver.start()
                await registration.start()
                self._failure, self._since = None, anyio.current_time()
                self.registered.set(self._stored)  # the kubelet does not register the same socket again
                await self._wait_until(lambda: not (driver.present and registration.present))
            finally:
                keep = self._stored and driver.present and registration.present
                self.registered.set(False)
                await driver.stop(self._timeouts.allocate_at_shutdown, keep_file=keep)
                service.cancel_calls()
                # when its file is removed, the kubelet closes its connection to the driver
                await registration.stop(0, keep_file=keep)

    def _create_servers(self, service: Servable) -> tuple[SocketServer, SocketServer]:
        directory, timeouts = self._socket.parent, self._timeouts
        driver_socket, registration_socket = self._take_stored()
        self._stored = driver_socket is not None
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            if not self._stored:
                self._socket.unlink(missing_ok=True)  # of a killed process
        except OSError as error:
            what = f"cannot serve on {self._socket}: {hints.strerror(error)}"
            raise KubeletUnavailable(what, hints.for_errno(error, "listen", _MOUNT)) from error
        reports = _HealthReports(self._find_pool, self.health, timeouts.dra_health_repeat)
        driver = SocketServer(directory, SOCKET, [service, reports], timeouts, passed=driver_socket)
        registration = SocketServer(
            self._directory.path,
            f".{self._directory.new_name(self.driver)}",
            [_Registration(self)],
            timeouts,
            publish_as=DRA_SOCKET,
            passed=registration_socket,
        )
        return driver, registration

    def _take_stored(self) -> tuple[socket.socket | None, socket.socket | None]:
        """Return the sockets of the previous process; None for both unless both listen at their paths."""
        paths = self._socket, Path(self._directory.path, DRA_SOCKET)
        driver, registration = (self._store.take(path.name) for path in paths)
        if driver is not None and registration is not None and all(map(sockets.is_served, paths)):
            return driver, registration
        for each in (driver, registration):
            if each is not None:
                each.close()
        return None, None

    def _store_sockets(self) -> None:
        """Store both sockets for the next process, if they are new."""
        if not self._stored:
            for server in self._servers:
                self._store.drop(server.name)
            self._stored = all(self._store.keep(each.name, each.socket) for each in self._servers)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.newer(self._news.version)

    def note_registration(self, error: str | None) -> None:
        """Record the kubelet's result; the kubelet retries after an error, which is logged once."""
        if error is None:
            self._refusal = ""
            self._store_sockets()
            log.event(log.DRA_REGISTERED, subsystem=self.driver)
        else:
            if not self._refusal:
                log.event(log.DRA_REGISTER_FAILING, subsystem=self.driver, error=bounded(error))
            self._refusal = bounded(error)
        if not self.registered.set(error is None):
            self.registered.touch()  # a restarted kubelet has registered the driver again


class _Registration(pluginregistration.RegistrationBase):
    """Announces the driver to the kubelet, and receives the result of the registration."""

    def __init__(self, plugin: DraPlugin) -> None:
        self._plugin = plugin

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """Return the driver's name, socket and versions."""
        versions = [
            *(f"{version}.DRAPlugin" for version in DRIVER_VERSIONS),
            *(f"{version}.DRAResourceHealth" for version in HEALTH_VERSIONS),
        ]
        plugin = self._plugin
        return pluginregistration.PluginInfo(PLUGIN_TYPE, plugin.driver, plugin.endpoint, versions)

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Record the kubelet's result."""
        refusal = message.error or "refused without a text"
        self._plugin.note_registration(None if message.plugin_registered else refusal)
        return pluginregistration.RegistrationStatusResponse()


class _Driver(v1.DraPluginBase):
    """The DRA driver's service for both of its versions, which have the same messages."""

    def __init__(self, answers: ClaimAnswers, tasks: TaskGroup) -> None:
        self._answers = answers
        self._tasks = tasks
        self._running: set[CancelScope] = set()

    def cancel_calls(self) -> None:
        """Cancel the work of all calls."""
        for scope in self._running:
            scope.cancel()

    def __mapping__(self) -> dict[str, Handler]:
        return _for_versions(super().__mapping__(), DRIVER_SERVICE, DRIVER_VERSIONS)

    async def node_prepare_resources(
        self, message: v1.NodePrepareResourcesRequest
    ) -> v1.NodePrepareResourcesResponse:
        """Return the devices or an error for each claim."""
        claims = _refs(message.claims)
        answers = await self._in_background(lambda: self._answers.prepare(claims))
        return v1.NodePrepareResourcesResponse(
            {claim.uid: _prepared(answers.get(claim.uid, "no answer")) for claim in claims}
        )

    async def node_unprepare_resources(
        self, message: v1.NodeUnprepareResourcesRequest
    ) -> v1.NodeUnprepareResourcesResponse:
        """Return success or an error for each claim."""
        claims = _refs(message.claims)
        errors = await self._in_background(lambda: self._answers.unprepare(claims))
        return v1.NodeUnprepareResourcesResponse(
            {
                claim.uid: v1.NodeUnprepareResourceResponse(bounded(errors.get(claim.uid, "no answer")))
                for claim in claims
            }
        )

    async def _in_background(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work in a task of its own, and return its result.

        The kubelet cancels a call after 45 s, and calls again 60 to 90 s later: meanwhile the work goes on.

        :raises GRPCError: if the work fails for an unknown reason.
        """
        results: list[T] = []
        errors: list[Exception] = []
        ended = anyio.Event()

        async def run() -> None:
            with CancelScope(shield=True) as scope:  # when the daemon ends, the call has a moment to succeed
                self._running.add(scope)
                try:
                    results.append(await work())
                except Exception as error:  # noqa: BLE001 - it must not end the other calls
                    errors.append(error)
            self._running.discard(scope)
            ended.set()

        self._tasks.start_soon(run, name="claims")
        await ended.wait()
        for error in errors:
            raise GRPCError(Status.INTERNAL, bounded(f"{type(error).__name__}: {error}")) from error
        return results[0]


class _HealthReports(health_v1.DraResourceHealthBase):
    """The stream of health reports for both versions of the service."""

    def __init__(
        self, find_pool: Callable[[], str], health: Latest[Mapping[str, Health]], repeat: float
    ) -> None:
        self._find_pool = find_pool
        self._health = health
        self._repeat = repeat

    def __mapping__(self) -> dict[str, Handler]:
        return _for_versions(super().__mapping__(), HEALTH_SERVICE, HEALTH_VERSIONS)

    async def node_watch_resources(
        self, message: health_v1.NodeWatchResourcesRequest
    ) -> AsyncIterator[health_v1.NodeWatchResourcesResponse]:
        """Send all devices at the start, after each change and periodically.

        The kubelet shows a device as Unknown if its last report is older than 30 s.
        """
        while True:
            seen, health = self._health.version, self._health.get()
            now = int(time.time())
            yield health_v1.NodeWatchResourcesResponse(
                [self._report(name, each, now) for name, each in health.items()]
            )
            with anyio.move_on_after(self._repeat):
                await self._health.newer(seen)

    def _report(self, name: str, health: Health, now: int) -> health_v1.DeviceHealth:
        return health_v1.DeviceHealth(
            device=health_v1.DeviceIdentifier(self._find_pool(), name),
            health=health_v1.HealthStatus.HEALTHY if health.healthy else health_v1.HealthStatus.UNHEALTHY,
            last_updated_time=now,
            message=health.message[:LONGEST_MESSAGE],
        )


def _for_versions(
    methods: Mapping[str, Handler], service: str, versions: Iterable[str]
) -> dict[str, Handler]:
    """Return the handlers of the generated service under the paths of all versions."""
    return {
        f"/{service.format(version=version)}/{path.rpartition('/')[2]}": handler
        for version in versions
        for path, handler in methods.items()
    }


def _refs(claims: Sequence[v1.Claim]) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims)


def _prepared(answer: Sequence[ClaimDevice] | str) -> v1.NodePrepareResourceResponse:
    if isinstance(answer, str):
        return v1.NodePrepareResourceResponse(error=bounded(answer or "failed without a text"))
    return v1.NodePrepareResourceResponse(
        [v1.Device([each.main_request], each.pool, each.name, list(each.cdi)) for each in answer]
    )
