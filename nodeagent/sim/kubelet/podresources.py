# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet's PodResources service (v1): who holds what.

Follows pkg/kubelet/apis/podresources of Kubernetes 1.36: active pods only, plain init containers left
out, one entry per device and NUMA node, and a List frees the devices of pods that are gone. Which pods it
knows is in ``sources``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import anyio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nodeagent.kubelet.api.podresources import v1
from nodeagent.sim.kubelet import sources
from nodeagent.sim.kubelet.admission import Admission
from nodeagent.sim.kubelet.devices import Held
from nodeagent.sim.kubelet.state import Pod, State


class PodResources(v1.PodResourcesListerBase):
    """Faults: ``pod-resources-exhausted`` (any value), ``pod-resources-delay`` (seconds).

    ``pod-resources-late``: seconds that each answer is on its way, for as many answers as there are numbers.
    """

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    async def list(self, message: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        """All active pods of the sources that have been read."""
        await self._faults()
        self._admission.free_devices_of_gone_pods()
        held = self._held()
        answer = v1.ListPodResourcesResponse([self._pod(pod, held) for pod in sources.named(self._state)])
        late = self._state.faults.get("pod-resources-late")
        await anyio.sleep(late.pop(0) if late else 0)
        return answer

    async def get_allocatable_resources(
        self, message: v1.AllocatableResourcesRequest
    ) -> v1.AllocatableResourcesResponse:
        """All healthy devices, allocated or not."""
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
        """One pod; an unknown one is an error without a code of its own."""
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

    def _held(self) -> Mapping[tuple[str, str], Sequence[Held]]:
        """What each container has, by the uid of its pod and its name."""
        held: dict[tuple[str, str], list[Held]] = {}
        for each in self._state.table.held:
            held.setdefault((each.pod_uid, each.container), []).append(each)
        return held

    def _pod(self, pod: Pod, held: Mapping[tuple[str, str], Sequence[Held]]) -> v1.PodResources:
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
