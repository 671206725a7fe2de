# SPDX-License-Identifier: Apache-2.0
"""What is known not to be borne yet, each until it is mended: target, what is said, and what it is.

It is counted and told, and is no failure. What is mended is to be taken out, so that it stays so.
"""

from __future__ import annotations

import re

KNOWN: tuple[tuple[str, str, str], ...] = (
    ("server-frames", "UnknownFrameReceived", "frames of types that HTTP/2 does not know end a connection"),
    ("client-frames", "UnknownFrameReceived", "the same, at our client"),
    ("ledger", "without a word", "a damaged file below /run is taken for an empty one"),
)


def reason(target: str, text: str) -> str | None:
    """What is said of it, if it is known; None for news."""
    for of, said, why in KNOWN:
        if of == target and re.search(said, text):
            return f"{target}: {why}"
    return None
