# SPDX-License-Identifier: Apache-2.0
"""The names of the types of NVIDIA's vendor-specific VFIO framework.

A VF shows its type by number once one is set. Names have two sources: the list of creatable types of VFs
that have none yet, and the file in which the vGPU manager describes all types (one element ``vgpuType``
with ``id`` and ``name`` each), on the host or below the root of NVIDIA's driver container. The file is
searched, not parsed: it has some hundred kilobytes, and a broken one gives fewer names, never an error.
"""

from __future__ import annotations

import os
import re

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host

FILE = "/usr/share/nvidia/vgpu/vgpuConfig.xml"
FILES = (FILE, f"/run/nvidia/driver{FILE}")  # the other where the GPU operator's container has the driver
_MOST = 1 << 24  # bytes of it that are searched: it grows with each generation of cards
_TYPE = re.compile(r"<vgpuType\b([^<>]*)>")
_ATTRIBUTE = re.compile(r"\b(id|name)\s*=\s*\"([^\"]*)\"")


def find_types(host: Host) -> dict[str, str]:
    """Number → name of all types that VFs list or have; "" where only the number is known."""
    types: dict[str, str] = {}
    for function in host.functions.values():
        if function.vgpu_type is not None:
            types.setdefault(function.vgpu_type, "")
        types.update(function.vgpu_types)
    return types


def name_types(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the types that are seen; what a VF lists wins over the file."""
    types = find_types(host)
    described = _described(root) if "" in types.values() else {}
    return {number: name or described.get(number, "") for number, name in types.items()}


def _described(root: Root) -> dict[str, str]:
    from html import unescape  # rarely needed, and its table of entities is large

    types: dict[str, str] = {}
    for match in (found for file in FILES for found in _TYPE.finditer(root.text(file, _MOST) or "")):
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        if {"id", "name"} <= attributes.keys():
            types.setdefault(attributes["id"], unescape(attributes["name"]))
    return types


def read_stamps(root: Root) -> tuple[tuple[int, ...], ...]:
    """Differs after a file of types was changed, created or removed; the files are not read for it."""
    return tuple(_stamp(root.path(file)) for file in FILES)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - as in root
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
