# SPDX-License-Identifier: Apache-2.0
"""Contents of ResourceSlices: names, attributes, taints, counters, and the order of devices."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.host import Host, Mdev, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation, ReasonCode, Via
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.dra import devices, slices
from nodeagent.policy.dra.slices import COUNTERS, TAINTS
from tests.policy import samples
from tests.policy.dra.samples import (
    DRIVER,
    GPU,
    VGPU,
    alone,
    build,
    claim,
    claims,
    decide,
    devices_of,
    pair,
    spec,
    taint_of,
)
from tests.policy.samples import function, host, mdev

SHARED = host(*pair(0x65))
GPU_NAME, AUDIO_NAME, BOARD_NAME = "pci-0000-65-00-0", "pci-0000-65-00-1", "board-0000-65-00-0"
GPU_ID, AUDIO_ID = "0000:65:00.0", "0000:65:00.1"
FIRST_LINE = {
    "kind",
    "resource",
    "vendor",
    "device",
    "class",
    "productName",
    "driver",
    "iommuGroup",
    "groupSize",
    "functions",
    "card",
    "iommufd",
}
GROUP_HELD, UNUSABLE = f"{DRIVER}/group-held=", f"{DRIVER}/unusable="


# Names and attributes


def test_a_function_and_an_mdev_are_published_with_their_attributes() -> None:
    gpu = function(ports=("pci0000:64", "0000:64:00.0"), cdev=True)
    found = devices_of(build(host(gpu, mdev())))
    assert found[GPU_NAME]["attributes"] == {
        "kind": {"string": "pci"},
        "resource": {"string": GPU},
        "vendor": {"string": "10de"},
        "device": {"string": "1eb8"},
        "class": {"string": "030200"},
        "productName": {"string": ""},
        "driver": {"string": "vfio-pci"},
        "iommuGroup": {"int": 1},
        "groupSize": {"int": 1},
        "functions": {"int": 1},
        "card": {"string": GPU_ID},
        "iommufd": {"bool": False},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:64"},
        "resource.kubernetes.io/pciBusID": {"string": GPU_ID},
        "subvendor": {"string": "10de"},
        "subdevice": {"string": "12a2"},
    }
    vgpu = found[f"mdev-{samples.UUID}"]["attributes"]
    assert vgpu["kind"] == {"string": "mdev"}
    assert vgpu["mdevUUID"] == {"string": samples.UUID}
    assert vgpu["mdevType"] == {"string": "nvidia-222"}
    assert vgpu["resource"] == {"string": VGPU}
    assert vgpu["card"] == {"string": GPU_ID}
    assert vgpu["device"] == {"string": "1eb8"}
    assert "resource.kubernetes.io/pciBusID" not in vgpu


@pytest.mark.parametrize(
    "device",
    [
        function(vendor=None, device=None, pci_class=None, numa_node=None, driver=None),
        mdev(parent=None, type_id=None, type_name=None, vendor=None, numa_node=None),
        samples.vgpu(),
        function("0000:65:00.4", physfn=GPU_ID, vf_number=3),
    ],
)
def test_each_device_has_the_same_attributes_without_a_domain(device: PciFunction | Mdev) -> None:
    attributes: dict[str, Any] = devices.build_attributes(
        [device.id], GPU, Iommufd.NEVER, samples.snapshot(host(device)), board=False
    )
    assert attributes.keys() >= FIRST_LINE


def test_kinds_of_functions_are_told_apart() -> None:
    here = host(function(), function("0000:65:00.3", 3, physfn=GPU_ID, vf_number=2), samples.vgpu())
    found = devices_of(build(here))
    kinds = {name: each["attributes"]["kind"]["string"] for name, each in found.items()}
    assert kinds == {GPU_NAME: "pci", "pci-0000-65-00-3": "vf", "pci-0000-65-00-4": "vgpu"}
    assert found["pci-0000-65-00-3"]["attributes"]["vfIndex"] == {"int": 2}
    assert found["pci-0000-65-00-3"]["attributes"]["card"] == {"string": GPU_ID}
    assert found["pci-0000-65-00-4"]["attributes"]["vgpuType"] == {"int": 1147}


def test_long_texts_are_cut_to_64_bytes() -> None:
    here = host(function())
    names = {"10de:1eb8": "é" * 40}
    snapshot = samples.snapshot(here, names=names)
    attributes = devices.build_attributes(
        [GPU_ID],
        ResourceName(f"{'d' * 100}/name"),
        Iommufd.NEVER,
        snapshot,
        board=False,
    )
    assert attributes["productName"] == {"string": "é" * 32}
    assert attributes["resource"] == {"string": f"{'d' * 59}/name"}


@pytest.mark.parametrize(("iommufd", "shown"), [(Iommufd.NEVER, False), (Iommufd.AUTO, True)])
def test_iommufd_is_shown_where_containers_get_its_nodes(iommufd: Iommufd, shown: bool) -> None:
    gpu = function(cdev=True, numa_node=None)
    here = host(gpu, nodes=frozenset({"/dev/vfio/vfio", "/dev/iommu"}))
    attributes = devices_of(build(here, spec(iommufd=iommufd)))[GPU_NAME]["attributes"]
    assert attributes["iommufd"] == {"bool": shown}
    assert "resource.kubernetes.io/numaNode" not in attributes


def test_only_resources_offered_by_dra_are_published() -> None:
    assert list(devices_of(build(host(function(), mdev()), spec(via=Via.DEVICE_PLUGIN)))) == [
        f"mdev-{samples.UUID}"
    ]


def test_without_devices_there_is_one_empty_slice() -> None:
    assert build(Host()) == ({"devices": []},)


# Groups


def test_devices_of_a_group_and_its_board_draw_from_one_counter() -> None:
    published, counters = build(SHARED)
    draws = {each["name"]: each["consumesCounters"] for each in published["devices"]}
    one = [{"counterSet": "groups-0", "counters": {"group-0000-65-00-0": {"value": "1"}}}]
    assert draws == {GPU_NAME: one, AUDIO_NAME: one, BOARD_NAME: one}
    assert counters == {
        "sharedCounters": [{"name": "groups-0", "counters": {"group-0000-65-00-0": {"value": "1"}}}]
    }
    board = published["devices"][-1]["attributes"]
    assert board["kind"] == {"string": "board"}
    assert board["functions"] == {"int": 2}
    assert board["resource.kubernetes.io/pciBusID"] == {"string": GPU_ID}


def test_a_bundle_is_a_board_without_a_counter() -> None:
    (content,) = build(SHARED, spec(Isolation.BUNDLE))
    assert [each["name"] for each in content["devices"]] == [BOARD_NAME]
    assert "consumesCounters" not in content["devices"][0]


def test_without_isolation_there_is_neither_counter_nor_board() -> None:
    (content,) = build(SHARED, spec(Isolation.NONE))
    assert [each["name"] for each in content["devices"]] == [GPU_NAME, AUDIO_NAME]


def test_a_single_device_of_a_group_has_no_counter() -> None:
    (content,) = build(host(function(), function(AUDIO_ID, 1, vendor="8086")))
    assert [each["name"] for each in content["devices"]] == [GPU_NAME]


def test_without_counters_only_the_board_of_a_group_is_published() -> None:
    (content,) = build(host(*pair(0x65), function("0000:01:00.0", 1)), dropped=[COUNTERS])
    assert [each["name"] for each in content["devices"]] == ["pci-0000-01-00-0", BOARD_NAME]


def mixed() -> Spec:
    """The functions of device 1eb8 as bundles, all others one by one."""
    bundle = PciRule(GPU, (PciSelector(devices=("1eb8",)),), Isolation.BUNDLE, via=Via.DRA)
    others = PciRule(VGPU, (PciSelector(vendors=("10de",)),), via=Via.DRA)
    return Spec(Discovery(enabled=False), rules=(bundle, others))


def test_a_bundle_beside_another_device_of_its_group_draws_from_the_counter() -> None:
    published, _ = build(SHARED, mixed())
    assert [each["name"] for each in published["devices"]] == [BOARD_NAME, AUDIO_NAME]
    assert all("consumesCounters" in each for each in published["devices"])
    assert list(devices_of(build(SHARED, mixed(), dropped=[COUNTERS]))) == [BOARD_NAME]


def test_without_a_board_the_lead_of_a_group_is_published_alone() -> None:
    gpu, audio = pair(0x65)
    other = PciRule(VGPU, (PciSelector(devices=("10f8",)),), Isolation.BUNDLE, via=Via.DRA)
    rules = (other, PciRule(GPU, (PciSelector(),), via=Via.DRA))
    (content,) = build(host(gpu, audio), Spec(Discovery(enabled=False), rules=rules), dropped=[COUNTERS])
    assert [each["name"] for each in content["devices"]] == ["board-0000-65-00-1"]


def test_counters_are_spread_over_sets_and_slices() -> None:
    contents = build(host(*(each for number in range(1, 256) for each in pair(number))))
    sets = [each for content in contents for each in content.get("sharedCounters", ())]
    assert [each["name"] for each in sets] == [f"groups-{number}" for number in range(8)]
    assert [len(each["counters"]) for each in sets] == [32] * 7 + [31]
    known = {each["name"]: each["counters"] for each in sets}
    for device in devices_of(contents).values():
        for used in device["consumesCounters"]:
            assert used["counters"].keys() <= known[used["counterSet"]].keys()


def test_a_ninth_set_is_in_another_slice() -> None:
    pairs = [pair(number) for number in range(256)]
    more = (function("0001:00:00.0", 500), function("0001:00:00.1", 500))
    contents = build(host(*(each for both in pairs for each in both), *more))
    assert [len(each["sharedCounters"]) for each in contents if "sharedCounters" in each] == [8, 1]


# Devices in use


def test_a_claim_changes_nothing_in_the_slices() -> None:
    prepared = claims(claim(GPU_ID))
    assert build(SHARED, prepared=prepared) == build(SHARED)


def test_a_claim_of_a_board_changes_nothing_in_the_slices() -> None:
    prepared = claims(claim(GPU_ID, AUDIO_ID, device=BOARD_NAME))
    assert build(SHARED, prepared=prepared) == build(SHARED)
    bundle = spec(Isolation.BUNDLE)
    assert build(SHARED, bundle, prepared) == build(SHARED, bundle)


def test_a_board_in_use_is_unhealthy_if_one_of_its_functions_is() -> None:
    usb = function("0000:65:00.2", 0x65, device="1ad8", pci_class="0c0330", driver=None)
    here, functions = host(*pair(0x65), usb), (GPU_ID, AUDIO_ID, "0000:65:00.2")
    decision = decide(here, prepared=claims(claim(*functions, device=BOARD_NAME)))
    reason = slices.find_health(decision)[BOARD_NAME]
    assert reason is not None
    assert reason.code is not ReasonCode.GROUP_HELD


def test_the_counter_counts_the_claims_with_devices_of_the_group() -> None:
    prepared = claims(claim(GPU_ID), claim(AUDIO_ID, name="audio"))
    *_, counters = build(SHARED, prepared=prepared)
    assert counters["sharedCounters"][0]["counters"] == {"group-0000-65-00-0": {"value": "2"}}
    *_, counters = build(host(*pair(0x65), *pair(0x66)), prepared=prepared)
    assert [each["value"] for each in counters["sharedCounters"][0]["counters"].values()] == ["2", "1"]


def test_a_claim_without_isolation_changes_nothing_for_the_group() -> None:
    prepared = claims(claim(AUDIO_ID))
    assert build(SHARED, spec(Isolation.NONE), prepared) == build(SHARED, spec(Isolation.NONE))


def test_a_claim_of_a_device_without_a_counter_taints_its_group() -> None:
    here = host(*pair(0x65), function("0000:65:00.2", 0x65, vendor="8086"))  # matches no rule now
    found = devices_of(build(here, prepared=claims(claim("0000:65:00.2"))))
    assert {name: taint_of(each) for name, each in found.items()} == {
        GPU_NAME: f"{GROUP_HELD}{ReasonCode.GROUP_HELD}",
        AUDIO_NAME: f"{GROUP_HELD}{ReasonCode.GROUP_HELD}",
        BOARD_NAME: f"{GROUP_HELD}{ReasonCode.GROUP_HELD}",
        "pci-0000-65-00-2": f"{UNUSABLE}{ReasonCode.EXCLUDED}",
    }


def test_a_pf_is_tainted_while_a_pod_has_one_of_its_vfs() -> None:
    vf = PciAddress("0000:65:00.4")
    here = host(function(vfs=(vf,)), function(vf, 2, physfn=GPU_ID, vendor="8086"))
    found = devices_of(build(here, pods=samples.holders(vf, resource="example.com/vf")))
    assert taint_of(found[GPU_NAME]) == f"{GROUP_HELD}{ReasonCode.GROUP_HELD}"


def test_a_device_of_a_pod_is_in_no_slice_and_taints_its_group() -> None:
    found = devices_of(build(SHARED, pods=samples.holders(GPU_ID)))
    assert {name: taint_of(each) for name, each in found.items()} == {
        AUDIO_NAME: f"{GROUP_HELD}{ReasonCode.GROUP_HELD}"
    }


def test_a_group_held_by_a_plugin_with_group_numbers_is_tainted() -> None:
    found = devices_of(build(SHARED, pods=samples.holders(str(0x65), resource="kubevirt.io/x")))
    assert {taint_of(each) for each in found.values()} == {f"{GROUP_HELD}{ReasonCode.GROUP_HELD}"}
    assert len(found) == 3


def test_a_group_with_an_unknown_open_file_is_tainted() -> None:
    gpu, audio = pair(0x65)
    assert isinstance(gpu, PciFunction)
    found = devices_of(build(host(gpu._replace(enable=1, idle=0), audio)))
    assert {taint_of(each) for each in found.values()} == {f"{GROUP_HELD}{ReasonCode.HELD_OUTSIDE}"}


def test_an_unusable_device_is_tainted_and_last_in_its_slice() -> None:
    gpu, audio = pair(0x65, enable=0)
    assert isinstance(gpu, PciFunction)
    here = host(gpu._replace(recovery=Recovery.FAILED), audio, *pair(0x66))
    names = [each["name"] for each in build(here)[0]["devices"]]
    assert names == [
        AUDIO_NAME,
        "pci-0000-66-00-0",
        "pci-0000-66-00-1",
        "board-0000-66-00-0",
        GPU_NAME,
        BOARD_NAME,
    ]
    found = devices_of(build(here))
    assert taint_of(found[GPU_NAME]) == f"{UNUSABLE}{ReasonCode.RECOVERY_FAILED}"
    assert taint_of(found[AUDIO_NAME]) is None


def test_without_taints_an_unusable_device_is_published_only_in_use() -> None:
    here = host(function(recovery=Recovery.FAILED), function("0000:66:00.0", 2))
    assert list(devices_of(build(here, dropped=[TAINTS]))) == ["pci-0000-66-00-0"]
    prepared = claims(claim(GPU_ID))
    found = devices_of(build(here, prepared=prepared, dropped=[TAINTS]))
    assert list(found) == [GPU_NAME, "pci-0000-66-00-0"]
    assert "taints" not in found[GPU_NAME]


@pytest.mark.parametrize("dropped", [(), (COUNTERS,), (TAINTS,), (COUNTERS, TAINTS)])
def test_a_device_of_a_claim_stays_when_it_leaves_the_host(dropped: tuple[str, ...]) -> None:
    prepared = claims(claim(GPU_ID))
    found = devices_of(build(host(function("0000:66:00.0", 2)), prepared=prepared, dropped=dropped))
    assert found[GPU_NAME]["attributes"].keys() >= FIRST_LINE
    expected = None if TAINTS in dropped else f"{UNUSABLE}{ReasonCode.GONE}"
    assert taint_of(found[GPU_NAME]) == expected


def test_a_device_of_a_claim_stays_when_its_resource_moves_to_the_device_plugin() -> None:
    found = devices_of(build(SHARED, spec(via=Via.DEVICE_PLUGIN), claims(claim(GPU_ID))))
    assert {name: taint_of(each) for name, each in found.items()} == {
        GPU_NAME: f"{UNUSABLE}{ReasonCode.EXCLUDED}"
    }


def test_a_function_whose_former_board_has_a_claim_is_tainted() -> None:
    here = host(function(), function(AUDIO_ID, 1, vendor="8086"))  # the audio function matches no rule now
    prepared = claims(claim(GPU_ID, AUDIO_ID, device=BOARD_NAME))
    found = devices_of(build(here, prepared=prepared))
    assert taint_of(found[GPU_NAME]) == f"{GROUP_HELD}{ReasonCode.GROUP_HELD}"
    assert taint_of(found[BOARD_NAME]) is not None


def test_the_board_is_tainted_while_a_claim_has_a_function_and_counters_are_dropped() -> None:
    found = devices_of(build(SHARED, prepared=claims(claim(GPU_ID)), dropped=[COUNTERS]))
    assert taint_of(found[BOARD_NAME]) == f"{GROUP_HELD}{ReasonCode.GROUP_HELD}"
    assert list(devices_of(build(SHARED, prepared=claims(claim(GPU_ID)), dropped=[COUNTERS, TAINTS]))) == [
        GPU_NAME
    ]


# Slices


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (64, [64]), (65, [64, 1]), (129, [64, 64, 1])])
def test_a_slice_has_at_most_64_devices(count: int, sizes: list[int]) -> None:
    assert [len(each["devices"]) for each in build(host(*alone(count)))] == sizes


def test_a_group_is_never_in_two_slices() -> None:
    contents = build(host(*alone(62), *pair(0x65)))
    *chunks, _ = contents
    assert [len(each["devices"]) for each in chunks] == [62, 3]


# Health of devices of claims


def test_health_of_the_devices_of_claims() -> None:
    prepared = claims(claim(GPU_ID), claim("0000:66:00.0", name="b"), claim("0000:67:00.0", name="c"))
    here = host(*pair(0x65), function("0000:66:00.0", 2, recovery=Recovery.FAILED))
    health = slices.find_health(decide(here, prepared=prepared))
    codes = {name: reason and reason.code for name, reason in health.items()}
    assert codes == {
        GPU_NAME: None,
        "pci-0000-66-00-0": ReasonCode.RECOVERY_FAILED,
        "pci-0000-67-00-0": ReasonCode.GONE,
    }
