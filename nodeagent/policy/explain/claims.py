# SPDX-License-Identifier: Apache-2.0
"""Explains a ResourceClaim for this node: prepared, why it is not, or the devices that it could get. Pure.

The scheduler reports only that it cannot allocate a claim. It evaluates the selectors of the claim, so this
module lists all devices of the node that are offered by DRA, each with the reason why it is unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from nodeagent.model.claim import Claim, ClaimRef
from nodeagent.policy.dra import claims, devices
from nodeagent.policy.dra.claim_files import Node
from nodeagent.policy.dra.claims import Refusal
from nodeagent.policy.dra.devices import DraDevice
from nodeagent.policy.offer.turn import Decision


class ClaimState(StrEnum):
    """The state of a claim on this node. ``READY``: the kubelet has not requested it yet."""

    PREPARED = "prepared"
    READY = "ready"
    REFUSED = "refused"
    OTHER_NODE = "other-node"
    UNALLOCATED = "unallocated"


class ClaimedDevice(NamedTuple):
    """An allocated device of this driver."""

    request: str
    device: str
    pool: str


class DraDeviceState(NamedTuple):
    """A device of this node by DRA; ``message`` and ``hint`` are empty if a claim can get it."""

    device: str
    resource: str
    message: str = ""
    hint: str = ""


class ClaimExplanation(NamedTuple):
    """The state of a claim; ``message`` explains a refusal. ``on_node`` is empty once it is allocated."""

    claim: str
    state: ClaimState
    message: str
    devices: tuple[ClaimedDevice, ...]
    on_node: tuple[DraDeviceState, ...]


def explain(claim: Mapping[str, Any], node: Node, decision: Decision) -> ClaimExplanation:
    """Explain the ResourceClaim for this node."""
    metadata = claim["metadata"]
    ref = ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])
    allocated = tuple(_list_allocated(claim, node.driver))
    if not (claim.get("status") or {}).get("allocation"):
        offered = chain.from_iterable(devices.list_devices(decision))
        on_node = tuple(_describe(each, decision) for each in offered)
        return ClaimExplanation(str(ref), ClaimState.UNALLOCATED, "", (), on_node)
    if allocated and all(each.pool != node.pool for each in allocated):
        return ClaimExplanation(str(ref), ClaimState.OTHER_NODE, "", allocated, ())
    if ref.uid in decision.snapshot.claims:
        return ClaimExplanation(str(ref), ClaimState.PREPARED, "", allocated, ())
    answer = claims.prepare(claim, ref, node, decision)
    state = ClaimState.READY if isinstance(answer, Claim) else ClaimState.REFUSED
    return ClaimExplanation(str(ref), state, _refusal_text(answer), allocated, ())


def _list_allocated(claim: Mapping[str, Any], driver: str) -> Iterable[ClaimedDevice]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result.get("driver") == driver:
            yield ClaimedDevice(result["request"], result["device"], result["pool"])


def _refusal_text(answer: Claim | Refusal) -> str:
    return answer.text if isinstance(answer, Refusal) else ""


def _describe(device: DraDevice, decision: Decision) -> DraDeviceState:
    """The device with the claim or pod that uses it, or with the reason why it is unhealthy."""
    users = filter(None, map(decision.snapshot.holder, device.parts))
    if (holder := next(users, None)) is not None:
        return DraDeviceState(device.name, device.resource, f"in use by {holder}")
    if device.reason is not None:
        return DraDeviceState(device.name, device.resource, device.reason.message, device.reason.hint)
    return DraDeviceState(device.name, device.resource)
