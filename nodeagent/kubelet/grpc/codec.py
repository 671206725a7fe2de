# SPDX-License-Identifier: Apache-2.0
"""How messages become bytes: the codec for grpclib. Knows no service, nor who listens."""

from __future__ import annotations

from typing import Any

from betterproto2 import Message
from grpclib.encoding.base import CodecBase


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
