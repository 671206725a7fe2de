# SPDX-License-Identifier: Apache-2.0
"""What USB devices pods were given, on disk: by which numbers, and whose their nodes were before.

Below /run, since owners of nodes and numbers on a bus end with the boot as well. It is there only while
something is lent: a daemon that starts looks whether it is. Of a damaged one nothing is believed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeagent.base import log, sealed
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import looked
from nodeagent.model.ids import DeviceId
from nodeagent.model.usb import Loan, Loans

PATH = "/run/nodeagent/usb-loans.json"
_HINT = "without it the nodes of USB devices would stay QEMU's"


def look(path: str) -> Loans:
    """Who was given what; nothing without a file, or if it is damaged. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        return _read(path)
    except sealed.Broken:
        return {}


def read(path: str) -> Loans:
    """As ``look``, for whoever writes it: a damaged record is set aside, and told. Blocks."""
    try:
        return _read(path)
    except sealed.Broken as error:
        sealed.set_aside(path)
        log.event(log.USB_RECORD_BROKEN, error=str(error))
        return {}


def _read(path: str) -> Loans:
    """:raises Broken: if it is not what was written."""
    try:
        document = sealed.content(path)
    except OSError as error:
        looked(error)
        return {}
    try:
        return {DeviceId(head): tuple(map(_loan, several)) for head, several in document.items()}
    except (TypeError, ValueError) as error:
        raise sealed.Broken(f"{path} is damaged; it is kept as {path}{sealed.ASIDE}") from error


def _loan(written: Any) -> Loan:
    device_id, node, place, user, group, *name = written
    bus, _, number = place.partition(":")
    return Loan(
        str(device_id), str(node), f"{int(bus)}:{int(number)}", int(user), int(group), *map(str, name)
    )


def write(path: str, loans: Loans) -> None:
    """Replace the file at once and whole; remove it if nothing is lent.

    :raises KernelRefused: if it cannot be written.
    """
    if loans:
        sealed.write(path, {str(head): several for head, several in loans.items()}, _HINT, mode=0o644)
        return
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise KernelRefused(f"{path} cannot be removed: {error.strerror}", _HINT, path=path) from error
