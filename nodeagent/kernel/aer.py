# SPDX-License-Identifier: Apache-2.0
"""PCI errors (Advanced Error Reporting): verdicts on recoveries, which sysfs does not show, and error counts.

A verdict is on the binding of a driver to a device. It is saved until the next boot, with the inodes of the
device's directory and of its ``vfio-dev``, which the kernel creates with each binding: an entry of another
binding is no verdict.

Counts and other hints of one function are read on demand, for ``explain`` and a warning at the start, never
by a scan, and never without a limit outside: a device may not answer. The counters exist where the
kernel itself handles AER and the device has the capability; kernels before 7.2 leave ``aer_dev_fatal`` at
zero after a failed recovery. May block: for a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodeagent.base import state
from nodeagent.base.state import Section
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Hints, Recovery
from nodeagent.model.ids import PciAddress, pci_address

_TOTAL = re.compile(r"^TOTAL_ERR_\S+\s+(\d{1,19})$", re.MULTILINE)


def _parse(document: dict[str, Any]) -> dict[PciAddress, tuple[Recovery, str]]:
    known = {verdict.value: verdict for verdict in Recovery}
    return {
        PciAddress(key): (known[entry["verdict"]], entry["binding"])
        for key, entry in document.items()
        if pci_address(key) == key and entry["verdict"] in known
    }


def _plain(verdicts: Mapping[PciAddress, tuple[Recovery, str]]) -> dict[str, Any]:
    return {
        address: {"verdict": verdict, "binding": binding} for address, (verdict, binding) in verdicts.items()
    }


SECTION: Section[Mapping[PciAddress, tuple[Recovery, str]]] = Section(
    state.RECOVERIES, {}, _parse, _plain, "without it a restart forgets which devices have failed"
)


def load(root: Root) -> Mapping[PciAddress, Recovery]:
    """The verdicts on record whose devices are bound as they were.

    :raises KernelRefused: if nothing can be read at present.
    """
    recorded = SECTION.load(root.prefix)
    return {each: verdict for each, (verdict, binding) in recorded.items() if _binding(root, each) == binding}


def save(root: Root, verdicts: Mapping[PciAddress, Recovery]) -> None:
    """Replace the record; without verdicts there is none. :raises KernelRefused: if it cannot be written."""
    bindings = {address: _binding(root, address) for address in verdicts}
    SECTION.save(
        root.prefix,
        {each: (verdicts[each], binding) for each, binding in bindings.items() if binding is not None},
    )


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
