# SPDX-License-Identifier: Apache-2.0
"""A fake kubelet: real gRPC on real sockets, with the device manager's behaviour of Kubernetes 1.36.

The demo, the tests and the benchmark use it. It registers plugins as the real kubelet does, reads their
lists, admits pods, writes its checkpoint, serves PodResources, watches plugins_registry, and can restart
and misbehave (``faults``). It runs no containers: the result of a pod lists the devices, variables and
mounts of its containers. ``plugins`` has the connections to plugins, ``dra`` those to DRA drivers,
``admission`` the pods, ``state`` the device tables.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import SocketServer
from nodeagent.sim.apiserver.store import Store
from nodeagent.sim.kubelet.admission import Admission
from nodeagent.sim.kubelet.dra import ClaimsFailed, Drivers, list_claims
from nodeagent.sim.kubelet.plugins import Clients, PluginWatcher
from nodeagent.sim.kubelet.state import ContainerDevices, Pod, Registration, State

AN_HOUR = 3600.0
REGISTER = "/v1beta1.Registration/Register"


class KubeletStopped(Exception):
    """Raised when a call needs a running kubelet, but it is stopped."""


class FakeKubelet:
    """A fake kubelet, used as an async context manager that starts and stops it.

    ``root`` is the path prefix, ``seed`` determines the order of device ids, ``topology_policy`` is the
    kubelet's (``none`` or any other), ``api`` has the ResourceClaims and ResourceSlices, ``node`` is the name
    of the Node. At the first start, the sockets get a time that is ``age`` seconds ago;
    each later start creates new ones. A fault affects all resources (``name``) or one (``name:resource``):
    ``refuse-register`` (text), ``hang-register``, ``drop-register``, ``no-list``, ``stalled-reader`` (true),
    ``receive-limit`` (bytes), ``listen-delay`` (seconds between bind and listen), ``plugins-late`` (seconds
    between PodResources and the socket for plugins, see ``_Run``), ``pod-resources-absent``,
    ``pod-resources-exhausted`` (true), ``pod-resources-delay`` (seconds), ``pod-resources-late`` (a list: the
    delay in seconds of each of the next responses), ``pod-resources-empty`` (seconds after a start in which
    no pod is listed), ``pod-resources-unnamed`` (seconds after a start in which older pods are not listed, or
    the keys of pods that are never listed). For DRA: ``dra-versions`` and ``health-version`` (the versions
    that the kubelet knows), ``claims-limit`` (seconds of a call), ``wipe-late`` and ``wipe-when-lost``
    (seconds until slices are deleted).
    """

    def __init__(
        self,
        root: str | Path,
        *,
        seed: int = 0,
        topology_policy: str = "none",
        age: float = AN_HOUR,
        api: Store | None = None,
        node: str = "",
    ) -> None:
        self.state = State(Path(root), seed, topology_policy, api, node)
        self.paths = self.state.paths
        self.socket = self.paths.plugins / "kubelet.sock"  # the directory where plugins register
        self.faults = self.state.faults
        self.statistics = self.state.statistics
        self.life = self.state.life
        self._age = age
        self._outer: TaskGroup = anyio.create_task_group()
        self._run: _Run | None = None

    async def __aenter__(self) -> FakeKubelet:
        await self._outer.__aenter__()
        self._outer.start_soon(_die_of_crashes, self, name="end of the kubelet")
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        with anyio.CancelScope(shield=True):
            await self.stop()
        self._outer.cancel_scope.cancel()
        return await self._outer.__aexit__(error_type, error, trace)

    async def start(self) -> None:
        """Remove the sockets in the plugin directory, bind, listen; pods keep the allocations in the
        checkpoint.
        """
        if self._run is None:
            age, self._age = self._age, 0.0
            self._run = _Run(self.state, self._outer)
            await self._run.start(age)

    async def stop(self) -> None:
        """Stop like a killed process: all connections are closed, all socket files stay."""
        run, self._run = self._run, None
        if run is not None:
            await run.stop()

    async def restart(self, listen_delay: float = 0.0, away: float = 0.0) -> None:
        """Stop, wait ``away`` seconds, and start with ``listen_delay`` seconds between bind and listen."""
        await self.stop()
        await anyio.sleep(away)
        self.faults.set("listen-delay", listen_delay)
        try:
            await self.start()
        finally:
            self.faults.clear("listen-delay")

    async def admit(self, pod: Pod, *, again: bool = False) -> Pod:
        """Admit or reject the pod, and return it with its phase, message and results.

        ``again``: start the containers of an admitted pod once more, also while other pods are admitted.
        """
        admission = _alive(self._run).admission
        return await (admission.start_again(pod) if again else admission.admit(pod))

    def delete(self, pod: Pod) -> None:
        """Remove the pod: PodResources no longer lists it, and another pod may get its devices.

        The caller simulates the containers of the pod: in a graceful deletion they close their devices before
        this call, in a forced deletion seconds later.
        """
        self.state.pods.pop(pod.key, None)
        self.state.changed()

    async def terminate(self, pod: Pod) -> Pod:
        """End the pod gracefully: its claims are unprepared, then it is removed.

        If that fails, the pod remains with the error as its message.
        """
        try:
            await _alive(self._run).drivers.unprepare(pod)
        except ClaimsFailed as error:
            pod.message = str(error)
        else:
            self.delete(pod)
        return pod

    def end_stream(self, resource: str) -> None:
        """End the ListAndWatch stream of the resource's current plugin."""
        _alive(self._run).clients.end_stream(resource)

    def capacity(self, resource: str) -> tuple[int, int]:
        """Return capacity and allocatable of the resource, as the Node object would show them."""
        return self.state.table.capacity(resource), self.state.table.allocatable(resource)

    async def until(self, predicate: Callable[[], bool], timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Wait until the predicate is true; it is evaluated after each change.

        :raises TimeoutError: after ``timeout``.
        """
        await self.state.until(predicate, timeout)

    async def until_listed(self, resource: str, devices: int, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Wait until the resource lists this number of devices and has one open stream."""
        await self.until(
            lambda: (
                self.capacity(resource)[0] == devices
                and self.statistics.streams.get(resource, 0) == 1
                and resource in self.state.table.devices
            ),
            timeout,
        )


async def _die_of_crashes(kubelet: FakeKubelet) -> None:
    while True:
        await kubelet.until(lambda: kubelet.life.running and bool(kubelet.life.crashed), math.inf)
        await kubelet.stop()


class _Run:
    """One run of the fake kubelet, with the state that is lost at a restart.

    The real kubelet serves PodResources at once (``startKubelet`` in cmd/kubelet/app/server.go), but
    plugins only when the container runtime is up (``initializeRuntimeDependentModules`` in
    pkg/kubelet/kubelet.go).
    """

    def __init__(self, state: State, outer: TaskGroup) -> None:
        self._state = state
        self._outer = outer
        self._scope = anyio.CancelScope()
        self.clients = Clients(state, outer)
        self.drivers = Drivers(state, outer)
        self.admission = Admission(state, self.clients, self.drivers)
        handlers = {"DevicePlugin": self.clients.use, "DRAPlugin": self.drivers.use}
        self._watcher = PluginWatcher(state, handlers)
        self._plugins = SocketServer(
            state.paths.plugins, "kubelet.sock", [_Registration(state, self.clients)], timeouts=Timeouts()
        )
        resources = PodResources(state, self.admission)
        self._resources = SocketServer(
            state.paths.pod_resources, "kubelet.sock", [resources], timeouts=Timeouts()
        )

    async def start(self, age: float) -> None:
        state = self._state
        for directory in (
            state.paths.plugins,
            state.paths.pod_resources,
            state.paths.registry,
            state.paths.pods,
        ):
            directory.mkdir(parents=True, exist_ok=True)
        state.table.load()
        state.life.inherited = frozenset(pod.uid for pod in state.pods.values())
        late = state.faults.get("plugins-late")
        if late is None:
            await self._serve_plugins(age)
            await self._serve_resources(age)
        else:
            await self._serve_resources(age)
            await anyio.sleep(late)
            await self._serve_plugins(age)
        state.life.crashed, state.life.running = None, True
        self._outer.start_soon(self._watch, name="plugin watcher")
        self._outer.start_soon(self.drivers.run, name="slices")
        state.changed()

    async def _serve_plugins(self, age: float) -> None:
        _remove_sockets(self._state.paths.plugins)
        self._plugins.bind()
        _make_older(self._plugins.path, age)
        await anyio.sleep(self._state.faults.get("listen-delay") or 0)
        await self._plugins.start()

    async def _serve_resources(self, age: float) -> None:
        self._state.life.started = anyio.current_time()
        _remove_sockets(self._state.paths.pod_resources)
        if not self._state.faults.get("pod-resources-absent"):
            self._resources.bind()
            _make_older(self._resources.path, age)
            await self._resources.start()

    async def _watch(self) -> None:
        with self._scope:
            await self._watcher.run()

    async def stop(self) -> None:
        self._state.life.running = False
        self._scope.cancel()
        self.clients.close()
        self.drivers.close()
        await self._plugins.stop(0, keep_file=True)
        await self._resources.stop(0, keep_file=True)
        self._state.changed()


def _alive(run: _Run | None) -> _Run:
    if run is None:
        raise KubeletStopped("the fake kubelet does not run")
    return run


class _Registration:
    """The Registration service with access to the stream, because a fault may drop the connection."""

    def __init__(self, state: State, clients: Clients) -> None:
        self._state = state
        self._clients = clients

    async def _register(self, stream: Any) -> None:
        request = await stream.recv_message()
        await self._faults(stream, request)
        await self._clients.register(request, stream.deadline)
        await stream.send_message(v1beta1.Empty())

    async def _faults(self, stream: Any, request: v1beta1.RegisterRequest) -> None:
        resource = request.resource_name
        hangs, drops = (self._state.faults.get(f"{name}-register", resource) for name in ("hang", "drop"))
        if not (hangs or drops):
            return
        seen = Registration(resource, request.endpoint, anyio.current_time(), "hung" if hangs else "dropped")
        self._state.statistics.registrations.append(seen)
        self._state.changed()
        if hangs:
            await anyio.sleep_forever()
        stream._stream._transport.abort()  # grpclib has no public method to drop a connection
        raise GRPCError(Status.UNAVAILABLE, "dropped")

    def __mapping__(self) -> dict[str, Handler]:
        messages = (v1beta1.RegisterRequest, v1beta1.Empty)
        return {REGISTER: Handler(self._register, Cardinality.UNARY_UNARY, *messages)}


class PodResources(v1.PodResourcesListerBase):
    """The PodResources service (v1), as pkg/kubelet/apis/podresources of Kubernetes 1.36 implements it.

    It lists active pods only, without plain init containers, with one entry per device and NUMA node. A
    List call frees the devices of deleted pods.
    """

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    async def list(self, message: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        """Return all active pods of the sources that have been read."""
        await self._faults()
        self._admission.free_devices_of_gone_pods()
        held = self._held()
        answer = v1.ListPodResourcesResponse([self._pod(pod, held) for pod in self._state.named_pods()])
        late = self._state.faults.get("pod-resources-late")
        await anyio.sleep(late.pop(0) if late else 0)
        return answer

    async def get_allocatable_resources(
        self, message: v1.AllocatableResourcesRequest
    ) -> v1.AllocatableResourcesResponse:
        """Return all healthy devices, allocated or not."""
        await self._faults()
        table = self._state.table
        return v1.AllocatableResourcesResponse(
            [
                entry
                for resource in sorted(table.healthy)
                for entry in self._devices(resource, sorted(table.healthy[resource]))
            ]
        )

    async def get(self, message: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        """Return one pod; for an unknown pod, raise an error with the status code UNKNOWN."""
        await self._faults()
        pod = self._state.pods.get(f"{message.pod_namespace}/{message.pod_name}")
        if pod is None:
            text = f"pod {message.pod_name} in namespace {message.pod_namespace} not found"
            raise GRPCError(Status.UNKNOWN, text)
        return v1.GetPodResourcesResponse(self._pod(pod, self._held()))

    async def _faults(self) -> None:
        if self._state.faults.get("pod-resources-exhausted"):
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
        await anyio.sleep(self._state.faults.get("pod-resources-delay") or 0)

    def _held(self) -> Mapping[tuple[str, str], Sequence[ContainerDevices]]:
        """Return the devices of each container, by the uid of its pod and the container's name."""
        held: dict[tuple[str, str], list[ContainerDevices]] = {}
        for each in self._state.table.held:
            held.setdefault((each.pod_uid, each.container), []).append(each)
        return held

    def _pod(self, pod: Pod, held: Mapping[tuple[str, str], Sequence[ContainerDevices]]) -> v1.PodResources:
        names = [f"sidecar{index}" for index in range(len(pod.sidecars))]
        names += [f"c{index}" for index in range(len(pod.containers))]
        containers = [
            v1.ContainerResources(
                name,
                [
                    entry
                    for each in held.get((pod.uid, name), ())
                    for entry in self._devices(each.resource, each.ids)
                ],
                list_claims(self._state, pod) if name.startswith("c") else [],
            )
            for name in names
        ]
        return v1.PodResources(pod.name, pod.namespace, containers)

    def _devices(self, resource: str, ids: Sequence[str]) -> Iterator[v1.ContainerDevices]:
        table = self._state.table.devices.get(resource, {})
        for name in ids:
            nodes = table[name].nodes if name in table else None
            if not nodes:
                yield v1.ContainerDevices(resource, [name])
            for node in nodes or ():
                topology = v1.TopologyInfo([v1.NumaNode(node)])
                yield v1.ContainerDevices(resource, [name], topology)


def _make_older(path: Path, age: float) -> None:
    """Set the modification time of a socket ``age`` seconds back."""
    if age:
        born = time.time() - age
        os.utime(path, (born, born))


def _remove_sockets(directory: Path) -> None:
    """Remove every socket directly in the directory, also of other programs (CleanupPluginDirectory)."""
    for path in sorted(directory.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the owner has already removed it
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
