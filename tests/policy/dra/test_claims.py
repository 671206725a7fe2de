# SPDX-License-Identifier: Apache-2.0
"""Preparing claims: which are refused and why, and the CDI and metadata files of the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Holder
from nodeagent.model.claim import Claim, ClaimRef
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation, Via
from nodeagent.model.spec import Spec
from nodeagent.policy.dra import claims
from nodeagent.policy.dra.claim_files import Node
from nodeagent.policy.dra.claims import Refusal
from tests.policy import samples
from tests.policy.dra.samples import DRIVER, GPU, UID, VGPU, claim, decide, pair, spec
from tests.policy.samples import function, host, mdev

POOL = f"{DRIVER}/node-1"
NODE = Node(DRIVER, POOL, "boot-1", "/var/lib/kubelet/plugins/d/dra-device-metadata")
REF = ClaimRef("vms", "gpu-x7", UID)
OTHER_UID = "1d7ff5c2-6a2a-4b4e-9f0e-0b0a4bcd2c11"
GPU_NAME, AUDIO_NAME, BOARD_NAME = "pci-0000-65-00-0", "pci-0000-65-00-1", "board-0000-65-00-0"
GPU_ID, AUDIO_ID = "0000:65:00.0", "0000:65:00.1"
MDEV_NAME = f"mdev-{samples.UUID}"
ALONE = host(function(), mdev())
SHARED = host(*pair(0x65))
CONFIG = {"apiVersion": "nodeagent/v1", "kind": "DeviceConfig"}


def result(device: str = GPU_NAME, request: str = "gpu", **other: Any) -> dict[str, Any]:
    """An allocation result."""
    return {"request": request, "driver": DRIVER, "pool": POOL, "device": device} | other


def config(source: str = "FromClaim", requests: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
    """A configuration of this driver in an allocation."""
    opaque = {"driver": DRIVER, "parameters": CONFIG | parameters}
    return {"source": source, "requests": [*requests], "opaque": opaque}


def resource_claim(
    *results: Mapping[str, Any], configs: tuple[Mapping[str, Any], ...] = (), **metadata: Any
) -> dict[str, Any]:
    """An allocated claim; its only request is of the class ``t4``."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "t4", "count": 1}}
    allocation = {"devices": {"results": [*results], "config": [*configs]}}
    return {
        "metadata": {"namespace": "vms", "name": "gpu-x7", "uid": UID, **metadata},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": allocation},
    }


def prepare(
    item: Mapping[str, Any],
    here: Host = ALONE,
    wish: Spec | None = None,
    recorded: Mapping[str, Claim] | None = None,
    pods: Mapping[str, Holder] | None = None,
    node: Node = NODE,
) -> Claim | Refusal:
    """Prepare the claim on a host."""
    return claims.prepare(item, REF, node, decide(here, wish, recorded, pods))


def prepared(*args: Any, **more: Any) -> Claim:
    """The Claim; a refusal fails the test."""
    found = prepare(*args, **more)
    assert isinstance(found, Claim), found.text
    return found


def refused(*args: Any, **more: Any) -> Refusal:
    """The refusal; a prepared claim fails the test."""
    found = prepare(*args, **more)
    assert isinstance(found, Refusal)
    return found


def cdi_edits(found: Claim) -> dict[str, dict[str, Any]]:
    """The container edits of the CDI file by the name of the CDI device."""
    document = json.loads(found.cdi_file.text)
    assert document["cdiVersion"] == "0.5.0"
    assert document["kind"] == f"{DRIVER}/claim"
    edits = {each["name"]: each["containerEdits"] for each in document["devices"]}
    assert len(edits) == len(document["devices"])
    names = [name for device in found.devices for name in device.cdi]
    assert sorted(names) == sorted(f"{DRIVER}/claim={name}" for name in edits)
    return edits


def env(found: Claim, request: str = "gpu") -> dict[str, str]:
    """The environment variables of a request."""
    return dict(each.split("=", 1) for each in cdi_edits(found)[f"{UID}_{request}"]["env"])


def nodes(found: Claim, device: str = GPU_NAME) -> list[str]:
    """The device nodes of a device."""
    return [each["path"] for each in cdi_edits(found)[f"{UID}-{device}"]["deviceNodes"]]


def documents(found: Claim) -> dict[str, list[dict[str, Any]]]:
    """The objects of each metadata file, by the path in the container."""
    texts = {f"{NODE.metadata_dir}/{each.path}": each.text for each in found.metadata}
    mounts = [each for edits in cdi_edits(found).values() for each in edits.get("mounts", ())]
    assert {each["hostPath"] for each in mounts} == texts.keys()
    assert all(each["options"] == ["ro", "bind"] for each in mounts)
    return {
        each["containerPath"]: [json.loads(line) for line in texts[each["hostPath"]].splitlines()]
        for each in mounts
    }


def kubevirt_reads(found: Claim, request: str, claim_name: str = "gpu-x7") -> str:
    """The mdev UUID or PCI address that KubeVirt 1.9 reads for a request (pkg/dra/utils.go)."""
    place = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim_name}/{request}"
    (document,) = [
        each
        for each in documents(found)[f"{place}/{DRIVER}-metadata.json"]
        if each["apiVersion"] == "metadata.resource.k8s.io/v1alpha1"
    ]
    (entry,) = [each for each in document["requests"] if each["name"] == request]
    (device,) = entry["devices"]
    attributes = device["attributes"]
    return str(attributes.get("mdevUUID", attributes.get("resource.kubernetes.io/pciBusID"))["string"])


# Prepared claims


def test_a_function_gets_its_nodes_its_variable_and_its_metadata() -> None:
    found = prepared(resource_claim(result()))
    (device,) = found.devices
    assert (device.request, device.pool, device.name) == ("gpu", POOL, GPU_NAME)
    assert (device.resource, device.device_id, device.parts) == (GPU, GPU_ID, (GPU_ID,))
    assert device.cdi[0] == f"{DRIVER}/claim={UID}-{GPU_NAME}"
    assert nodes(found) == ["/dev/vfio/vfio", "/dev/vfio/1"]
    assert env(found) == {
        "PCI_RESOURCE_NVIDIA_COM_GPU": GPU_ID,
        "PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_T4": GPU_ID,
    }
    assert kubevirt_reads(found, "gpu") == GPU_ID
    assert found.boot_id == "boot-1"
    assert found.cdi_file.path == f"dra-{DRIVER}-{UID}.json"


def test_an_mdev_is_read_by_its_uuid() -> None:
    found = prepared(resource_claim(result(MDEV_NAME)))
    assert kubevirt_reads(found, "gpu") == samples.UUID
    assert env(found)["MDEV_PCI_RESOURCE_NVIDIA_COM_VGPU"] == samples.UUID
    assert found.devices[0].resource == VGPU


def test_metadata_has_both_versions_the_newest_first() -> None:
    (found,) = documents(prepared(resource_claim(result()))).values()
    assert [each["apiVersion"] for each in found] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    assert found[1]["kind"] == "DeviceMetadata"
    assert found[1]["metadata"] == {"name": "gpu-x7", "namespace": "vms", "uid": UID, "generation": 1}
    assert "podClaimName" not in found[1]
    (entry,) = found[1]["requests"]
    assert (entry["devices"][0]["driver"], entry["devices"][0]["pool"]) == (DRIVER, POOL)


def test_metadata_of_a_claim_from_a_template_is_mounted_by_its_name_in_the_pod() -> None:
    annotations = {"resource.kubernetes.io/pod-claim-name": "the-gpu"}
    found = prepared(resource_claim(result(), annotations=annotations))
    ((path, objects),) = documents(found).items()
    base = "/var/run/kubernetes.io/dra-device-attributes"
    assert path == f"{base}/resourceclaimtemplates/the-gpu/gpu/{DRIVER}-metadata.json"
    assert {each["podClaimName"] for each in objects} == {"the-gpu"}
    assert found.pod_claim == "the-gpu"


def test_only_results_of_this_driver_are_prepared() -> None:
    foreign = {"request": "net", "driver": "other.example.com", "pool": "node-1", "device": "eth0"}
    found = prepared(resource_claim(foreign, result()))
    assert [each.name for each in found.devices] == [GPU_NAME]


def test_one_variable_has_all_devices_of_a_request_in_the_order_of_the_results() -> None:
    here = host(function(), function("0000:66:00.0", 2))
    found = prepared(resource_claim(result("pci-0000-66-00-0"), result()), here)
    assert env(found)["PCI_RESOURCE_NVIDIA_COM_GPU"] == f"0000:66:00.0,{GPU_ID}"
    assert [len(each.cdi) for each in found.devices] == [2, 1]


def test_first_available_has_an_entry_with_the_name_of_the_main_request() -> None:
    item = resource_claim(result(request="gpu/good"))
    alternatives = [{"name": "good", "deviceClassName": "t4"}, {"name": "poor", "deviceClassName": "old"}]
    item["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    found = prepared(item)
    assert kubevirt_reads(found, "gpu") == GPU_ID
    ((_, objects),) = documents(found).items()
    assert [each["name"] for each in objects[0]["requests"]] == ["gpu/good", "gpu"]
    assert "PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_T4" in env(found)


@pytest.mark.parametrize("isolation", [Isolation.GROUP, Isolation.BUNDLE])
def test_a_board_has_a_metadata_file_for_each_function(isolation: Isolation) -> None:
    item = resource_claim(result(BOARD_NAME, "board"))
    found = prepared(item, SHARED, spec(isolation))
    assert found.devices[0].parts == (GPU_ID, AUDIO_ID)
    assert kubevirt_reads(found, "board") == GPU_ID
    assert kubevirt_reads(found, "board-1") == AUDIO_ID
    assert env(found, "board")["PCI_RESOURCE_NVIDIA_COM_GPU"] == f"{GPU_ID},{AUDIO_ID}"
    assert nodes(found, BOARD_NAME) == ["/dev/vfio/vfio", f"/dev/vfio/{0x65}"]


def test_a_request_with_the_name_of_a_function_of_a_board_keeps_its_own_file() -> None:
    here = host(*pair(0x65), function("0000:66:00.0", 2))
    item = resource_claim(result("pci-0000-66-00-0", "board-1"), result(BOARD_NAME, "board"))
    found = prepared(item, here)
    assert kubevirt_reads(found, "board-1") == "0000:66:00.0"
    assert [each.path for each in found.metadata] == [
        f"{UID}/board-1/metadata.json",
        f"{UID}/board/metadata.json",
    ]


def test_a_request_for_several_boards_has_one_metadata_file() -> None:
    item = resource_claim(result(BOARD_NAME), result("board-0000-66-00-0"))
    found = prepared(item, host(*pair(0x65), *pair(0x66)))
    assert [each.path for each in found.metadata] == [f"{UID}/gpu/metadata.json"]
    ((_, objects),) = documents(found).items()
    assert [each["name"] for each in objects[1]["requests"][0]["devices"]] == [
        BOARD_NAME,
        "board-0000-66-00-0",
    ]


def test_the_memory_of_a_socket_comes_with_all_its_gpus() -> None:
    egm = (("/dev/egm4", (PciAddress(GPU_ID), PciAddress("0000:66:00.0"))),)
    here = replace(host(function(), function("0000:66:00.0", 2)), egm=egm)
    both = prepared(resource_claim(result(), result("pci-0000-66-00-0")), here)
    assert cdi_edits(both)[f"{UID}_gpu"]["deviceNodes"] == [{"path": "/dev/egm4", "permissions": "rwm"}]
    assert "deviceNodes" not in cdi_edits(prepared(resource_claim(result()), here))[f"{UID}_gpu"]


def test_a_claim_prepared_again_is_the_same() -> None:
    item = resource_claim(result(BOARD_NAME))
    first = prepared(item, SHARED)
    assert prepared(item, SHARED, recorded={UID: first}) == first


def test_a_prepared_claim_stays_prepared_when_its_rule_is_gone() -> None:
    first = prepared(resource_claim(result()))
    nothing = Spec(spec().discovery)
    assert prepared(resource_claim(result()), wish=nothing, recorded={UID: first}) == first
    after_boot = NODE._replace(boot_id="boot-2")
    assert refused(resource_claim(result()), wish=nothing, recorded={UID: first}, node=after_boot).waits


def test_functions_of_a_group_without_isolation_belong_to_two_claims() -> None:
    recorded = {OTHER_UID: claim(AUDIO_ID, name="other", uid=OTHER_UID)}
    found = prepared(resource_claim(result()), SHARED, spec(Isolation.NONE), recorded)
    assert [each.name for each in found.devices] == [GPU_NAME]


# Configurations


def test_the_configuration_of_the_claim_wins_over_that_of_the_class() -> None:
    configs = (
        config("FromClass", resourceName="example.com/class"),
        config(resourceName="example.com/claim"),
    )
    assert "PCI_RESOURCE_EXAMPLE_COM_CLAIM" in env(prepared(resource_claim(result(), configs=configs)))
    one = (config("FromClass", ("gpu",), resourceName="example.com/class"), config(iommufd="never"))
    assert "PCI_RESOURCE_EXAMPLE_COM_CLASS" in env(prepared(resource_claim(result(), configs=one)))


def test_the_configuration_of_another_request_or_driver_does_not_apply() -> None:
    foreign = {"source": "FromClaim", "opaque": {"driver": "other", "parameters": {"kind": "X"}}}
    configs = (foreign, config(requests=("net",), resourceName="example.com/x"))
    assert "PCI_RESOURCE_NVIDIA_COM_GPU" in env(prepared(resource_claim(result(), configs=configs)))


def test_a_configuration_for_the_main_request_applies_to_its_subrequests() -> None:
    item = resource_claim(
        result(request="gpu/good"), configs=(config(requests=("gpu",), resourceName="example.com/x"),)
    )
    assert "PCI_RESOURCE_EXAMPLE_COM_X" in env(prepared(item))


def test_a_configuration_chooses_iommufd() -> None:
    group_nodes = frozenset({"/dev/vfio/vfio", "/dev/iommu"})
    here = host(function(cdev=True, vfio_device="vfio3"), nodes=group_nodes)
    auto = prepared(resource_claim(result(), configs=(config(iommufd="auto"),)), here)
    assert nodes(auto) == ["/dev/vfio/vfio", "/dev/vfio/1", "/dev/vfio/devices/vfio3", "/dev/iommu"]
    never = resource_claim(result(), configs=(config(iommufd="never"),))
    assert nodes(prepared(never, here, spec(iommufd=Iommufd.AUTO))) == ["/dev/vfio/vfio", "/dev/vfio/1"]


def test_iommufd_alone_is_refused_without_the_node_of_the_device() -> None:
    found = refused(resource_claim(result(), configs=(config(iommufd="only"),)))
    assert found == Refusal(f"{GPU_NAME}: the host has no device nodes of VFIO for it", waits=True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"kind": "GpuConfig"}, "the configuration in the claim: kind is 'GpuConfig'; write DeviceConfig"),
        ({"apiVersion": "v2"}, "the configuration in the claim: apiVersion is 'v2'; write nodeagent/v1"),
        ({"resource": "a/b"}, "the configuration in the claim: unknown field 'resource'; did you mean"),
        ({"iommufd": "yes"}, "iommufd is 'yes'; write one of never, auto, only"),
        ({"iommufd": ["never"]}, "write one of never, auto, only"),
        ({"resourceName": "gpu"}, "resourceName: 'gpu': it needs exactly one '/'"),
        ({"resourceName": 1}, "resourceName: 1: it is no text"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_name_of_the_field(
    parameters: Mapping[str, Any], text: str
) -> None:
    found = refused(resource_claim(result(), configs=(config(**parameters),)))
    assert text in found.text
    assert not found.waits


def test_a_configuration_that_is_no_object_is_refused() -> None:
    wrong = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": ["x"]}}
    found = refused(resource_claim(result(), configs=(wrong,)))
    assert found == Refusal("the configuration in the DeviceClass is no object")


# Refusals


def test_a_claim_with_another_uid_is_refused() -> None:
    found = refused(resource_claim(result(), uid=OTHER_UID))
    assert found == Refusal(
        f"the claim was deleted and created again: its UID is {OTHER_UID}, not {UID}", waits=False
    )


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_an_allocation_is_refused(status: Any) -> None:
    assert refused(resource_claim() | {"status": status}) == Refusal("the claim is not allocated")


def test_a_claim_without_devices_of_this_driver_is_refused() -> None:
    assert "no device of the driver" in refused(resource_claim(result(driver="other"))).text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"adminAccess": True}, f"{GPU_NAME}: a device of VFIO cannot be shared, so adminAccess"),
        ({"pool": "node-1"}, f"{GPU_NAME}: it is in the pool node-1, not in {POOL} of this node"),
    ],
)
def test_wrong_results_are_refused(changed: Mapping[str, Any], text: str) -> None:
    found = refused(resource_claim(result(**changed)))
    assert found.text.startswith(text)
    assert not found.waits


@pytest.mark.parametrize(
    "name", ["pci-0000-99-00-0", "gpu-0", "pci-0", "mdev-x", BOARD_NAME, "", "pci-a-b-c-d"]
)
def test_a_device_that_is_not_offered_is_waited_for(name: str) -> None:
    found = refused(resource_claim(result(name)))
    assert isinstance(found, Refusal)
    assert found.waits
    assert found.text.startswith(f"{name}: no device of this name is offered by DRA on this node; ")


def test_an_unusable_device_is_waited_for() -> None:
    found = refused(resource_claim(result()), host(function(recovery=Recovery.FAILED)))
    assert found.waits
    assert found.text.startswith(f"{GPU_NAME}: ")


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (GPU_ID, "in use by claim vms/other"),
        (AUDIO_ID, f"IOMMU group in use by claim vms/other, which has {AUDIO_ID}"),
    ],
)
def test_the_former_claim_of_a_device_or_its_group_is_waited_for(held: str, text: str) -> None:
    recorded = {OTHER_UID: claim(held, name="other", uid=OTHER_UID)}
    found = refused(resource_claim(result()), SHARED, recorded=recorded)
    assert found == Refusal(f"{GPU_NAME}: {text}", waits=True)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (GPU_ID, "in use by ns/vm"),
        (AUDIO_ID, f"IOMMU group in use by ns/vm, which has {AUDIO_ID}"),
        (str(0x65), f"IOMMU group in use by ns/vm, which has {0x65}"),
    ],
)
def test_a_pod_with_the_device_or_its_group_is_waited_for(held: str, text: str) -> None:
    found = refused(resource_claim(result()), SHARED, pods=samples.holders(held))
    assert found == Refusal(f"{GPU_NAME}: {text}", waits=True)


def test_the_pod_of_a_claim_may_have_the_rest_of_the_group_from_a_device_plugin() -> None:
    reserved = {"reservedFor": [{"resource": "pods", "name": "vm", "uid": "1"}]}
    item = resource_claim(result())
    item = {**item, "status": {**item["status"], **reserved}}
    of_pod = {AUDIO_ID: Holder("vms", "vm", ResourceName("example.com/audio"))}
    first = prepared(item, SHARED, pods=of_pod)
    assert prepared(item, SHARED, recorded={UID: first}, pods=of_pod) == first
    other = {AUDIO_ID: Holder("ns", "vm", ResourceName("example.com/audio"))}
    assert "IOMMU group in use by ns/vm" in refused(item, SHARED, pods=other).text
    itself = {GPU_ID: Holder("vms", "vm", GPU)}
    assert refused(item, SHARED, pods=itself).text == f"{GPU_NAME}: in use by vms/vm"


def test_a_pf_is_waited_for_while_a_pod_has_one_of_its_vfs() -> None:
    vf = PciAddress("0000:65:00.4")
    here = host(function(vfs=(vf,)), function(vf, 2, physfn=GPU_ID, vendor="8086"))
    found = refused(resource_claim(result()), here, pods=samples.holders(vf, resource="example.com/vf"))
    assert found.waits
    assert f"its VF {vf} is in use by ns/vm" in found.text


def test_a_prepared_claim_is_refused_if_a_pod_got_its_device_from_the_device_plugin() -> None:
    first = prepared(resource_claim(result()))
    found = refused(resource_claim(result()), recorded={UID: first}, pods=samples.holders(GPU_ID))
    assert found == Refusal(f"{GPU_NAME}: in use by ns/vm", waits=True)


def test_a_group_that_a_process_has_open_is_waited_for() -> None:
    gpu, audio = pair(0x65)
    assert isinstance(audio, PciFunction)
    found = refused(resource_claim(result()), host(gpu, audio._replace(enable=1, idle=0)))
    assert found.waits
    assert "open" in found.text


def test_a_device_of_a_resource_of_the_device_plugin_is_waited_for() -> None:
    assert refused(resource_claim(result()), wish=spec(via=Via.DEVICE_PLUGIN)).waits
