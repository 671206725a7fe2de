# SPDX-License-Identifier: Apache-2.0
"""Reads PCI error counts (Advanced Error Reporting) and other hints for one function, and its binding.

These values are read only for ``explain`` and for a warning at start, and always with a timeout, because a
device may not respond. The counters exist if the kernel itself handles AER and the device has the AER
capability; kernels before 7.2 leave ``aer_dev_fatal`` at zero after a failed recovery. sysfs does not show
the state of a recovery, so ``agent.recoveries`` saves it with the binding. May block: call it in a thread.
"""

from __future__ import annotations

import re

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Hints
from nodeagent.model.ids import PciAddress

_TOTAL = re.compile(r"^TOTAL_ERR_\S+\s+(\d{1,19})$", re.MULTILINE)


def read_binding(root: Root, address: str) -> str | None:
    """Return an identity of the device and its current driver binding; None if the device does not exist.

    The identity contains the inodes of the device's directory and of its ``vfio-dev``, which the kernel
    creates for each binding.
    """
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


def read_hints(root: Root, address: PciAddress) -> Hints:
    """Return the hints for one function; unknown values are None or ()."""
    path = f"{DEVICES}/{address}"
    return Hints(
        reset_methods=tuple((root.text(f"{path}/reset_method") or "").split()),
        runtime_status=root.text(f"{path}/power/runtime_status"),
        aer_fatal=fatal_errors(root, address),
        aer_nonfatal=_total(root.text(f"{path}/aer_dev_nonfatal")),
    )


def fatal_errors(root: Root, address: PciAddress) -> int | None:
    """Return the number of fatal errors that the kernel has counted."""
    return _total(root.text(f"{DEVICES}/{address}/aer_dev_fatal"))


def _total(text: str | None) -> int | None:
    """Return the count in the last line of an aer_dev_* file (``TOTAL_ERR_FATAL 0``)."""
    match = _TOTAL.search(text or "")
    return int(match[1]) if match else None
