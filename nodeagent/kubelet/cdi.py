# SPDX-License-Identifier: Apache-2.0
"""CDI specification files, which the container runtime reads (Container Device Interface 0.5.0).

Written whole or not at all. Only files with our own prefix are touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodeagent.base import files

PREFIX = "nodeagent-"
_OTHERWISE = "or set cdi: false on the resource"

Entry = Mapping[str, object]
"""One device of a file: its name, and what it changes in a container."""

Stamp = tuple[int, int, int]
"""Inode, time of the last change in ns, size."""


def file_name(resource: str) -> str:
    """The file of a resource: two that differ in one character only have two files."""
    return f"{PREFIX}{hashlib.sha256(resource.encode()).hexdigest()[:10]}.json"


def stamp(directory: str, resource: str) -> Stamp | None:
    """Which file of the resource is there; None without one. Blocks."""
    try:
        status = Path(directory, file_name(resource)).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def write(directory: str, resource: str, document: Mapping[str, object]) -> Stamp | None:
    """Write the file of a resource; tell which it is. Blocks.

    :raises KernelRefused: if that is impossible.
    """
    target = Path(directory, file_name(resource))
    files.put(target, json.dumps(document, indent=2), _OTHERWISE, what="the CDI file ")
    return stamp(directory, resource)


def entries(directory: str) -> dict[str, dict[str, Entry]]:
    """The devices in each of our own files there, by name.

    Blocks; a file that cannot be read is left out.
    """
    found: dict[str, dict[str, Entry]] = {}
    for file in sorted(Path(directory).glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            devices = json.loads(file.read_bytes())["devices"]
            found[file.name] = {str(each["name"]): each for each in devices}
    return found


def clean(directory: str, keep: Iterable[str]) -> None:
    """Remove own files of resources that are not in ``keep``. Blocks; what cannot be removed stays."""
    kept = {file_name(resource) for resource in keep}
    with contextlib.suppress(OSError):
        for file in sorted(Path(directory).glob(f"{PREFIX}*")):
            if file.name not in kept:
                with contextlib.suppress(OSError):
                    file.unlink()
