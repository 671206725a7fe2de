# SPDX-License-Identifier: Apache-2.0
"""How answers leave the process: exit codes, the answer on stdout, what there is to say of it on stderr.

Nothing is said before the answer is known: so the error that comes instead of one is two lines alone.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

FINE, FAILED, USAGE, WRONG = 0, 1, 2, 3


def answer(text: str, *messages: str) -> int:
    """Print the messages that say anything, then the answer; return the exit code."""
    for message in filter(None, messages):
        print(f"nodeagent: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without our signs gets escapes
    print(text, flush=True)  # a reader that has gone is noticed here, not when Python exits
    return FINE


def json_text(document: Any, indent: int = 2) -> str:
    """A document as people and programs can read it."""
    return json.dumps(document, indent=indent)
