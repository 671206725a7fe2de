# SPDX-License-Identifier: Apache-2.0
"""Prepares a ResourceClaim: from its allocation to a Claim with all files, or the reason for a refusal. Pure.

The scheduler has chosen the devices. This is the last check: a device that another claim or pod uses, or
whose IOMMU group they use, is refused, and so is an unusable device. Most refusals end by themselves, so
``prepare`` is called again for a while before the kubelet gets the answer, which retries after a minute only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.claim import Claim, ClaimRef
from nodeagent.model.resource import Iommufd, Isolation, ReasonCode
from nodeagent.model.spec import API_VERSION
from nodeagent.policy import naming
from nodeagent.policy.dra import claim_files, devices
from nodeagent.policy.dra.claim_files import Allocated, DeviceConfig, Node
from nodeagent.policy.dra.devices import DraDevice
from nodeagent.policy.offer import units
from nodeagent.policy.offer.turn import Decision

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"  # on a claim from a template: its name in the pod
CONFIG_KIND = "DeviceConfig"
_CONFIG_FIELDS = ("resourceName", "iommufd")

Object = Mapping[str, Any]
"""A ResourceClaim, or a part of one, as the API server sends it."""


class Refusal(NamedTuple):
    """Why a claim is not prepared; ``waits``: this may end without a change of the claim."""

    text: str
    waits: bool = False


class _Refused(Exception):
    """Raised inside this module to end the checks."""

    def __init__(self, text: str, *, waits: bool = False) -> None:
        super().__init__(text)
        self.refusal = Refusal(text, waits)


def prepare(
    claim: Object,
    ref: ClaimRef,
    node: Node,
    decision: Decision,
) -> Claim | Refusal:
    """The Claim with the files of all its devices; it is the same for the same devices.

    ``claim`` is the ResourceClaim with the name of ``ref``.
    """
    try:
        results = _read_results(claim, ref, node)
        known = decision.snapshot.claims.get(ref.uid)
        if known is not None and known.boot_id == node.boot_id and _is_unoffered(known, decision):
            return known  # its rule is gone, its pod is not
        configs = _read_configs(claim, node.driver)
        classes, pods = dict(_list_classes(claim)), frozenset(_list_pods(claim, ref))
        allocated = [
            Allocated(
                result["request"],
                _check_device(result["device"], _list_parts(known), pods, decision),
                _merge_configs(configs, result["request"]),
                classes.get(result["request"], ""),
            )
            for result in results
        ]
        for each in allocated:
            if not claim_files.has_nodes(each, decision):
                name = each.device.name
                raise _Refused(f"{name}: the host has no device nodes of VFIO for it", waits=True)
    except _Refused as refused:
        return refused.refusal
    pod_claim = (claim["metadata"].get("annotations") or {}).get(POD_CLAIM, "")
    return claim_files.build_claim(ref, pod_claim, allocated, node, decision)


# The object of the API


def _read_results(claim: Object, ref: ClaimRef, node: Node) -> list[Object]:
    """The allocation results of this driver."""
    uid = claim["metadata"].get("uid")
    if uid != ref.uid:
        raise _Refused(f"the claim was deleted and created again: its UID is {uid}, not {ref.uid}")
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise _Refused("the claim is not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    ours = [result for result in results if result.get("driver") == node.driver]
    if not ours:
        raise _Refused(f"the claim has no device of the driver {node.driver}")
    for result in ours:
        name = result["device"]
        if result.get("pool") != node.pool:
            raise _Refused(f"{name}: it is in the pool {result.get('pool')}, not in {node.pool} of this node")
        if result.get("adminAccess"):
            raise _Refused(f"{name}: a device of VFIO cannot be shared, so adminAccess is not supported")
    return ours


def _list_classes(claim: Object) -> Iterator[tuple[str, str]]:
    """The request of each allocation result, and its DeviceClass."""
    spec = claim.get("spec") or {}
    for request in (spec.get("devices") or {}).get("requests") or ():
        name = request["name"]
        exactly = request.get("exactly") or {}
        yield name, exactly.get("deviceClassName", "")
        for each in request.get("firstAvailable") or ():
            yield f"{name}/{each['name']}", each.get("deviceClassName", "")


class _Config(NamedTuple):
    """A configuration for this driver; without ``requests`` it applies to all of them."""

    requests: frozenset[str]
    config: DeviceConfig


def _read_configs(claim: Object, driver: str) -> list[_Config]:
    """The configurations for this driver, in order: those of classes, then those of the claim."""
    found = []
    for each in claim["status"]["allocation"]["devices"].get("config") or ():
        opaque = each.get("opaque") or {}
        if opaque.get("driver") == driver:
            origin = "the DeviceClass" if each.get("source") == "FromClass" else "the claim"
            config = _parse_config(opaque.get("parameters"), f"the configuration in {origin}")
            found.append(_Config(frozenset(each.get("requests") or ()), config))
    return found


def _parse_config(parameters: object, where: str) -> DeviceConfig:
    if not isinstance(parameters, Mapping):
        raise _Refused(f"{where} is no object")
    expected = {"apiVersion": API_VERSION, "kind": CONFIG_KIND}
    for field, value in expected.items():
        if parameters.get(field) != value:
            raise _Refused(f"{where}: {field} is {parameters.get(field)!r}; write {value}")
    for field in parameters.keys() - expected.keys() - {*_CONFIG_FIELDS}:
        raise _Refused(f"{where}: unknown field {field!r}; {naming.suggest(str(field), _CONFIG_FIELDS)}")
    name, iommufd = parameters.get("resourceName", ""), parameters.get("iommufd")
    fault = "it is no text" if not isinstance(name, str) else name and naming.describe_fault(name)
    if fault:
        raise _Refused(f"{where}: resourceName: {name!r}: {fault}")
    if iommufd is not None and iommufd not in [*Iommufd]:
        raise _Refused(f"{where}: iommufd is {iommufd!r}; write one of {', '.join(Iommufd)}")
    return DeviceConfig(str(name), None if iommufd is None else Iommufd(iommufd))


def _merge_configs(configs: list[_Config], request: str) -> DeviceConfig:
    """The configuration of a request; of two values for a field, the later one applies."""
    merged = DeviceConfig()
    for requests, config in configs:
        if not requests or not requests.isdisjoint({request, request.partition("/")[0]}):
            merged = DeviceConfig(
                config.resource_name or merged.resource_name,
                merged.iommufd if config.iommufd is None else config.iommufd,
            )
    return merged


def _list_pods(claim: Object, ref: ClaimRef) -> Iterator[str]:
    """The pods that may use the claim, as ``namespace/name``."""
    for each in (claim.get("status") or {}).get("reservedFor") or ():
        if each.get("resource") == "pods":
            yield f"{ref.namespace}/{each.get('name')}"


# The devices


def _is_unoffered(claim: Claim, decision: Decision) -> bool:
    """True if a device of the prepared claim is on the host, but not offered by DRA any more."""
    return any(
        devices.find_device(each.name, decision) is None
        and all(decision.snapshot.host.device(part) is not None for part in each.parts)
        for each in claim.devices
    )


def _check_device(name: str, own: frozenset[str], pods: frozenset[str], decision: Decision) -> DraDevice:
    """The device with that name, if the claim may have it now.

    ``own``: parts that the claim uses already. ``pods`` may use the claim, so each may have other devices of
    the IOMMU group through a device plugin.
    """
    device = devices.find_device(name, decision)
    if device is None:
        raise _Refused(
            f"{name}: no device of this name is offered by DRA on this node; "
            "restore the device or its rule, or delete the pod",
            waits=True,
        )
    holders = _find_holders(device, decision)
    own |= {each for each, holder in holders.items() if str(holder) in pods and each not in device.parts}
    _check_unused(device, own, holders)
    reason = device.reason
    by_itself = bool(holders) and own.issuperset(holders)
    if reason is not None and not (by_itself and reason.code is ReasonCode.GROUP_HELD):
        raise _Refused(f"{name}: {reason.message}; {reason.hint}", waits=True)
    return device


def _check_unused(device: DraDevice, own: frozenset[str], holders: Mapping[str, Holder]) -> None:
    """Check that no other claim and no other pod uses the device or its group.

    After a force deletion, the scheduler allocates the device again before the former pod has ended.
    """
    for each, holder in holders.items():
        if each in own and (holder.claim or each not in device.parts):
            continue
        if each in device.parts:
            raise _Refused(f"{device.name}: in use by {holder}", waits=True)
        if device.isolation is not Isolation.NONE:
            raise _Refused(f"{device.name}: IOMMU group in use by {holder}, which has {each}", waits=True)


def _find_holders(device: DraDevice, decision: Decision) -> dict[str, Holder]:
    """The users of the IOMMU group of the device, by the id of the function or mdev in use."""
    return units.find_holders(device.unit, decision.snapshot)


def _list_parts(claim: Claim | None) -> frozenset[str]:
    found = () if claim is None else claim.devices
    return frozenset(part for each in found for part in each.parts)
