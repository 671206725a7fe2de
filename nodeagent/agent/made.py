# SPDX-License-Identifier: Apache-2.0
"""Remembers which vGPU types nodeagent itself has set, and the names of types: a VF tells neither for ever.

A VF does not say who set its type, and a full card lists no types any more. A small file below /run, so it
ends with the boot, as the types do. It is written before the type is, since a crash between the two must not
make ours a foreign one; a line too many does no harm, as it only counts while the VF has that very type. A
file that cannot be read is an empty one: then what is there stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.base import files
from nodeagent.base.errors import KernelRefused

PATH = "/run/nodeagent/vgpu-types.json"


@dataclass(frozen=True, slots=True)
class Record:
    """``types``: VF address → the type id that we set; ``names``: type id → name, as any VF listed it."""

    types: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def read(path: str) -> Record:
    """The record; an empty one without a readable file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Record()
    if not isinstance(found, dict):
        return Record()
    return Record(_texts(found.get("types")), _texts(found.get("names")))


def _texts(found: Any) -> dict[str, str]:
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def write(path: str, record: Record) -> None:
    """Replace the file at once and whole. :raises KernelRefused: if it cannot be written."""
    document = {"types": dict(record.types), "names": dict(record.names)}
    try:
        files.replace(path, json.dumps(document, indent=1))
    except OSError as error:
        raise KernelRefused(
            f"{path} cannot be written: {error.strerror}",
            "without it nodeagent would not know its own vGPUs again",
            errno=error.errno or 0,
            path=path,
        ) from error
