# SPDX-License-Identifier: Apache-2.0
"""The encoded device list. Google's protobuf is in ``test_codec_peer``."""

from __future__ import annotations

import pytest

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.deviceplugin import listing
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Device, Reason, ReasonCode

BROKEN = Reason(ReasonCode.GONE, "it fell off the bus")


def _device(device_id: str, numa: int | None = None, reason: Reason | None = None) -> Device:
    return Device(DeviceId(device_id), reason, numa)


def _parsed(*devices: Device) -> list[v1beta1.Device]:
    return v1beta1.ListAndWatchResponse.parse(listing.encode_list(devices)).devices


def test_a_list_keeps_the_order_of_its_devices() -> None:
    ids = [f"0000:{bus:02x}:00.0" for bus in (9, 3, 200, 1)]
    assert [device.id for device in _parsed(*map(_device, ids))] == ids


def test_health_is_one_of_the_two_words_that_the_kubelet_knows() -> None:
    first, second = _parsed(_device("a"), _device("b", reason=BROKEN))
    assert (first.health, second.health) == ("Healthy", "Unhealthy")


@pytest.mark.parametrize(("numa", "nodes"), [(0, [0]), (1, [1]), (7, [7])])
def test_a_numa_node_is_announced_also_if_it_is_zero(numa: int, nodes: list[int]) -> None:
    (device,) = _parsed(_device("a", numa))
    assert device.topology is not None
    assert [node.id for node in device.topology.nodes] == nodes


@pytest.mark.parametrize("numa", [None, -1])
def test_an_unknown_numa_node_gives_no_topology(numa: int | None) -> None:
    (device,) = _parsed(_device("a", numa))
    assert device.topology is None


def test_no_devices_make_an_empty_message() -> None:
    assert listing.encode_list([]) == b""


@pytest.mark.parametrize("length", [1, 110, 111, 120, 300, 20_000])
def test_frames_of_any_length_equal_the_encoder_of_the_library(length: int) -> None:
    plain = v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(id="x" * length, health="Healthy")])
    assert listing.encode_list([_device("x" * length)]) == bytes(plain)
