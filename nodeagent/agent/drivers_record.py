# SPDX-License-Identifier: Apache-2.0
"""The own drivers of the functions that we bind, and what was asked for by hand, on disk.

The PFs whose ``sriov_drivers_autoprobe`` we have switched off are there as well.
Below /run, since drivers and overrides end with the boot as well. It is there only while there is something
to give back: a daemon that starts looks whether it is, and loads what changes the host only then. Of a
damaged one nothing is believed: what is bound stays so, as if an operator had bound it. Both are in one file,
for a crash between two would have something bound that nobody has asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nodeagent.base import log, sealed
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import looked
from nodeagent.model import plain
from nodeagent.model.ledger import Asked, Ledger

PATH = "/run/nodeagent/drivers.json"
_ASKED = "asked"  # beside the addresses
_UNPROBED = "unprobed"
_HINT = "without it the functions would not get their own drivers back"


class Record(NamedTuple):
    """What of a Ledger is on record here, by the same names."""

    drivers: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, Asked] = MappingProxyType({})
    unprobed: frozenset[str] = frozenset()


def of(ledger: Ledger) -> Record:
    """What of it is to be on record."""
    return Record(ledger.drivers, ledger.asked, ledger.unprobed)


def look(path: str) -> Record:
    """The record; an empty one without a file, or if it is damaged. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        return _read(path)
    except sealed.Broken:
        return Record()


def read(path: str) -> Record:
    """As ``look``, for whoever writes it: a damaged record is set aside, and told. Blocks."""
    try:
        return _read(path)
    except sealed.Broken as error:
        sealed.set_aside(path)
        log.event(log.DRIVERS_RECORD_BROKEN, error=str(error))
        return Record()


def _read(path: str) -> Record:
    """:raises Broken: if it is not what was written."""
    try:
        document = sealed.content(path)
    except OSError as error:
        looked(error)
        return Record()
    drivers = {address: driver for address, driver in document.items() if isinstance(driver, str)}
    return Record(drivers, _asked(document.get(_ASKED)), _unprobed(document.get(_UNPROBED)))


def _unprobed(data: Any) -> frozenset[str]:
    return (
        frozenset(each for each in data if isinstance(each, str)) if isinstance(data, list) else frozenset()
    )


def _asked(data: Any) -> dict[str, Asked]:
    try:
        return {address: plain.load(Asked, each) for address, each in data.items()}
    except (AttributeError, TypeError):  # of another version
        return {}


def write(path: str, record: Record) -> None:
    """Replace the file at once and whole; remove it if there is nothing to give back.

    :raises KernelRefused: if it cannot be written.
    """
    if record != Record():
        beside = {
            _ASKED: {address: plain.dump(each) for address, each in record.asked.items()},
            _UNPROBED: sorted(record.unprobed),
        }
        document = {**record.drivers, **{key: each for key, each in beside.items() if each}}
        sealed.write(path, document, _HINT, mode=0o644)
        return
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise KernelRefused(f"{path} cannot be removed: {error.strerror}", _HINT, path=path) from error
