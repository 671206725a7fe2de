# SPDX-License-Identifier: Apache-2.0
"""What a virtual machine asks for, read from whatever KubeVirt's API may send, or a file may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from nodeagent.cluster import vmi
from nodeagent.model.kubevirt import DeviceList, VirtualMachine, VmDevice
from tests.cluster.test_kubevirt import ANY

GUIDE = {
    "gpus": [
        {"deviceName": "nvidia.com/TU104GL_Tesla_T4", "name": "gpu1"},
        {"deviceName": "nvidia.com/GRID_T4-1Q", "name": "gpu2"},
    ],
    "hostDevices": [{"deviceName": "intel.com/qat", "name": "quickaccess1"}],
}
DEVICES = (
    VmDevice(DeviceList.GPUS, "gpu1", "nvidia.com/TU104GL_Tesla_T4"),
    VmDevice(DeviceList.GPUS, "gpu2", "nvidia.com/GRID_T4-1Q"),
    VmDevice(DeviceList.HOST_DEVICES, "quickaccess1", "intel.com/qat"),
)


def instance(devices: Any) -> dict[str, Any]:
    return {"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": devices}}}


def test_the_example_of_the_user_guide_asks_for_three_devices() -> None:
    assert vmi.parse(instance(GUIDE)) == VirtualMachine("VirtualMachineInstance", "", "", DEVICES)


def test_of_a_virtual_machine_the_template_counts_and_an_instancetype_is_remembered() -> None:
    document = {
        "kind": "VirtualMachine",
        "metadata": {"namespace": "demo", "name": "red"},
        "spec": {
            "template": {"spec": instance(GUIDE)["spec"]},
            "instancetype": {"name": "gn1", "kind": "VirtualMachineInstancetype"},
        },
    }
    assert vmi.parse(document) == VirtualMachine("VirtualMachine", "demo", "red", DEVICES, instancetype="gn1")


def test_a_device_of_a_claim_asks_for_no_resource() -> None:
    found = vmi.parse(instance({"gpus": [{"name": "g", "claimName": "c", "requestName": "r"}]}))
    assert found is not None
    assert found.devices == (VmDevice(DeviceList.GPUS, "g"),)


@pytest.mark.parametrize("entry", [None, "gpu", {}, {"deviceName": 7}, {"deviceName": "a.b/c\n"}])
def test_an_entry_that_asks_for_nothing_is_refused_with_its_place(entry: Any) -> None:
    found = vmi.parse(instance({**GUIDE, "gpus": [entry, *GUIDE["gpus"]]}))
    assert found is not None
    assert found.devices == DEVICES
    assert [each.subject for each in found.refused] == ["spec.domain.devices.gpus[0]"]


@pytest.mark.parametrize("document", [None, [], "VirtualMachine", {}, {"kind": "Pod"}, {"kind": "vm"}])
def test_what_is_no_machine_is_none(document: Any) -> None:
    assert vmi.parse(document) is None


@given(ANY)
def test_whatever_a_machine_holds_is_read_without_an_exception(value: Any) -> None:
    for spec in (value, {"domain": {"devices": value}}, {"domain": {"devices": {"gpus": [value]}}}):
        for kind in VirtualMachine.KINDS:
            found = vmi.parse({"kind": kind, "metadata": value, "spec": spec, "instancetype": value})
            assert found is not None
            told = [text for each in found.refused for text in (each.subject, each.message, each.hint)]
            assert all(text.isprintable() for text in told)
    vmi.parse(value)
