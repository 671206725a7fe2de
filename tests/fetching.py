# SPDX-License-Identifier: Apache-2.0
"""What an HTTP server answers, for tests that may wait for it with a thread: blocks."""

from __future__ import annotations

import urllib.error
import urllib.request


def body(url: str, seconds: float = 20.0) -> str:
    """The text of an answer of success.

    :raises OSError: if there is none. The connection is closed then too: what urllib raises for a refusal
        keeps it open for as long as the error lives, and an error that crossed a thread lives until the
        garbage collector comes by (a ResourceWarning in whichever test runs then).
    """
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refusal:
        refusal.close()
        raise
