# SPDX-License-Identifier: Apache-2.0
"""The files of a prepared claim: a CDI file for the container runtime, and metadata for KubeVirt. Pure.

The CDI file has a device for each allocated device, with its device nodes, and one for each request, with
the environment variables and the mounts of metadata files: only one CDI device of a request may set a
variable, because the last one wins. The names contain the UID of the claim, because runtimes cache names.

virt-launcher reads the addresses of devices from metadata files (KubeVirt pkg/dra/utils.go), or from the
variables if a VM requests an extended resource that DRA provides. A request for a board has a metadata file
for each function: a VM with the request ``gpu`` names them ``gpu``, ``gpu-1``, ``gpu-2``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nodeagent.model.claim import Claim, ClaimDevice, ClaimFile, ClaimRef
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Resource
from nodeagent.policy.dra import devices
from nodeagent.policy.dra.devices import Attributes, DraDevice
from nodeagent.policy.offer import grants
from nodeagent.policy.offer.turn import Decision

CONTAINER_DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"
CLASS_DOMAIN = "deviceclass.resource.kubernetes.io"
_VERSIONS = ("v1beta1", "v1alpha1")  # KubeVirt up to 1.9 reads only v1alpha1
_OF_VFIO = frozenset({CONTAINER_NODE, IOMMUFD_NODE})


class Node(NamedTuple):
    """The driver on this node. ``metadata_dir``: the host directory of metadata files, without ``--root``."""

    driver: str
    pool: str
    boot_id: str
    metadata_dir: str


class DeviceConfig(NamedTuple):
    """The options of a request, from its DeviceClass or claim; "" and None: those of the rule."""

    resource_name: str = ""
    iommufd: Iommufd | None = None


class Allocated(NamedTuple):
    """An allocated device, its request as in the allocation, and the DeviceClass of the request."""

    request: str
    device: DraDevice
    config: DeviceConfig
    class_name: str

    @property
    def main_request(self) -> str:
        """The name of the request without the subrequest of ``firstAvailable``."""
        return self.request.partition("/")[0]

    @property
    def iommufd(self) -> Iommufd:
        """Whether containers get the nodes of iommufd."""
        return self.device.iommufd if self.config.iommufd is None else self.config.iommufd


class _Mounted(NamedTuple):
    """A metadata file, and the request by which its directory in the container is named."""

    request: str
    file: ClaimFile


def build_claim(
    ref: ClaimRef, pod_claim: str, allocated: Sequence[Allocated], node: Node, decision: Decision
) -> Claim:
    """The record of the claim with the texts of its files."""
    requests: dict[str, list[Allocated]] = {}
    for each in allocated:
        requests.setdefault(each.main_request, []).append(each)
    metadata: list[ClaimFile] = []
    cdi_devices = [_device(_device_name(ref, each), nodes=_nodes([each], decision)) for each in allocated]
    for request, members in requests.items():
        files = [*_build_metadata(ref, pod_claim, request, members, requests, node, decision)]
        metadata += [each.file for each in files]
        separate = {path for each in members for path in _nodes([each], decision)}
        cdi_devices.append(
            _device(
                _request_name(ref, request),
                nodes=[path for path in _nodes(members, decision) if path not in separate],
                env=_build_env(members, decision),
                mounts=[_build_mount(ref, pod_claim, each, node) for each in files],
            )
        )
    document = {"cdiVersion": "0.5.0", "kind": cdi_kind(node.driver), "devices": cdi_devices}
    return Claim(
        ref,
        tuple(_build_record(each, ref, requests[each.main_request][0] is each, node) for each in allocated),
        pod_claim,
        node.boot_id,
        ClaimFile(cdi_file_name(node.driver, ref.uid), json.dumps(document, indent=2)),
        tuple(metadata),
    )


def has_nodes(allocated: Allocated, decision: Decision) -> bool:
    """True if the device has a device node of its own or of its group."""
    return not _OF_VFIO.issuperset(_nodes([allocated], decision))


def cdi_kind(driver: str) -> str:
    """The CDI kind of all devices of claims."""
    return f"{driver}/claim"


def cdi_file_name(driver: str, uid: str) -> str:
    """The name of a claim's CDI file; it is none of a resource (``kubelet.cdi``), which start differently."""
    return f"dra-{driver}-{uid}.json"


# The CDI file


def _device_name(ref: ClaimRef, allocated: Allocated) -> str:
    return f"{ref.uid}-{allocated.device.name}"


def _request_name(ref: ClaimRef, request: str) -> str:
    return f"{ref.uid}_{request}"


def _build_record(allocated: Allocated, ref: ClaimRef, is_first: bool, node: Node) -> ClaimDevice:
    """The record of a device; the first one of a request also has the CDI device of the request."""
    device, kind = allocated.device, cdi_kind(node.driver)
    names = [_device_name(ref, allocated)]
    if is_first:
        names.append(_request_name(ref, allocated.main_request))
    return ClaimDevice(
        allocated.request,
        node.pool,
        device.name,
        device.resource,
        device.device_id,
        device.parts,
        tuple(f"{kind}={name}" for name in names),
    )


def _device(
    name: str,
    nodes: Iterable[str] = (),
    env: Sequence[str] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    found = [{"path": path, "permissions": "rwm"} for path in nodes]
    edits = {"env": [*env], "deviceNodes": found, "mounts": [*mounts]}
    return {"name": name, "containerEdits": {key: value for key, value in edits.items() if value}}


def _nodes(allocated: Sequence[Allocated], decision: Decision) -> tuple[str, ...]:
    """The device nodes of these devices, which are of one request."""
    host_devices = [each for one in allocated for each in _find_host_devices(one.device, decision)]
    return grants.device_nodes(host_devices, allocated[0].iommufd, decision.snapshot.host)


def _find_host_devices(device: DraDevice, decision: Decision) -> list[HostDevice]:
    return [each for each in map(decision.snapshot.host.device, device.parts) if each is not None]


def _build_env(members: Iterable[Allocated], decision: Decision) -> list[str]:
    """The variables of a request, for each resource name by which a VM can have requested its devices."""
    by_name: dict[str, list[HostDevice]] = {}
    for each in members:
        for host_device in _find_host_devices(each.device, decision):
            offer = decision.offer_with(host_device.id)
            resource = each.device.resource if offer is None else offer.match.resource
            names = [each.config.resource_name or resource]
            if each.class_name:
                names.append(f"{CLASS_DOMAIN}/{each.class_name}")
            for name in names:
                by_name.setdefault(name, []).append(host_device)
    return [
        f"{key}={value}"
        for name, host_devices in by_name.items()
        for key, value in grants.environment(Resource(ResourceName(name), host_devices[0].kind), host_devices)
    ]


def _build_mount(ref: ClaimRef, pod_claim: str, mounted: _Mounted, node: Node) -> dict[str, Any]:
    place = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{ref.name}"
    return {
        "hostPath": f"{node.metadata_dir}/{mounted.file.path}",
        "containerPath": f"{CONTAINER_DIRECTORY}/{place}/{mounted.request}/{node.driver}-metadata.json",
        "options": ["ro", "bind"],
    }


# The metadata files


def _build_metadata(
    ref: ClaimRef,
    pod_claim: str,
    request: str,
    members: Sequence[Allocated],
    requests: Mapping[str, object],
    node: Node,
    decision: Decision,
) -> Iterator[_Mounted]:
    """The file of a request, and one for each further function of a board."""

    def build(name: str, entries: Mapping[str, list[dict[str, Any]]]) -> _Mounted:
        path = f"{ref.uid}/{name}/metadata.json"
        return _Mounted(name, ClaimFile(path, _build_documents(ref, pod_claim, entries)))

    entries: dict[str, list[dict[str, Any]]] = {}
    for each in members:
        attributes = _attributes(each, each.device.parts, decision)
        # KubeVirt compares the name with that of the request, without the subrequest
        for name in dict.fromkeys((each.request, request)):
            entries.setdefault(name, []).append(_entry(each.device, attributes, node))
    yield build(request, entries)
    board = members[0]
    if len(members) > 1 or not board.device.is_board:
        return
    for place, part in enumerate(board.device.parts):
        name = f"{request}-{place}"
        if place and name not in requests:
            yield build(name, {name: [_entry(board.device, _attributes(board, [part], decision), node)]})


def _attributes(allocated: Allocated, parts: Sequence[str], decision: Decision) -> Attributes:
    device = allocated.device
    return devices.build_attributes(
        parts, device.resource, allocated.iommufd, decision.snapshot, board=device.is_board
    )


def _entry(device: DraDevice, attributes: Attributes, node: Node) -> dict[str, Any]:
    return {"driver": node.driver, "pool": node.pool, "name": device.name, "attributes": attributes}


def _build_documents(ref: ClaimRef, pod_claim: str, entries: Mapping[str, list[dict[str, Any]]]) -> str:
    """One object for each version of the format, the newest first; readers skip unknown versions."""
    content: dict[str, Any] = {
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid, "generation": 1}
    }
    if pod_claim:
        content["podClaimName"] = pod_claim
    content["requests"] = [{"name": name, "devices": found} for name, found in entries.items()]
    return "".join(
        json.dumps({"apiVersion": f"metadata.resource.k8s.io/{version}", "kind": "DeviceMetadata", **content})
        + "\n"
        for version in _VERSIONS
    )
