# SPDX-License-Identifier: Apache-2.0
"""Looks at the configuration space of a function without waiting for it: a reset keeps readers out.

The kernel lets nobody read while it resets a function (pci_cfg_access_lock in drivers/pci/access.c), which
takes a second for a bus, and up to a minute for one that is slow to come back; a VM resets its function when
it starts. Who does not answer at once is nothing that is known, and no reason to call it unreadable.
"""

from __future__ import annotations

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.patience import at_once

_HEADER = 64  # bytes; the first four of a VF's are ones always


def answers(root: Root, path: str) -> bool | None:
    """False if ``config`` below this path is all ones; None if it says nothing, or not at once."""
    found = at_once(f"header of {path}", lambda: whole(root, path))
    return found[0] if found else None


def whole(root: Root, path: str) -> bool | None:
    """The same, however long it takes; it may wake a function that sleeps."""
    try:
        with root.directory(path) as at:
            header = at.data("config", _HEADER)
    except OSError:
        return None
    return None if not header else header != b"\xff" * _HEADER
