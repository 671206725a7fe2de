# SPDX-License-Identifier: Apache-2.0
"""The saved host: the document that ``scan -o json`` writes and ``--host FILE`` reads. Does no I/O.

The document consists of a header and the plain data (``model.plain``) of all fields of a Host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.base.errors import ConfigError, bounded
from nodeagent.model import plain
from nodeagent.model.host import Host
from nodeagent.model.spec import API_VERSION

HEADING = {"apiVersion": API_VERSION, "kind": "Host"}
_FORMER = {"format": "nodeagent-host/v1"}


def dump(host: Host) -> dict[str, Any]:
    """Return the plain data of a host."""
    parts = plain.dump(host, whole=True)
    return {**HEADING, **{field.key: parts[field.key] for field in fields()}}


def load(data: Any) -> Host:
    """Return the host from plain data. :raises ConfigError: if the data is not a saved host."""
    if not isinstance(data, Mapping) or not (_begins(data, HEADING) or _begins(data, _FORMER)):
        raise ConfigError(
            "this file is not a saved host: its kind is not Host", "save a host with: nodeagent scan -o json"
        )
    try:
        functions = [_modern(each) for each in data.get("functions", ())]
        return plain.load(Host, {**data, "functions": functions})
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        why = bounded(" ".join(str(error).split()))  # keys of the file are in it, which may have lines
        raise ConfigError(
            f"the saved host cannot be read: {why}", "save it again with: nodeagent scan -o json"
        ) from error


def _begins(data: Mapping[Any, Any], heading: Mapping[str, str]) -> bool:
    return all(data.get(key) == text for key, text in heading.items())


def fields() -> list[plain.RecordField]:
    """Return the fields of a Host for the document; short fields come first, so that users can read it."""
    return sorted(plain.fields_of(Host), key=lambda field: field.listed)


def _modern(function: Any) -> Any:
    """Convert a function from an old file, which has only ``vgpuType``, where "0" means no type."""
    if not isinstance(function, Mapping) or "vgpuType" not in function:
        return function
    vgpu_type = function["vgpuType"]
    return {"vgpu": vgpu_type is not None, **function, "vgpuType": None if vgpu_type == "0" else vgpu_type}
