# SPDX-License-Identifier: Apache-2.0
"""The own drivers of the functions that we bind, on disk: what gives them back after a restart.

The PFs whose ``sriov_drivers_autoprobe`` we have switched off are there as well.

Below /run, since drivers and overrides end with the boot as well. It is there only while there is something
to give back: a daemon that starts looks whether it is, and loads what changes the host only then. Of a
damaged one nothing is believed: what is bound stays so, as if an operator had bound it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodeagent.base import log, sealed
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import looked
from nodeagent.model.ledger import Ledger

PATH = "/run/nodeagent/drivers.json"
_SWITCH = "/sriov_drivers_autoprobe"  # behind the address of a PF
_WAS = "1"  # what it said: nobody switches off what is off
_HINT = "without it the functions would not get their own drivers back"


def into(ledger: Ledger, recorded: Mapping[str, str]) -> Ledger:
    """The ledger with what is on record."""
    switches = frozenset(key.removesuffix(_SWITCH) for key in recorded if key.endswith(_SWITCH))
    drivers = {key: driver for key, driver in recorded.items() if not key.endswith(_SWITCH)}
    return ledger._replace(drivers=drivers, unprobed=switches)


def out_of(ledger: Ledger) -> dict[str, str]:
    """What of a ledger is to be on record."""
    return {**ledger.drivers, **{f"{address}{_SWITCH}": _WAS for address in sorted(ledger.unprobed)}}


def look(path: str) -> dict[str, str]:
    """What is on record, see ``into``; nothing without a file, or if it is damaged. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        return _read(path)
    except sealed.Broken:
        return {}


def read(path: str) -> dict[str, str]:
    """As ``look``, for whoever writes it: a damaged record is set aside, and told. Blocks."""
    try:
        return _read(path)
    except sealed.Broken as error:
        sealed.set_aside(path)
        log.event(log.DRIVERS_RECORD_BROKEN, error=str(error))
        return {}


def _read(path: str) -> dict[str, str]:
    """:raises Broken: if it is not what was written."""
    try:
        document = sealed.content(path)
    except OSError as error:
        looked(error)
        return {}
    return {address: driver for address, driver in document.items() if isinstance(driver, str)}


def write(path: str, drivers: Mapping[str, str]) -> None:
    """Replace the file at once and whole; remove it if there is nothing to give back.

    :raises KernelRefused: if it cannot be written.
    """
    if drivers:
        sealed.write(path, drivers, _HINT, mode=0o644)
        return
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise KernelRefused(f"{path} cannot be removed: {error.strerror}", _HINT, path=path) from error
