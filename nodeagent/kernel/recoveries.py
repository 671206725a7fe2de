# SPDX-License-Identifier: Apache-2.0
"""The record of verdicts after PCI errors, below /run: sysfs shows none, and they end with the boot.

A verdict is on the binding of a driver to a device, and recorded with what tells that binding from the next:
the inodes of the device's directory and of its ``vfio-dev``, which the kernel makes anew each time. What is
damaged, or of another binding, is no verdict. May block: for a thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.base import files
from nodeagent.kernel.root import Root, looked
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress, pci_address

PATH = "/run/nodeagent/recoveries.json"


def load(root: Root) -> Mapping[PciAddress, Recovery]:
    """The verdicts on record whose devices are bound as they were.

    :raises KernelRefused: if nothing can be read at present.
    """
    verdicts: dict[PciAddress, Recovery] = {}
    for key, entry in _entries(root.path(PATH)).items():
        address, binding = pci_address(key), _binding(root, key)
        if (
            address == key
            and binding is not None
            and isinstance(entry, dict)
            and entry.get("binding") == binding
        ):
            with suppress(ValueError):
                verdicts[address] = Recovery(str(entry.get("verdict")))
    return verdicts


def save(root: Root, verdicts: Mapping[PciAddress, Recovery]) -> None:
    """Replace the record at once and whole; without verdicts there is none.

    :raises KernelRefused: if it cannot be written.
    """
    path = root.path(PATH)
    if not verdicts:
        with suppress(OSError):
            Path(path).unlink()
        return
    document = {
        address: {"verdict": verdict, "binding": _binding(root, address)}
        for address, verdict in verdicts.items()
    }
    files.put(path, json.dumps(document, indent=1), "without it a restart forgets which devices have failed")


def _entries(path: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        looked(error)
        return {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _binding(root: Root, address: str) -> str | None:
    """None if the device is not there."""
    path = f"{DEVICES}/{address}"
    try:
        with root.directory(path) as at:
            device, driver = at.inode, at.link("driver")
    except OSError:
        return None
    try:
        with root.directory(f"{path}/vfio-dev") as at:
            return f"{driver} {device} {at.inode}"
    except OSError:
        return f"{driver} {device}"
