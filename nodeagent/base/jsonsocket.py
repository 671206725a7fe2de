# SPDX-License-Identifier: Apache-2.0
"""Asking at a unix socket that gives everybody one JSON document; ``base.jsonserver`` is the other end.

On its own, since a command that only asks is to start quickly: no event loop is loaded for it.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from nodeagent.base import sockets

LIMIT = 5.0  # seconds for one answer


def ask(path: str) -> Any:
    """The document that a server at ``path`` gives; blocks.

    :raises OSError: if nobody answers.
    :raises ValueError: if the answer is no JSON, such as none at all.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(LIMIT)
        with sockets.shortened(path) as address:
            client.connect(address)
        chunks = list(iter(lambda: client.recv(65536), b""))
    return json.loads(b"".join(chunks))
