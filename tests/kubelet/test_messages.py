# SPDX-License-Identifier: Apache-2.0
"""Our generated messages against google's protobuf, made from the same .proto files at test time.

Random instances go both ways: what the one encodes the other must read as the same. In here are NUMA
node 0 and empty map values, which older generators lose.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import betterproto2
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.dra import v1 as dra_v1
from nodeagent.kubelet.api.drahealth import v1 as health_v1
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.api.podresources import v1

PROTO = Path(__file__).resolve().parents[2] / "proto"
APIS: dict[str, tuple[str, Any]] = {
    "deviceplugin": ("v1beta1", v1beta1),
    "podresources": ("v1", v1),
    "pluginregistration": ("v1", pluginregistration),
    "dra": ("v1", dra_v1),
    "drahealth": ("v1", health_v1),
}

_texts = st.text(st.characters(codec="utf-8"), max_size=12)
_lists = st.lists(_texts, max_size=3)
_maps = st.dictionaries(_texts, _texts, max_size=3)
_numa = st.one_of(st.just(0), st.integers(-(2**63), 2**63 - 1))


def _message(module: Any, name: str, /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(getattr(module, name), **fields)


def _repeated(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=3)


def _topology(module: Any) -> st.SearchStrategy[Any]:
    nodes = _repeated(_message(module, "NumaNode", id=_numa))
    return st.none() | _message(module, "TopologyInfo", nodes=nodes)


def _device_plugin() -> Iterator[st.SearchStrategy[Any]]:
    def make(name: str, /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return _message(v1beta1, name, **fields)

    options = make(
        "DevicePluginOptions",
        pre_start_required=st.booleans(),
        get_preferred_allocation_available=st.booleans(),
    )
    yield options
    yield make(
        "RegisterRequest",
        version=_texts,
        endpoint=_texts,
        resource_name=_texts,
        options=st.none() | options,
    )
    device = make("Device", id=_texts, health=_texts, topology=_topology(v1beta1))
    yield make("ListAndWatchResponse", devices=_repeated(device))
    wish = make(
        "ContainerPreferredAllocationRequest",
        available_device_ids=_lists,
        must_include_device_ids=_lists,
        allocation_size=st.integers(-(2**31), 2**31 - 1),
    )
    yield make("PreferredAllocationRequest", container_requests=_repeated(wish))
    answer = make("ContainerPreferredAllocationResponse", device_ids=_lists)
    yield make("PreferredAllocationResponse", container_responses=_repeated(answer))
    one = make("ContainerAllocateRequest", device_ids=_lists)
    yield make("AllocateRequest", container_requests=_repeated(one))
    mount = make("Mount", container_path=_texts, host_path=_texts, read_only=st.booleans())
    node = make("DeviceSpec", container_path=_texts, host_path=_texts, permissions=_texts)
    grant = make(
        "ContainerAllocateResponse",
        envs=_maps,
        mounts=_repeated(mount),
        devices=_repeated(node),
        annotations=_maps,
        cdi_devices=_repeated(make("CdiDevice", name=_texts)),
    )
    yield make("AllocateResponse", container_responses=_repeated(grant))
    yield make("PreStartContainerRequest", device_ids=_lists)
    yield make("PreStartContainerResponse")
    yield make("Empty")


def _pod_resources() -> Iterator[st.SearchStrategy[Any]]:
    devices = _message(
        v1, "ContainerDevices", resource_name=_texts, device_ids=_lists, topology=_topology(v1)
    )
    claim = _message(
        v1,
        "DynamicResource",
        claim_name=_texts,
        claim_namespace=_texts,
        claim_resources=_repeated(
            _message(
                v1,
                "ClaimResource",
                cdi_devices=_repeated(_message(v1, "CdiDevice", name=_texts)),
                driver_name=_texts,
                pool_name=_texts,
                device_name=_texts,
                share_id=st.none() | _texts,
            )
        ),
    )
    container = _message(
        v1,
        "ContainerResources",
        name=_texts,
        devices=_repeated(devices),
        dynamic_resources=_repeated(claim),
    )
    pod = _message(v1, "PodResources", name=_texts, namespace=_texts, containers=_repeated(container))
    yield _message(v1, "ListPodResourcesResponse", pod_resources=_repeated(pod))
    yield _message(v1, "AllocatableResourcesResponse", devices=_repeated(devices))
    yield _message(v1, "GetPodResourcesRequest", pod_name=_texts, pod_namespace=_texts)
    yield _message(v1, "GetPodResourcesResponse", pod_resources=st.none() | pod)


def _plugin_registration() -> Iterator[st.SearchStrategy[Any]]:
    module = pluginregistration
    yield _message(module, "PluginInfo", type=_texts, name=_texts, endpoint=_texts, supported_versions=_lists)
    yield _message(module, "RegistrationStatus", plugin_registered=st.booleans(), error=_texts)


def _dra() -> Iterator[st.SearchStrategy[Any]]:
    def by_uid(answer: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(_texts, answer, max_size=3)

    claim = _message(dra_v1, "Claim", namespace=_texts, uid=_texts, name=_texts)
    device = _message(
        dra_v1,
        "Device",
        request_names=_lists,
        pool_name=_texts,
        device_name=_texts,
        cdi_device_ids=_lists,
        share_id=st.none() | _texts,
    )
    prepared = _message(dra_v1, "NodePrepareResourceResponse", devices=_repeated(device), error=_texts)
    unprepared = _message(dra_v1, "NodeUnprepareResourceResponse", error=_texts)
    yield _message(dra_v1, "NodePrepareResourcesRequest", claims=_repeated(claim))
    yield _message(dra_v1, "NodePrepareResourcesResponse", claims=by_uid(prepared))
    yield _message(dra_v1, "NodeUnprepareResourcesRequest", claims=_repeated(claim))
    yield _message(dra_v1, "NodeUnprepareResourcesResponse", claims=by_uid(unprepared))


def _dra_health() -> Iterator[st.SearchStrategy[Any]]:
    device = _message(health_v1, "DeviceIdentifier", pool_name=_texts, device_name=_texts)
    seconds = st.integers(-(2**63), 2**63 - 1)
    health = _message(
        health_v1,
        "DeviceHealth",
        device=st.none() | device,
        health=st.sampled_from(health_v1.HealthStatus),
        last_updated_time=seconds,
        health_check_timeout_seconds=seconds,
        message=_texts,
    )
    yield _message(health_v1, "NodeWatchResourcesResponse", devices=_repeated(health))


STRATEGIES: dict[str, Callable[[], Iterator[st.SearchStrategy[Any]]]] = {
    "deviceplugin": _device_plugin,
    "podresources": _pod_resources,
    "pluginregistration": _plugin_registration,
    "dra": _dra,
    "drahealth": _dra_health,
}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModuleType]]:
    """Google's classes of each API; file names made unique, since its pool has room for one each."""
    folder = tmp_path_factory.mktemp("peer")
    for api, (version, _) in APIS.items():
        text = (PROTO / api / version / "api.proto").read_text()
        (folder / f"peer_{api}.proto").write_text(text.replace("package v1;", f"package peer.{api};"))
        flags = [f"-I{folder}", f"--python_out={folder}", f"peer_{api}.proto"]
        assert protoc.main(["protoc", *flags]) == 0
    sys.path.insert(0, str(folder))
    try:
        yield {api: importlib.import_module(f"peer_{api}_pb2") for api in APIS}
    finally:
        sys.path.remove(str(folder))


def _peer_class(module: ModuleType, ours: betterproto2.Message) -> type[Message]:
    names = {name.lower(): name for name in module.DESCRIPTOR.message_types_by_name}
    found: type[Message] = getattr(module, names[type(ours).__name__.lower()])
    return found


def _plain(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


@pytest.mark.parametrize("api", APIS)
def test_google_protobuf_reads_what_we_write_and_the_reverse(api: str, peers: dict[str, ModuleType]) -> None:
    for strategy in STRATEGIES[api]():
        _compare(strategy, peers[api])


def _compare(strategy: st.SearchStrategy[Any], peer: ModuleType) -> None:
    @settings(max_examples=400, deadline=None, database=None)
    @given(strategy)
    def same(ours: Any) -> None:
        written = bytes(ours)
        theirs = _peer_class(peer, ours).FromString(written)
        assert theirs.ByteSize() == len(written)
        theirs.DiscardUnknownFields()  # else what is not understood would come back as well
        again = type(ours).parse(theirs.SerializeToString())
        assert again == ours
        assert _plain(type(theirs).FromString(bytes(again))) == _plain(theirs)

    same()


def test_numa_node_zero_survives_in_both_directions(peers: dict[str, ModuleType]) -> None:
    peer = peers["deviceplugin"]
    ours = v1beta1.Device(topology=v1beta1.TopologyInfo(nodes=[v1beta1.NumaNode(id=0)]))
    theirs = peer.Device.FromString(bytes(ours))
    assert [node.id for node in theirs.topology.nodes] == [0]
    back = v1beta1.Device.parse(theirs.SerializeToString())
    assert back.topology is not None
    assert [node.id for node in back.topology.nodes] == [0]


def test_empty_map_keys_and_values_survive_in_both_directions(
    peers: dict[str, ModuleType],
) -> None:
    peer = peers["deviceplugin"]
    envs = {"A": "", "": "b", "C": "d"}
    ours = v1beta1.ContainerAllocateResponse(envs=envs)
    theirs = peer.ContainerAllocateResponse.FromString(bytes(ours))
    assert dict(theirs.envs) == envs
    theirs.envs[""] = ""
    back = v1beta1.ContainerAllocateResponse.parse(theirs.SerializeToString())
    assert back.envs == envs | {"": ""}


def test_fields_that_a_newer_peer_adds_are_skipped(peers: dict[str, ModuleType]) -> None:
    theirs = peers["deviceplugin"].Device(id="a", health="Healthy").SerializeToString()
    added = b"\x7a\x02hi" + b"\x70\xff\x01" + b"\x6d" + bytes(4) + b"\x69" + bytes(8)  # fields 15, 14, 13
    for data in (theirs + added, added + theirs):
        found = v1beta1.Device.parse(data)
        assert (found.id, found.health, found.topology) == ("a", "Healthy", None)
