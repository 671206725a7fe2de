# SPDX-License-Identifier: Apache-2.0
"""How messages become bytes: the codec for grpclib, and the encoded device list.

A device list is put together from one cached frame per device: after a change of one device in a
thousand only that one is encoded again, and all streams of the resource send the same bytes. The
generated messages of ``kubelet.api`` do the rest. Knows nothing of sockets or of who listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from betterproto2 import Message
from grpclib.encoding.base import CodecBase

from nodeagent.kubelet.api.deviceplugin import v1beta1

if TYPE_CHECKING:
    from nodeagent.model.resource import Device

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_DEVICES_FIELD = b"\x0a"  # field 1 of ListAndWatchResponse, length-delimited
_CACHED_FRAMES = 8192


class Unreadable(ValueError):
    """Raised for bytes that are no message of the type that was expected."""


class Codec(CodecBase):
    """Parses with the generated classes; sends messages, and ready ``bytes`` as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """The wire form; raises TypeError for anything but ``message_type`` or bytes."""
        if isinstance(message, bytes):
            return message
        if not isinstance(message, message_type):
            raise TypeError(f"cannot send {type(message).__name__} as {message_type.__name__}")
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        """The message of that type; raises Unreadable for bytes that are none."""
        try:
            message = message_type.parse(data)
        except Exception as error:  # betterproto2 0.10 stumbles over such bytes in five ways
            raise Unreadable(f"a {message_type.__name__} that cannot be read: {error}") from error
        if not _fits(message):
            raise Unreadable(f"a {message_type.__name__} that cannot be read: a field of another type")
        return message


def _fits(message: Any) -> bool:
    """False if a field holds what its type is not: betterproto2 0.10 believes the wire type that was sent."""
    known = message._betterproto
    for name, field in known.meta_by_field_name.items():
        found, kind = getattr(message, name), known.cls_by_field[name]
        if field.map_meta is None and not (found is None and field.optional):
            for each in found if field.repeated else (found,):
                if not isinstance(each, kind) or (isinstance(each, Message) and not _fits(each)):
                    return False
    return True


def encode_list(devices: Sequence[Device]) -> bytes:
    """The ListAndWatchResponse with these devices, in this order, ready to be sent."""
    return b"".join(_frame(device.id, device.healthy, device.numa) for device in devices)


@lru_cache(maxsize=_CACHED_FRAMES)
def _frame(device_id: str, healthy: bool, numa: int | None) -> bytes:
    """One entry of the repeated field: tag, length, Device."""
    body = bytes(
        v1beta1.Device(id=device_id, health=HEALTHY if healthy else UNHEALTHY, topology=_topology(numa))
    )
    return _DEVICES_FIELD + _varint(len(body)) + body


def _topology(numa: int | None) -> v1beta1.TopologyInfo | None:
    """No topology for an unknown node: -1 on the wire fails pods under strict topology policies."""
    if numa is None or numa < 0:
        return None
    return v1beta1.TopologyInfo(nodes=[v1beta1.NumaNode(id=numa)])


def _varint(number: int) -> bytes:
    """The base-128 form of a number >= 0, lowest seven bits first (protobuf encoding)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
