# SPDX-License-Identifier: Apache-2.0
"""What is known not to be borne yet: by target, what is said, and what it is.

It is counted and told, and is no failure. Whoever mends it takes it out, so that it stays mended.
"""

from __future__ import annotations

_FRAMES = ("UnknownFrameReceived", "frames of types that HTTP/2 does not know end a connection")

KNOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "server-frames": (_FRAMES,),
    "client-frames": (_FRAMES,),
    "ledger": (("without a word", "a damaged file below /run is taken for an empty one"),),
}
