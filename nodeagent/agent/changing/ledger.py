# SPDX-License-Identifier: Apache-2.0
"""Remembers of vGPUs what a VF does not tell for ever: whose its type is, which types it knows, their names.

A VF does not say who set its type, and with a type it lists no others. A small file below /run, so it ends
with the boot, as the types do. It is written before the type is, since a crash between the two must not
make ours a foreign one; a line too many counts only while the VF has that very type, and goes when the
kernel refuses it. A file that cannot be read is an empty one: then what is there stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from nodeagent.base import files
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import vgpus
from nodeagent.model.host import Host
from nodeagent.model.ledger import Ledger

PATH = "/run/nodeagent/vgpu-types.json"


def read(path: str) -> Ledger:
    """The record; an empty one without a readable file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Ledger()
    if not isinstance(found, dict):
        return Ledger()
    listed = ((vf, kinds) for vf, kinds in _pairs(found.get("listed")) if isinstance(kinds, list))
    return Ledger(
        _texts(found.get("types")),
        _texts(found.get("names")),
        {vf: tuple(kind for kind in kinds if isinstance(kind, str)) for vf, kinds in listed},
    )


def _texts(found: Any) -> dict[str, str]:
    return {key: text for key, text in _pairs(found) if isinstance(text, str)}


def _pairs(found: Any) -> Iterable[tuple[str, Any]]:
    return found.items() if isinstance(found, dict) else ()


def named(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the vGPU types on the host, also as VFs once listed it; "" if it is not known."""
    known = read(root.path(PATH)).names
    return {number: name or known.get(number, "") for number, name in vgpus.named(root, host).items()}


def write(path: str, ledger: Ledger) -> None:
    """Replace the file at once and whole.

    :raises KernelRefused: if it cannot be written.
    """
    document = {each.name: dict(getattr(ledger, each.name)) for each in fields(Ledger)}
    try:
        files.replace(path, json.dumps(document, indent=1))
    except OSError as error:
        raise KernelRefused(
            f"{path} cannot be written: {error.strerror}",
            "without it nodeagent would not know its own vGPUs again",
            errno=error.errno or 0,
            path=path,
        ) from error
