# SPDX-License-Identifier: Apache-2.0
"""Files of ours with a checksum, for root alone: what does not fit is set aside, and never believed.

Each is written whole. Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.base import files

ASIDE = ".broken"


class Broken(ValueError):
    """Raised for a file that was not written by us, or not to its end."""


def look(path: str) -> dict[str, Any] | None:
    """What is in it; None if there is no file, or it is not ours to read. Blocks.

    :raises Broken: if it is not what was written.
    """
    try:
        text = Path(path).read_bytes()
    except OSError:
        return None
    try:
        document = json.loads(text)
        body = document["body"]
        if document["sha256"] != _sum(body):
            raise ValueError("the checksum does not fit")
        return dict(json.loads(body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{path} is damaged; it is kept as {path}{ASIDE}") from error


def set_aside(path: str) -> None:
    """Keep a damaged file under another name, as far as that can be done. Blocks."""
    with contextlib.suppress(OSError):
        Path(path).replace(path + ASIDE)


def write(path: str, content: Mapping[str, Any], hint: str) -> None:
    """Replace the file. Blocks. :raises KernelRefused: if it cannot be written, with the hint."""
    body = json.dumps(content, sort_keys=True)
    files.put(path, json.dumps({"sha256": _sum(body), "body": body}), hint, mode=0o600)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
