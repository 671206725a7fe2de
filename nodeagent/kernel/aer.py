# SPDX-License-Identifier: Apache-2.0
"""PCI errors (Advanced Error Reporting): error counts and other hints of one function, and its binding.

They are read on demand, for ``explain`` and a warning at the start, never by a scan, and never without a
limit outside: a device may not answer. The counters exist where the kernel itself handles AER and the device
has the capability; kernels before 7.2 leave ``aer_dev_fatal`` at zero after a failed recovery. The state of a
recovery is not in sysfs; ``agent.recoveries`` saves it with the binding. May block: for a thread.
"""

from __future__ import annotations

import re

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Hints
from nodeagent.model.ids import PciAddress

_TOTAL = re.compile(r"^TOTAL_ERR_\S+\s+(\d{1,19})$", re.MULTILINE)


def read_binding(root: Root, address: str) -> str | None:
    """An identity of the device and its binding to the present driver; None if the device is not there.

    It has the inodes of the device's directory and of its ``vfio-dev``, which the kernel creates with each
    binding.
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
    """The hints of one function; unknown ones are None or ()."""
    path = f"{DEVICES}/{address}"
    return Hints(
        reset_methods=tuple((root.text(f"{path}/reset_method") or "").split()),
        runtime_status=root.text(f"{path}/power/runtime_status"),
        aer_fatal=fatal_errors(root, address),
        aer_nonfatal=_total(root.text(f"{path}/aer_dev_nonfatal")),
    )


def fatal_errors(root: Root, address: PciAddress) -> int | None:
    """How many fatal errors the kernel has counted."""
    return _total(root.text(f"{DEVICES}/{address}/aer_dev_fatal"))


def _total(text: str | None) -> int | None:
    """The last line's count of an aer_dev_* file (``TOTAL_ERR_FATAL 0``)."""
    match = _TOTAL.search(text or "")
    return int(match[1]) if match else None
