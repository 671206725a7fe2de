# SPDX-License-Identifier: Apache-2.0
"""Answers to the kubelet about claims, and allocated ResourceClaims in a fake API server, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from nodeagent.model.claim import ClaimDevice, ClaimRef
from nodeagent.model.ids import ResourceName
from nodeagent.sim.apiserver.store import RESOURCE_CLAIMS, Object, Store

DRIVER, NODE = "dra.example.com", "node1"
POOL = f"{DRIVER}/{NODE}"


def allocate_claim(
    store: Store,
    name: str,
    devices: Mapping[str, str],
    *,
    driver: str = DRIVER,
    pool: str = POOL,
    namespace: str = "ns",
    pod_claim: str = "",
    config: Sequence[Object] = (),
    pods: Sequence[str] = (),
) -> Object:
    """Create an allocated ResourceClaim; ``devices``: device by request, as the scheduler writes it.

    ``pods``: the names of pods for which the claim is reserved.
    """
    metadata: Object = {"name": name, "namespace": namespace}
    if pod_claim:
        metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": pod_claim}
    results = [
        {"request": request, "driver": driver, "pool": pool, "device": device}
        for request, device in devices.items()
    ]
    requests = [
        {"name": request, "exactly": {"deviceClassName": "any"}}
        for request in dict.fromkeys(request.partition("/")[0] for request in devices)
    ]
    allocation = {"devices": {"results": results, "config": list(config)}}
    spec = {"devices": {"requests": requests}}
    reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    status = {"allocation": allocation, "reservedFor": reserved}
    return store.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec, "status": status})


class ClaimRecorder:
    """Answers with one device per claim once its gate is open, or with the error text of the claim's name."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.missing: set[str] = set()
        self.fails: Exception | None = None
        self.gates: dict[str, anyio.Event] = {}
        self.entered = anyio.Event()  # set by the first Prepare
        self.request = "gpu"
        self.prepared: list[str] = []
        self.unprepared: list[str] = []

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Sequence[ClaimDevice] | str]:
        """Return a device for each claim."""
        self.entered.set()
        for claim in claims:
            if gate := self.gates.get(claim.name):
                await gate.wait()
        if self.fails is not None:
            raise self.fails
        self.prepared += [str(claim) for claim in claims]
        return {
            claim.uid: self.errors.get(claim.name) or [self._device(claim)]
            for claim in claims
            if claim.name not in self.missing
        }

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Return the error of each claim, usually none."""
        self.unprepared += [str(claim) for claim in claims]
        return {claim.uid: self.errors.get(claim.name, "") for claim in claims}

    def _device(self, claim: ClaimRef) -> ClaimDevice:
        resource, cdi = ResourceName("example.com/gpu"), (f"example.com/claim={claim.uid}",)
        return ClaimDevice(self.request, POOL, "pci-0", resource, "0000:01:00.0", ("0000:01:00.0",), cdi)
