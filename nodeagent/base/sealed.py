# SPDX-License-Identifier: Apache-2.0
"""Files of ours with a checksum: what does not fit is set aside, and never believed.

Each is written whole. Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
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
        return content(path)
    except OSError:
        return None


def content(path: str) -> dict[str, Any]:
    """What is in it. Blocks.

    :raises Broken: if it is not what was written.
    :raises OSError: if it cannot be read.
    """
    text = _bytes(path)
    try:
        document = json.loads(text)
        body = document["body"]
        if document["sha256"] != _sum(body):
            raise ValueError("the checksum does not fit")
        return dict(json.loads(body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{path} is damaged; it is kept as {path}{ASIDE}") from error


def _bytes(path: str) -> bytes:
    """:raises OSError: if it is no file that can be read; a pipe without a writer must not be waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return file.read()


def set_aside(path: str) -> None:
    """Keep a damaged file under another name, as far as that can be done. Blocks."""
    with contextlib.suppress(OSError):
        Path(path).replace(path + ASIDE)


def write(path: str, content: Mapping[str, Any], more: str, *, mode: int = 0o600) -> None:
    """Replace the file. Blocks. :raises KernelRefused: if it cannot be written, as ``files.put``."""
    body = json.dumps(content, sort_keys=True)
    files.put(path, json.dumps({"sha256": _sum(body), "body": body}), more, mode=mode)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
