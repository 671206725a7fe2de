# SPDX-License-Identifier: Apache-2.0
"""One HTTP request over a unix socket, and the JSON document in the response: how commands ask the daemon.

It blocks, and loads neither an event loop nor ``http.client`` (35 ms): a command that only asks starts fast.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
from typing import Any

from nodeagent.base import sockets

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def ask(path: str, target: str, limit: float, body: bytes | None = None) -> Any:
    """The document at ``target`` of the server at the socket ``path``. A ``body`` is posted.

    Waits for up to ``limit`` seconds for each part of the response.

    :raises OSError: if no server answers.
    :raises ValueError: if the response is no document, such as that of a daemon of another version.
    """
    head = (
        f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {len(body or b'')}\r\nconnection: close\r\n\r\n"
    )
    response = _exchange(path, limit, head.encode() + (body or b""))
    if not response:  # such as that of a daemon that ends, or that refuses this user
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    status = _STATUS_LINE.match(response)
    if status is None:
        raise ValueError("it is not HTTP")
    document = response.partition(b"\r\n\r\n")[2]
    if status[1] != b"200":
        raise ValueError(document.decode(errors="replace").strip())
    return json.loads(document)


def _exchange(path: str, limit: float, request: bytes) -> bytes:
    """Send the request and receive until the server closes, which it may do without reading everything."""
    response = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(limit)
        with sockets.shortened(path) as address:
            client.connect(address)
        with contextlib.suppress(BrokenPipeError):
            client.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                response += part
    return response
