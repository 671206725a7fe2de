# SPDX-License-Identifier: Apache-2.0
"""The codec, the encoded device list, and the generated code. Google's protobuf is in test_wire_peer."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.kubelet import wire
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Device, Reason, ReasonCode

ROOT = Path(__file__).resolve().parents[2]
BROKEN = Reason(ReasonCode.GONE, "it fell off the bus")


def _device(device_id: str, numa: int | None = None, reason: Reason | None = None) -> Device:
    return Device(DeviceId(device_id), reason, numa)


def _parsed(*devices: Device) -> list[v1beta1.Device]:
    return v1beta1.ListAndWatchResponse.parse(wire.encode_list(devices)).devices


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
    assert wire.encode_list([]) == b""


@pytest.mark.parametrize("length", [1, 110, 111, 120, 300, 20_000])
def test_frames_of_any_length_equal_the_encoder_of_the_library(length: int) -> None:
    plain = v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(id="x" * length, health="Healthy")])
    assert wire.encode_list([_device("x" * length)]) == bytes(plain)


def test_the_codec_sends_ready_bytes_as_they_are() -> None:
    assert wire.Codec().encode(b"\x01\x02", v1beta1.Empty) == b"\x01\x02"


def test_the_codec_refuses_a_message_of_another_type() -> None:
    with pytest.raises(TypeError, match="cannot send Empty as Device"):
        wire.Codec().encode(v1beta1.Empty(), v1beta1.Device)


def test_the_codec_reads_what_it_wrote() -> None:
    message = v1beta1.RegisterRequest(version="v1beta1", resource_name="example.com/dev")
    codec = wire.Codec()
    data = codec.encode(message, v1beta1.RegisterRequest)
    assert codec.decode(data, v1beta1.RegisterRequest) == message


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a\xff", id="a length that goes on"),
        pytest.param(b"\x0a\x03\x0a\x01\xff", id="a text that is no UTF-8"),
        pytest.param(b"\x0d\0\0\0\0", id="a number of four bytes for a message"),
        pytest.param(b"\x08\x01", id="a number for a message"),
        pytest.param(b"\x0e", id="a wire type that there is not"),
        pytest.param(b"\x0a\x08\x0a\x01a\x1a\x03\x0a\x01\x0e", id="the same within a message"),
        pytest.param(b"\x0a\x06\x1a\x04\x0a\x02\x0a\x00", id="a list for a number"),
    ],
)
def test_bytes_that_are_no_message_of_the_type_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(wire.Unreadable, match="a ListAndWatchResponse that cannot be read"):
        wire.Codec().decode(data, v1beta1.ListAndWatchResponse)


def test_a_message_with_all_kinds_of_fields_is_read() -> None:
    topology = v1beta1.TopologyInfo([v1beta1.NumaNode(1)])
    spec = v1beta1.DeviceSpec("/dev/a", "/dev/a", "rw")
    for message in (
        v1beta1.ListAndWatchResponse([v1beta1.Device("a", "Healthy", topology), v1beta1.Device("b")]),
        v1beta1.ContainerAllocateResponse({"A": "b", "C": ""}, devices=[spec]),
        v1beta1.DevicePluginOptions(True, False),
    ):
        assert wire.Codec().decode(bytes(message), type(message)) == message


def test_the_generated_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "proto" / "generate.py", tmp_path],
        check=True,
        capture_output=True,
    )
    committed = ROOT / "nodeagent" / "kubelet" / "api"
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    kept = sorted(
        path.relative_to(committed)
        for path in committed.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    assert made == kept
    _, different, failed = filecmp.cmpfiles(tmp_path, committed, made, shallow=False)
    assert (different, failed) == ([], [])


def test_serving_needs_neither_google_protobuf_nor_grpcio() -> None:
    code = (
        "import sys, nodeagent.kubelet.server, nodeagent.kubelet.channel\n"
        "from nodeagent.kubelet.api.podresources import v1\n"
        "from nodeagent.kubelet.api.pluginregistration import pluginregistration\n"
        "print([n for n in ('google.protobuf', 'grpc', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
