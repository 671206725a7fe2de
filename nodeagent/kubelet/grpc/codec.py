# SPDX-License-Identifier: Apache-2.0
"""How messages become bytes: the codec for grpclib. Knows no service, nor who listens."""

from __future__ import annotations

from typing import Any

from grpclib.encoding.base import CodecBase

from nodeagent.kubelet.grpc import wire


class Unreadable(ValueError):
    """Raised for bytes that are no message of the type that was expected."""


class Codec(CodecBase):
    """Reads and writes the generated messages; sends ready ``bytes`` as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """The wire form.

        :raises TypeError: for anything but ``message_type`` or bytes.
        """
        if isinstance(message, bytes):
            return message
        if not isinstance(message, message_type):
            raise TypeError(f"cannot send {type(message).__name__} as {message_type.__name__}")
        return wire.encode(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        """The message of that type.

        :raises Unreadable: for bytes that are none.
        """
        try:
            return wire.decode(data, message_type)
        except (ValueError, IndexError, KeyError) as error:
            raise Unreadable(f"a {message_type.__name__} that cannot be read: {error}") from error
