# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet as a client of DRA drivers: registers them, prepares and unprepares claims, reads health.

``Drivers`` follows pkg/kubelet/cm/dra of Kubernetes 1.36. The ResourceClaims come from the objects of a fake
API server. A claim is prepared for the first of its pods and unprepared after the last one. A failed Prepare
leaves the pod Pending until it is started again: the real kubelet does this 60 to 90 s later. A second driver
with the same socket is rejected.

At each start the kubelet deletes all ResourceSlices of its node, and it deletes those of a driver that was
disconnected for 30 s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Cardinality

from nodeagent.kubelet.api.dra import v1
from nodeagent.kubelet.api.drahealth import v1 as health_v1
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.api.podresources import v1 as podresources_v1
from nodeagent.kubelet.grpc import RPC_ERRORS, SocketChannel, in_own_task
from nodeagent.sim.apiserver.store import RESOURCE_CLAIMS, RESOURCE_SLICES
from nodeagent.sim.kubelet.plugins import go_text
from nodeagent.sim.kubelet.state import ClaimCall, ClaimState, DeviceHealth, Pod, PreparedDevice, State

CALL_LIMIT = 45.0
VERSIONS = ("v1", "v1beta1")
HEALTH_VERSION = "v1alpha1"  # as kubelet 1.36, whatever the driver announces
RECONNECT = 0.1  # seconds; the real kubelet waits 1 s and more
WIPE_AT_START = 0.3  # seconds from the start of the kubelet to the deletion of slices
WIPE_WHEN_LOST = 30.0
RESPONSES: Mapping[str, type[Any]] = {
    "NodePrepareResources": v1.NodePrepareResourcesResponse,
    "NodeUnprepareResources": v1.NodeUnprepareResourcesResponse,
}


class ClaimsFailed(Exception):
    """Raised when the claims of a pod cannot be prepared or unprepared; the text is that of the kubelet."""


@dataclass(eq=False, slots=True)
class Driver:
    """One registered driver and the connection to it."""

    name: str
    endpoint: str
    version: str
    channel: SocketChannel
    following: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Drivers:
    """The registered drivers in one run of the kubelet."""

    def __init__(self, state: State, tasks: TaskGroup) -> None:
        self._state = state
        self._tasks = tasks
        self._registered: list[Driver] = []  # the last one of a name receives the calls
        self._lost: dict[str, float] = {}  # driver → time on the loop's clock since which it is disconnected
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Delete the slices of this node soon after the start, later those of drivers that are lost."""
        with self._scope:
            delay = self._state.faults.get("wipe-late")
            await anyio.sleep(WIPE_AT_START if delay is None else delay)
            self._delete_slices(None)
            self._state.statistics.wipes += 1
            self._state.changed()
            while True:
                await anyio.sleep(RECONNECT)
                self._delete_slices_of_lost()

    def close(self) -> None:
        """Close all connections, as when the process ends; claims stay prepared, but this is forgotten."""
        self._scope.cancel()
        for driver in tuple(self._registered):
            self._close(driver)
        for claim in self._state.claims.values():
            claim.prepared = False

    # Registration

    async def use(self, info: pluginregistration.PluginInfo, path: Path) -> Callable[[], None]:
        """Use a driver that was found in plugins_registry; return the function that ends this.

        :raises ValueError: if the driver is rejected.
        """
        known = self._state.faults.get("dra-versions") or VERSIONS
        versions = [version for version in info.supported_versions if version.endswith(".DRAPlugin")]
        usable = [version.partition(".")[0] for version in versions if version.partition(".")[0] in known]
        if not usable:
            raise ValueError(f"none of services supported by the plugin {info.name}: {versions}")
        if any((info.name, info.endpoint) == (each.name, each.endpoint) for each in self._registered):
            raise ValueError(f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}")
        channel = SocketChannel(f"{self._state.paths.root}{info.endpoint}")
        driver = Driver(info.name, info.endpoint, usable[0], channel)
        self._registered.append(driver)
        self._tasks.start_soon(self._follow, driver, name=f"health of {info.name}")
        return partial(self._close, driver)

    def _close(self, driver: Driver) -> None:
        if driver not in self._registered:
            return  # the kubelet has ended meanwhile
        self._registered.remove(driver)
        driver.following.cancel()
        driver.channel.close()
        self._lose(driver.name)

    def _find(self, name: str) -> Driver:
        for driver in reversed(self._registered):
            if driver.name == name:
                return driver
        raise ClaimsFailed(f"DRA driver {name} is not registered")

    # Claims

    async def prepare(self, pod: Pod) -> None:
        """Prepare the claims of a pod. :raises ClaimsFailed: if one of them cannot be prepared."""
        claims = [self._claim(pod, name) for name in pod.claims]
        for claim in claims:
            claim.pods.add(pod.uid)
        for name, group in _by_driver([claim for claim in claims if not claim.prepared]):
            request = v1.NodePrepareResourcesRequest([_message(claim) for claim in group])
            answer = await self._call(name, "NodePrepareResources", request, group)
            for claim in group:
                found = answer.claims[claim.uid]
                claim.devices += [
                    PreparedDevice(
                        name,
                        each.pool_name,
                        each.device_name,
                        tuple(each.request_names),
                        tuple(each.cdi_device_ids),
                    )
                    for each in found.devices
                ]
        for claim in claims:
            claim.prepared = True

    async def unprepare(self, pod: Pod) -> None:
        """Unprepare the claims that no other pod uses. :raises ClaimsFailed: if that fails."""
        claims = self._state.claims_of(pod)
        last = [claim for claim in claims if claim.pods == {pod.uid}]
        for name, group in _by_driver(last):
            request = v1.NodeUnprepareResourcesRequest([_message(claim) for claim in group])
            await self._call(name, "NodeUnprepareResources", request, group)
        for claim in claims:
            claim.pods.discard(pod.uid)
        for claim in last:
            del self._state.claims[claim.uid]
        self._state.changed()

    def _claim(self, pod: Pod, name: str) -> ClaimState:
        """Return the claim; its devices are known after it is prepared."""
        api = self._state.api
        found = api.get(RESOURCE_CLAIMS, name, pod.namespace) if api is not None else None
        if found is None:
            raise ClaimsFailed(f'resourceclaims.resource.k8s.io "{name}" not found')
        if "allocation" not in found.get("status", {}):
            raise ClaimsFailed(f"resource claim {name} is not allocated")
        uid = found["metadata"]["uid"]
        results = found["status"]["allocation"]["devices"]["results"]
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        claim = self._state.claims.setdefault(uid, ClaimState(pod.namespace, name, uid, drivers))
        if not claim.prepared:
            claim.devices.clear()
        return claim

    async def _call(self, name: str, method: str, request: Any, claims: Sequence[ClaimState]) -> Any:
        """Call the driver, record the call, and check that the response is complete.

        :raises ClaimsFailed: with the errors of the response.
        """
        began = anyio.current_time()
        try:
            answer = await self._try_call(name, method, request)
            error = _first_error(method, answer.claims, claims)
        except ClaimsFailed as failed:
            answer, error = None, str(failed)
        uids = tuple(claim.uid for claim in claims)
        now = anyio.current_time()
        self._state.statistics.claims.append(ClaimCall(method, uids, now, now - began, error))
        self._state.changed()
        if error is not None:
            raise ClaimsFailed(error)
        return answer

    async def _try_call(self, name: str, method: str, request: Any) -> Any:
        driver = self._find(name)
        path = f"/k8s.io.kubelet.pkg.apis.dra.{driver.version}.DRAPlugin/{method}"
        call = UnaryUnaryMethod(driver.channel, path, type(request), RESPONSES[method])
        try:
            limit = self._state.faults.get("claims-limit") or CALL_LIMIT
            return await in_own_task(call(request, timeout=limit))
        except RPC_ERRORS as error:
            raise ClaimsFailed(f"{method} failed: {go_text(error)}") from error

    # Health

    async def _follow(self, driver: Driver) -> None:
        """Read the health stream, and open it again after its end."""
        with driver.following:
            while True:
                with contextlib.suppress(*RPC_ERRORS):  # every end of the stream is treated in the same way
                    await in_own_task(self._read_health(driver))
                self._lose(driver.name)
                await anyio.sleep(RECONNECT)

    async def _read_health(self, driver: Driver) -> None:
        request, response = health_v1.NodeWatchResourcesRequest, health_v1.NodeWatchResourcesResponse
        version = self._state.faults.get("health-version") or HEALTH_VERSION
        path = f"/{version}.DRAResourceHealth/NodeWatchResources"
        async with driver.channel.request(path, Cardinality.UNARY_STREAM, request, response) as stream:
            await stream.send_message(request(), end=True)
            while (message := await stream.recv_message()) is not None:
                self._lost.pop(driver.name, None)
                for each in message.devices:
                    device = each.device or health_v1.DeviceIdentifier()
                    place = (driver.name, device.pool_name, device.device_name)
                    status = each.health.name.title()
                    seen = DeviceHealth(status, each.message, each.last_updated_time)
                    self._state.health[place] = seen
                self._state.statistics.health_reports += 1
                self._state.changed()

    def _lose(self, name: str) -> None:
        """Record that a driver is disconnected: the health of its devices is Unknown."""
        self._lost.setdefault(name, anyio.current_time())
        for place in [place for place in self._state.health if place[0] == name]:
            del self._state.health[place]
        self._state.changed()

    # Slices

    def _delete_slices_of_lost(self) -> None:
        limit = self._state.faults.get("wipe-when-lost") or WIPE_WHEN_LOST
        for name, since in tuple(self._lost.items()):
            if anyio.current_time() - since >= limit:
                del self._lost[name]
                self._delete_slices(name)

    def _delete_slices(self, driver: str | None) -> None:
        """Delete the slices of this node; ``driver`` None: of all drivers."""
        api = self._state.api
        for each in tuple(api.all(RESOURCE_SLICES)) if api is not None else ():
            ours = each["spec"].get("nodeName") == self._state.node
            if ours and driver in (None, each["spec"]["driver"]):
                assert api is not None
                api.delete(RESOURCE_SLICES, each["metadata"]["name"])


def list_claims(state: State, pod: Pod) -> list[podresources_v1.DynamicResource]:
    """Return the claims of a pod as PodResources lists them for each of its containers."""
    return [
        podresources_v1.DynamicResource(
            claim.name,
            claim.namespace,
            [
                podresources_v1.ClaimResource(
                    [podresources_v1.CdiDevice(name) for name in each.cdi],
                    each.driver,
                    each.pool,
                    each.name,
                )
                for each in claim.devices
            ],
        )
        for claim in state.claims_of(pod)
    ]


def _by_driver(claims: Sequence[ClaimState]) -> Iterator[tuple[str, list[ClaimState]]]:
    """Yield each driver with its claims: one call has all claims of a pod for one driver."""
    for name in dict.fromkeys(driver for claim in claims for driver in claim.drivers):
        yield name, [claim for claim in claims if name in claim.drivers]


def _message(claim: ClaimState) -> v1.Claim:
    return v1.Claim(claim.namespace, claim.uid, claim.name)


def _first_error(method: str, answers: Mapping[str, Any], claims: Sequence[ClaimState]) -> str | None:
    """Return the error of a response, in the words of the kubelet."""
    names = {claim.uid: claim.name for claim in claims}
    for uid, answer in answers.items():
        if uid not in names:
            return f"{method} returned unknown claim {uid}"
        if answer.error:
            return f"{method} failed for ResourceClaim {names[uid]}: {answer.error}"
    missing = names.keys() - answers.keys()
    return f"{method} skipped {len(missing)} ResourceClaims" if missing else None
