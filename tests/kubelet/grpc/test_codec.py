# SPDX-License-Identifier: Apache-2.0
"""The codec. Google's protobuf is in ``test_codec_peer``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import wire


def test_the_codec_sends_ready_bytes_as_they_are() -> None:
    assert wire.Codec().encode(b"\x01\x02", v1beta1.Empty) == b"\x01\x02"


def test_the_codec_refuses_a_message_of_another_type() -> None:
    with pytest.raises(TypeError, match=r"\bEmpty\b.*\bDevice\b"):
        wire.Codec().encode(v1beta1.Empty(), v1beta1.Device)


def test_the_codec_reads_what_it_wrote() -> None:
    message = v1beta1.RegisterRequest(version="v1beta1", resource_name="example.com/dev")
    plain = wire.Codec()
    data = plain.encode(message, v1beta1.RegisterRequest)
    assert plain.decode(data, v1beta1.RegisterRequest) == message


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
    with pytest.raises(wire.Unreadable, match="ListAndWatchResponse"):
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


def test_the_codec_gives_bytes_where_bytes_are_wanted() -> None:
    assert wire.Codec().decode(b"\x0a\xff", bytes) == b"\x0a\xff"


def test_a_message_falls_into_those_of_its_repeated_field() -> None:
    devices = [v1beta1.Device("a", "Healthy"), v1beta1.Device("b" * 200), v1beta1.Device()]
    unknown = b"\x10\x05" + b"\x1d\0\0\0\0" + b"\x22\x01x"  # numbers and a text of fields 2 to 4
    data = unknown.join(bytes(v1beta1.ListAndWatchResponse([device])) for device in devices) + unknown
    assert list(wire.messages(data, 1)) == [bytes(device) for device in devices]
    assert list(wire.messages(b"", 1)) == []


@pytest.mark.parametrize("size", [1, 20, 1 << 20])
def test_the_pieces_of_a_message_are_messages_and_together_they_are_the_message(size: int) -> None:
    pod = v1.PodResources("p", "ns", [v1.ContainerResources(f"c{number}") for number in range(9)])
    data = bytes(pod)
    pieces = list(wire.pieces(data, size))
    assert b"".join(pieces) == data
    assert len(pieces) == {1: 11, 20: 3, 1 << 20: 1}[size]
    read = [wire.Codec().decode(each, v1.PodResources) for each in pieces]
    assert [each.name for one in read for each in one.containers] == [f"c{number}" for number in range(9)]
    assert list(wire.pieces(b"", size)) == [b""]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a\xff", id="a length that goes on"),
        pytest.param(b"\x0a\x01a\x0a\x02a", id="the second is cut off"),
        pytest.param(b"\x12\x02a", id="another field is cut off"),
        pytest.param(b"\x0d\0\0\0\0", id="a number of four bytes for a message"),
        pytest.param(b"\x02\x00", id="a field without a number"),
        pytest.param(b"\x0e", id="a wire type that there is not"),
    ],
)
def test_bytes_that_do_not_fall_into_messages_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(wire.Unreadable):
        list(wire.messages(data, 1))


PODS = [
    v1.PodResources("p" * long, "ns", [v1.ContainerResources("c", [v1.ContainerDevices("r", ["d" * long])])])
    for long in (1, 60, 127, 128, 200)
]
ANSWER = bytes(v1.ListPodResourcesResponse(PODS))


@settings(max_examples=1000, deadline=None, database=None)
@given(
    st.binary(max_size=8) | st.just(ANSWER),
    st.lists(st.tuples(st.integers(0, 300) | st.integers(0, len(ANSWER)), st.integers(0, 255)), max_size=3),
    st.integers(0, len(ANSWER)) | st.just(len(ANSWER)),
)
def test_damaged_bytes_say_the_same_pod_by_pod_as_in_one_go(
    data: bytes, damages: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(data)
    for at, byte in damages:
        damaged[at : at + 1] = bytes((byte,))
    data = bytes(damaged[:cut])
    assert pod_by_pod(data) == in_one_go(data)


def pod_by_pod(data: bytes) -> list[v1.PodResources] | None:
    """The pods; None for bytes that cannot be read."""
    try:
        return [wire.Codec().decode(each, v1.PodResources) for each in wire.messages(data, 1)]
    except wire.Unreadable:
        return None


def in_one_go(data: bytes) -> list[v1.PodResources] | None:
    try:
        answer: v1.ListPodResourcesResponse = wire.Codec().decode(data, v1.ListPodResourcesResponse)
    except wire.Unreadable:
        return None
    return answer.pod_resources
