# SPDX-License-Identifier: Apache-2.0
"""Facts of one function that ``explain`` shows, and the count of fatal errors, for a warning at the start.

Read on demand, never by a scan, and never without a limit outside: nobody promises that they answer. The
counters exist where the kernel itself handles AER and the device has the capability; kernels before 7.2
leave ``aer_dev_fatal`` at zero after a failed recovery.
"""

from __future__ import annotations

import re

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Hints
from nodeagent.model.ids import PciAddress

_TOTAL = re.compile(r"^TOTAL_ERR_\S+\s+(\d{1,19})$", re.MULTILINE)


def read(root: Root, address: PciAddress) -> Hints:
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
