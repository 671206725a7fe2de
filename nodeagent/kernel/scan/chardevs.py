# SPDX-License-Identifier: Apache-2.0
"""Which processes have character devices below a function open: a display, a sound card, a keyboard, a GPU.

A host driver lets go of its function only when these are closed, or takes them away from under whoever has
them. They are the directories below the function that have a number in ``dev``; NVIDIA's driver makes its own
nodes, and says in /proc which is whose. Asked of all processes, so on demand only. Block devices are the
matter of ``disks``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root, looked
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.ids import pci_address
from nodeagent.model.uses import HostUse, HostUses, UseKind

_NVIDIA = 195  # NV_MAJOR_DEVICE_NUMBER in the kernel module of NVIDIA's driver
_GPUS = "/proc/driver/nvidia/gpus"
_DEPTH = 12  # directories below a function: USB allows five hubs in a row, and an input device has six more


def opened(root: Root, address: str) -> HostUses:
    """What of the function is open, and by which process."""
    nodes = dict(_nodes(root, address))
    if not nodes:
        return HostUses()
    files = in_use.find_open(root, {name: in_use.character_device(each) for name, each in nodes.items()})
    found = tuple(HostUse(UseKind.OPEN, name, f"open by {who}") for name, who in files.openers.items())
    return HostUses(
        found, () if found or files.decisive else (f"which processes have {', '.join(nodes)} open",)
    )


def minor(root: Root, address: str) -> str | None:
    """The number of NVIDIA's node for a GPU: 0 for /dev/nvidia0; None where its driver tells none."""
    lines = (root.text(f"{_GPUS}/{address}/information") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == "Device Minor"), None)


def _nodes(root: Root, address: str) -> Iterator[tuple[str, str]]:
    """Name and number (``226:0``) of each."""
    number = minor(root, address)
    if number is not None and number.isdecimal():
        yield f"nvidia{number}", f"{_NVIDIA}:{number}"
    top = root.path(f"{DEVICES}/{address}/")
    for directory, names, files in os.walk(top, onerror=looked):
        deep = directory.count("/") - top.count("/") >= _DEPTH
        names[:] = [] if deep else [name for name in names if pci_address(name) != name and name != "block"]
        path = root.host_path(directory)
        if "dev" in files and root.link(f"{path}/subsystem") != "block":
            yield os.path.basename(directory), root.text(f"{path}/dev") or ""
