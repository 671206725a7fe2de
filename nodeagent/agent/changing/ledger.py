# SPDX-License-Identifier: Apache-2.0
"""Remembers of vGPUs what a VF does not show for ever: whose its type is, which types it knows, their names.

A VF does not say who set its type, and with a type it lists no others. A small file below /run, so it ends
with the boot, as the types do. It is written before the type is, since a crash between the two must not
make ours a foreign one; a line too many counts only while the VF has that very type, and goes when the
kernel refuses it. A file that cannot be read is an empty one: then what is there stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Ledger()
    if not isinstance(document, dict):
        return Ledger()
    listed = ((vf, type_ids) for vf, type_ids in _pairs(document.get("listed")) if isinstance(type_ids, list))
    return Ledger(
        _texts(document.get("types")),
        _texts(document.get("names")),
        {vf: tuple(each for each in type_ids if isinstance(each, str)) for vf, type_ids in listed},
    )


def _texts(value: Any) -> dict[str, str]:
    return {key: text for key, text in _pairs(value) if isinstance(text, str)}


def _pairs(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def named(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the vGPU types on the host, also as VFs once listed it; "" if it is not known."""
    known = read(root.path(PATH)).names
    return {number: name or known.get(number, "") for number, name in vgpus.named(root, host).items()}


def write(path: str, ledger: Ledger) -> None:
    """Replace the file at once and whole.

    :raises KernelRefused: if it cannot be written.
    """
    document = {name: dict(known) for name, known in ledger._asdict().items()}
    try:
        files.replace(path, json.dumps(document, indent=1))
    except OSError as error:
        raise KernelRefused(
            f"{path} cannot be written: {error.strerror}",
            "without it nodeagent would not know its own vGPUs again",
            errno=error.errno or 0,
            path=path,
        ) from error
