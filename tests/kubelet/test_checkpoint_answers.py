# SPDX-License-Identifier: Apache-2.0
"""What the answers to Allocates say: ours, virt-handler's, other plugins', and bytes that are none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.checkpoint import AllocatedDevices, parse_allocate_response
from nodeagent.model.ids import GroupNumber

A, B = "0000:65:00.0", "10000:01:00.1"
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def answer(*paths: str, **envs: str) -> str:
    nodes = [v1beta1.DeviceSpec(f"/inside{path}", path, "mrw") for path in paths]
    response = v1beta1.ContainerAllocateResponse(envs=envs, devices=nodes)
    return base64.b64encode(bytes(response)).decode()


@pytest.mark.parametrize(
    ("text", "host_devices", "groups"),
    [
        (answer(PCI_RESOURCE_EXAMPLE_COM_GPU=f"{A},{B}"), (A, B), ()),
        (answer(MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4=UUID.upper()), (UUID,), ()),
        (answer(PCI_RESOURCE_A=A, PCI_RESOURCE_B=f"{B},{A}"), (A, B), ()),
        (answer(PCIDEVICE_INTEL_COM_VF=A, USB_RESOURCE_A="1:2", PCI_RESOURCE_B="all of them,"), (), ()),
        (answer("/dev/vfio/vfio", "/dev/vfio/7", "/dev/vfio/12"), (), (7, 12)),
        (answer("/dev/vfio/devices/vfio3", "/dev/vfio/7/8", "/dev/nvidia0"), (), ()),
        ("", (), ()),
    ],
)
def test_it_names_host_devices_and_groups(
    text: str, host_devices: tuple[str, ...], groups: tuple[int, ...]
) -> None:
    assert parse_allocate_response(text)[:2] == (host_devices, frozenset(map(GroupNumber, groups)))


@given(st.binary())
def test_any_bytes_are_borne(data: bytes) -> None:
    assert isinstance(parse_allocate_response(base64.b64encode(data).decode()), AllocatedDevices)


@pytest.mark.parametrize("text", ["=", "no base64 ä", "Cg=="])
def test_any_text_is_borne(text: str) -> None:
    assert parse_allocate_response(text) == AllocatedDevices()
