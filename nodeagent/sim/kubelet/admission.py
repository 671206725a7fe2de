# SPDX-License-Identifier: Apache-2.0
"""Admission of pods in the fake kubelet: choose devices, call Allocate, and record the result per container.

The code follows Allocate, devicesToAllocate and allocateContainerResources in
pkg/kubelet/cm/devicemanager/manager.go of Kubernetes 1.36, with their error texts. Pods are admitted one
after the other, init containers first, with one Allocate per container and resource and ids in random
order. The checkpoint is written after the last Allocate of a container. A failure is final for the pod.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import anyio

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import RPC_ERRORS, in_own_task
from nodeagent.sim.kubelet.dra import ClaimsFailed, Drivers
from nodeagent.sim.kubelet.plugins import Client, Clients, go_text
from nodeagent.sim.kubelet.state import (
    AllocateCall,
    ContainerDevices,
    ContainerResult,
    Pod,
    SidecarsFirst,
    State,
    ids_of,
)

PRE_START_LIMIT = 30.0
WRITING = 0.0025  # seconds from the response for a container's last resource to the new checkpoint


class Rejected(Exception):
    """Raised when a pod cannot be admitted; the text is that of the real kubelet."""


class Admission:
    """Admits the pods of one run of the kubelet."""

    def __init__(self, state: State, clients: Clients, drivers: Drivers) -> None:
        self._state = state
        self._clients = clients
        self._drivers = drivers
        self._one_at_a_time = anyio.Lock()

    async def admit(self, pod: Pod) -> Pod:
        """Admit the pod, and return the same object in phase Running or Failed."""
        state = self._state
        async with self._one_at_a_time:
            self.free_devices_of_gone_pods()
            name = f"{pod.namespace}-{pod.name}-{len(state.statistics.allocations)}"
            pod.uid = pod.uid or f"{name}-{time.monotonic_ns()}"
            state.pods[pod.key] = pod
            try:
                await self._allocate(pod)
            except Rejected as error:
                self._reject(pod, str(error))
            else:
                if not pod.claims:
                    await self._start(pod)
            state.changed()
        if pod.claims and pod.phase != "Failed":  # claims are prepared by a worker per pod
            await self._prepare_and_start(pod)
        return pod

    async def start_again(self, pod: Pod) -> Pod:
        """Start the containers of an admitted pod; request devices that the pod does not have yet.

        The kubelet does this in GetDeviceRunContainerOptions from a worker per pod, also while it admits
        other pods.
        """
        try:
            await self._allocate(pod)
        except Rejected as error:
            pod.message = str(error)
        else:
            pod.message = ""
            await self._prepare_and_start(pod)
        self._state.changed()
        return pod

    def free_devices_of_gone_pods(self) -> None:
        """Free devices of deleted pods, as UpdateAllocatedDevices does at the next admission or
        PodResources List.

        No device is freed before all sources of pods have been read.
        """
        if self._state.has_read_all_pods():
            self._state.table.release_all_but({pod.uid for pod in self._state.active_pods()})

    def _reject(self, pod: Pod, text: str) -> None:
        pod.phase, pod.reason = "Failed", "UnexpectedAdmissionError"
        pod.message = f"Pod was rejected: Allocate failed due to {text}, which is unexpected"

    async def _allocate(self, pod: Pod) -> None:
        """Allocate devices, init containers first; devices of plain init containers are reused, those of
        sidecars not.
        """
        reusable: dict[str, set[str]] = {}
        for role, name, limits in _containers(pod):
            # a resource that no plugin ever listed: the pod runs without it, as with nodeName set
            wishes = [wish for wish in limits.items() if self._state.table.is_known(wish[0])]
            self._state.random.shuffle(wishes)
            if wishes:
                self.free_devices_of_gone_pods()
            for resource, count in wishes:
                ids = await self._allocate_one(pod, name, resource, count, reusable)
                again = reusable.setdefault(resource, set())
                again.update(ids) if role == "init" else again.difference_update(ids)
            if wishes:
                await anyio.sleep(WRITING)
                if not self._state.table.save():
                    raise Rejected("failed to write checkpoint file: no space left on device")

    async def _allocate_one(
        self, pod: Pod, name: str, resource: str, count: int, reusable: dict[str, set[str]]
    ) -> tuple[str, ...]:
        if found := ids_of(self._state.table, pod.uid, name, resource):
            return found
        ids = await self._choose(resource, count, reusable.get(resource, set()))
        response = await self._call(resource, ids)
        self._state.table.held.append(ContainerDevices(pod.uid, name, resource, ids, bytes(response)))
        return ids

    async def _choose(self, resource: str, count: int, reusable: set[str]) -> tuple[str, ...]:
        """Return the ids for one container in random order. :raises Rejected: if there are not enough."""
        table = self._state.table
        healthy = table.healthy.get(resource)
        if healthy is None:
            raise Rejected(f"cannot allocate unregistered device {resource}")
        if not healthy:
            text = "no healthy devices present; cannot allocate unhealthy devices"
            raise Rejected(f"{text} {resource}")
        chosen = sorted(reusable)[:count]
        needed = count - len(chosen)
        if needed:
            free = healthy - table.allocated.get(resource, set())
            if len(free) < needed:
                raise Rejected(
                    f"requested number of devices unavailable for {resource}. "
                    f"Requested: {needed}, Available: {len(free)}"
                )
            chosen += await self._preferred(resource, free, chosen, count)
        table.allocated.setdefault(resource, set()).update(chosen)
        self._state.random.shuffle(chosen)
        return tuple(chosen)

    async def _preferred(self, resource: str, free: set[str], must: list[str], count: int) -> list[str]:
        """Return the free ids to allocate, as many as needed: first those that the plugin prefers, then
        others.
        """
        wanted: list[str] = []
        endpoint = self._clients.endpoints[resource]
        if endpoint.options.get_preferred_allocation_available:
            wanted = await _ask_preference(endpoint, _shuffled(self._state, free | set(must)), must, count)
        rest = _shuffled(self._state, free)
        usable = [name for name in dict.fromkeys([*wanted, *rest]) if name in free.difference(must)]
        return usable[: count - len(must)]

    async def _call(self, resource: str, ids: tuple[str, ...]) -> v1beta1.ContainerAllocateResponse:
        """Call Allocate once. :raises Rejected: with the plugin's error text."""
        state = self._state
        request = v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest(list(ids))])
        error: str | None = None
        responses: list[v1beta1.ContainerAllocateResponse] = []
        began = time.monotonic()
        state.allocating.update(ids)
        state.changed()
        try:
            stub = self._clients.endpoints[resource].stub
            responses = (await in_own_task(stub.allocate(request))).container_responses
            if not responses:
                error = "no containers return in allocation response &AllocateResponse{}"
        except RPC_ERRORS as foreign:
            error = go_text(foreign)
        finally:
            state.allocating.difference_update(ids)
        seconds = time.monotonic() - began
        call = AllocateCall(resource, ids, anyio.current_time(), seconds, error)
        state.statistics.allocations.append(call)
        state.changed()
        if error is not None:
            state.table.recount_allocated()
            raise Rejected(error)
        _look_up(self._state, resource, ids)
        return responses[0]

    async def _prepare_and_start(self, pod: Pod) -> None:
        """Prepare the claims and start the containers; after an error the pod is Pending."""
        try:
            await self._drivers.prepare(pod)
        except ClaimsFailed as error:
            pod.reason, pod.message = "FailedPrepareDynamicResources", str(error)
        else:
            pod.reason = ""
            await self._start(pod)
        self._state.changed()

    async def _start(self, pod: Pod) -> None:
        pod.phase = "Running"
        (self._state.paths.pods / pod.uid).mkdir(parents=True, exist_ok=True)
        for _, name, _ in _containers(pod):
            pod.results[name] = result = _result(self._state, pod, name)
            for resource, ids in result.ids.items():
                result.error = result.error or await self._pre_start(resource, ids)

    async def _pre_start(self, resource: str, ids: tuple[str, ...]) -> str | None:
        endpoint = self._clients.endpoints.get(resource)
        if endpoint is None:  # after a restart of the kubelet, the plugin has not registered again yet
            return f"endpoint not found in cache for a registered resource: {resource}"
        if not endpoint.options.pre_start_required:
            return None
        request = v1beta1.PreStartContainerRequest(list(ids))
        try:
            await in_own_task(endpoint.stub.pre_start_container(request, timeout=PRE_START_LIMIT))
        except RPC_ERRORS as error:
            return f"PreStartContainer rpc failed with err: {go_text(error)}"
        return None


def _shuffled(state: State, ids: set[str]) -> list[str]:
    """Return the ids in random order, as sets.UnsortedList does."""
    names = sorted(ids)
    state.random.shuffle(names)
    return names


async def _ask_preference(endpoint: Client, available: list[str], must: list[str], count: int) -> list[str]:
    wish = v1beta1.ContainerPreferredAllocationRequest(available, must, count)
    request = v1beta1.PreferredAllocationRequest([wish])
    try:
        answer = await in_own_task(endpoint.stub.get_preferred_allocation(request))
    except RPC_ERRORS as error:
        text = "device plugin GetPreferredAllocation rpc failed with err"
        raise Rejected(f"{text}: {go_text(error)}") from error
    return list(answer.container_responses[0].device_ids) if answer.container_responses else []


def _look_up(state: State, resource: str, ids: tuple[str, ...]) -> None:
    """Simulate a crash if an id is no longer listed: manager.go of 1.36 does not check that."""
    missing = [name for name in ids if name not in state.table.devices.get(resource, {})]
    if missing:
        state.crash(f"{resource} dropped {missing} while their Allocate was running")
        raise Rejected("the kubelet has crashed")


def _result(state: State, pod: Pod, name: str) -> ContainerResult:
    """Return the merged responses for all resources; of equal names or paths the first one counts."""
    result = ContainerResult(name)
    for held in state.table.held:
        if (held.pod_uid, held.container) == (pod.uid, name):
            result.ids[held.resource] = held.ids
            _merge(result, v1beta1.ContainerAllocateResponse.parse(held.response))
    if name.startswith("c"):
        prepared = [device for claim in state.claims_of(pod) for device in claim.devices]
        result.cdi += [cdi for device in prepared for cdi in device.cdi]
    for host, _, _ in result.devices:
        if not os.path.lexists(f"{state.paths.root}{host}"):
            result.error = f"CreateContainerError: lstat {host}: no such file or directory"
    return result


def _merge(result: ContainerResult, answer: v1beta1.ContainerAllocateResponse) -> None:
    result.envs = {**answer.envs, **result.envs}
    result.annotations = {**answer.annotations, **result.annotations}
    result.cdi += [device.name for device in answer.cdi_devices]
    taken = {container for _, container, _ in result.devices}
    for node in answer.devices:
        if node.container_path not in taken:
            result.devices.append((node.host_path, node.container_path, node.permissions))
            taken.add(node.container_path)
    mounted = {container for _, container, _ in result.mounts}
    for mount in answer.mounts:
        if mount.container_path not in mounted:
            result.mounts.append((mount.host_path, mount.container_path, mount.read_only))
            mounted.add(mount.container_path)


def _containers(pod: Pod) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield role, name and limits of each container in the order of admission."""
    first = [("init", "init", pod.init_containers), ("sidecar", "sidecar", pod.sidecars)]
    for role, prefix, many in (
        *(reversed(first) if isinstance(pod, SidecarsFirst) else first),
        ("app", "c", pod.containers),
    ):
        for index, limits in enumerate(many):
            yield role, f"{prefix}{index}", limits
