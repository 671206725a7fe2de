# SPDX-License-Identifier: Apache-2.0
"""Writes CDI specification files for the container runtime (Container Device Interface 0.5.0).

A file is replaced atomically. Files without the prefix of nodeagent are never touched.
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
"""One device of a CDI file: its name and its container edits."""

Stamp = tuple[int, int, int]
"""Inode, modification time in ns, size."""


def file_name(resource: str) -> str:
    """Return the file name for a resource; different resources always have different files."""
    return f"{PREFIX}{hashlib.sha256(resource.encode()).hexdigest()[:10]}.json"


def stamp(directory: str, resource: str) -> Stamp | None:
    """Return the stamp of the resource's file; None if there is no file. Blocks."""
    try:
        status = Path(directory, file_name(resource)).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def write(directory: str, resource: str, document: Mapping[str, object]) -> Stamp | None:
    """Write the file of a resource and return its stamp. Blocks.

    :raises KernelRefused: if the file cannot be written.
    """
    target = Path(directory, file_name(resource))
    files.put(target, json.dumps(document, indent=2), _OTHERWISE, what="the CDI file ")
    return stamp(directory, resource)


def entries(directory: str) -> dict[str, dict[str, Entry]]:
    """Return the devices in each file of nodeagent, by file name.

    Blocks. Files that cannot be read are skipped.
    """
    found: dict[str, dict[str, Entry]] = {}
    for file in sorted(Path(directory).glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            devices = json.loads(file.read_bytes())["devices"]
            found[file.name] = {str(each["name"]): each for each in devices}
    return found


def clean(directory: str, keep: Iterable[str]) -> None:
    """Remove nodeagent's files of resources that are not in ``keep``. Blocks. Errors are ignored."""
    kept = {file_name(resource) for resource in keep}
    with contextlib.suppress(OSError):
        for file in sorted(Path(directory).glob(f"{PREFIX}*")):
            if file.name not in kept:
                with contextlib.suppress(OSError):
                    file.unlink()
